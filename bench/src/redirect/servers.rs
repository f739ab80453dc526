//! The two servers, each a process of its own, both built with this program.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use ::tests::engines::Isolated;
use anyhow::{Context as _, Error, bail, ensure};
use devstack::{
    Probe,
    http::{accepted, client},
    ports,
    process::{Launch, Stopped},
    readiness::until,
    scratch::Scratch,
};

use super::LOG_FILTER;

/// How long a link may take from its topic to the edge's memory.
const LINK_DEADLINE: Duration = Duration::from_secs(30);

/// The metric that counts the clicks which Kafka has confirmed.
const DELIVERED: &str = "hopline_clicks_delivered_total";

/// The metrics that say how much of the disk the spool takes, and how many clicks Kafka has not confirmed.
const SPOOLED: [&str; 2] = ["hopline_spool_bytes", "hopline_spool_records"];

/// Arguments and variables.
pub(super) type Settings = (Vec<String>, Vec<(&'static str, String)>);

/// A running server. Killed on drop, with its folder removed.
pub(crate) struct Server {
    process: devstack::Server,
    address: SocketAddr,
    // Declared after the process: the folder goes when nothing writes there any more.
    _folder: Scratch,
}

impl fmt::Display for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.process.name())
    }
}

impl Server {
    /// Starts the constant 302.
    pub(crate) async fn constant() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        Self::start("the constant", program, |address, operations, _| {
            let arguments = ["constant", "--listen", address, "--operations-listen", operations];
            Ok((arguments.map(str::to_owned).to_vec(), Vec::new()))
        })
        .await
    }

    /// Starts the constant 302 of `warp::serve`.
    pub(super) async fn warp() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        Self::start("warp::serve", program, |address, operations, _| {
            let arguments =
                ["constant", "--bare-warp", "--listen", address, "--operations-listen", operations];
            Ok((arguments.map(str::to_owned).to_vec(), Vec::new()))
        })
        .await
    }

    /// Starts a program with the arguments and variables that `settings` makes of two addresses and a folder.
    pub(super) async fn start(
        name: &str,
        program: PathBuf,
        settings: impl FnOnce(&str, &str, &Scratch) -> anyhow::Result<Settings>,
    ) -> anyhow::Result<Self> {
        let folder = Scratch::new("bench")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()?));
        let operations = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()?));
        let (arguments, variables) = settings(&address.to_string(), &operations.to_string(), &folder)?;
        let mut launch = Launch::new(program, folder.path().join("log")).arguments(arguments);
        launch.environment = std::iter::once(("RUST_LOG", LOG_FILTER.to_owned()))
            .chain(variables)
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let url = format!("http://{operations}");
        let probe = Probe::Http { url: format!("{url}/readyz") };
        let process = devstack::Server::new(name, &url, launch, probe);
        process.start().await?;
        Ok(Self { process, address, _folder: folder })
    }

    /// Where visitors find it.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process id.
    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        self.process.pid().with_context(|| format!("{self} ended"))
    }

    /// Stops it with SIGTERM, which must end it in good order.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        match self.process.stop().await {
            Some(Stopped::Ended(status)) if status.success() => Ok(()),
            Some(Stopped::Ended(status)) => bail!("{self} ended with {status}"),
            Some(Stopped::Killed) => bail!("{self} did not stop in time"),
            None => bail!("{self} ended before it was stopped"),
        }
    }
}

/// The running `ingest`.
pub(crate) struct Edge {
    pub(crate) server: Server,
}

impl Edge {
    /// Starts `ingest` on topics of its own, with its spool in a temporary folder.
    pub(crate) async fn start(engines: &Isolated) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?.with_file_name("ingest");
        ensure!(program.exists(), "{} is not there: build it in the same profile", program.display());
        let server = Server::start("ingest", program, |address, operations, folder| {
            let key = |byte: &str| byte.repeat(32);
            let variables = vec![
                ("KAFKA_BROKERS", engines.kafka_brokers.clone()),
                ("HOPLINE_TOPIC_PREFIX", engines.topic_prefix.clone()),
                ("HOPLINE_EDGE_LISTEN", address.to_owned()),
                ("HOPLINE_INGEST_OPERATIONS_LISTEN", operations.to_owned()),
                ("HOPLINE_TRUSTED_PROXIES", "127.0.0.0/8".to_owned()),
                ("HOPLINE_CLICK_ID_KEYS", format!("1:{}", key("11"))),
                ("HOPLINE_VISITOR_KEY", key("33")),
                ("HOPLINE_SPOOL_DIR", folder.path().join("spool").display().to_string()),
            ];
            Ok((Vec::new(), variables))
        })
        .await?;
        Ok(Self { server })
    }

    /// Waits until a link redirects. Asks with HEAD, which is not counted.
    pub(crate) async fn knows(&self, slug: &str) -> anyhow::Result<()> {
        let client = client().map_err(Error::from_boxed)?;
        let url = format!("http://{}/{slug}", self.server.address);
        until("the last link", LINK_DEADLINE, || async {
            let status = client.head(&url).send().await?.status();
            if status.as_u16() == 302 { Ok(()) } else { Err(status.to_string().into()) }
        })
        .await?;
        Ok(())
    }

    /// How many clicks Kafka has confirmed so far.
    pub(crate) async fn delivered(&self) -> anyhow::Result<u64> {
        metric(&self.metrics().await?, DELIVERED)
    }

    /// How many bytes the spool takes on the disk, and how many of its clicks Kafka has not confirmed.
    pub(super) async fn spooled(&self) -> anyhow::Result<(u64, u64)> {
        let page = self.metrics().await?;
        let [bytes, waiting] = SPOOLED.map(|name| metric(&page, name));
        Ok((bytes?, waiting?))
    }

    async fn metrics(&self) -> anyhow::Result<String> {
        let url = format!("{}/metrics", self.server.process.url());
        let client = client().map_err(Error::from_boxed)?;
        accepted(client.get(url).send().await?).await.map_err(Error::from_boxed)
    }

    /// Stops it as an operator does.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.server.stop().await
    }
}

fn metric(page: &str, name: &str) -> anyhow::Result<u64> {
    counter(page, name).with_context(|| format!("{name} is not among the metrics"))
}

/// Returns a counter's value from a page of metrics in Prometheus' text format; all its series together.
fn counter(page: &str, name: &str) -> Option<u64> {
    let series = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '{']))?;
        rest.rsplit_once(' ')?.1.parse::<u64>().ok()
    });
    series.fold(None, |sum, value| Some(sum.unwrap_or_default() + value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_the_sum_of_its_series_and_of_no_other() {
        let page = "# TYPE clicks_total counter\nclicks_total{class=\"human\"} 7\nclicks_total{class=\"bot\"} 2\n\
                    clicks_total_other 100\nplain_total 3\n";
        assert_eq!(counter(page, "clicks_total"), Some(9));
        assert_eq!(counter(page, "plain_total"), Some(3));
        assert_eq!(counter(page, "absent_total"), None);
    }
}
