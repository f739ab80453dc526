//! The environment variables that the four services run with.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use devstack::{Error, ports};
use serde::{Deserialize, Serialize};

use crate::state::Secrets;

/// The services' programs and their one environment.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Services {
    /// Each service's program.
    pub(crate) programs: BTreeMap<String, PathBuf>,
    /// Variables on top of the caller's own environment.
    pub(crate) variables: BTreeMap<String, String>,
}

impl Services {
    /// One program without an environment, where it was built beside the program that runs.
    pub(crate) fn beside_this_program(name: &str) -> Option<Self> {
        let path = std::env::current_exe().ok()?.with_file_name(name);
        path.is_file()
            .then(|| Self { programs: [(name.to_owned(), path)].into(), variables: BTreeMap::new() })
    }

    pub(crate) fn program(&self, name: &str) -> anyhow::Result<&Path> {
        self.programs.get(name).map(PathBuf::as_path).with_context(|| format!("there is no program {name}"))
    }
}

/// The addresses of everything that listens.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    pub(crate) api: SocketAddr,
    pub(crate) edge: SocketAddr,
    /// Each service's operations listener, by name.
    pub(crate) operations: BTreeMap<&'static str, SocketAddr>,
}

impl Addresses {
    /// Takes the usual ports where they are free, others where not.
    pub(crate) fn choose(listen: IpAddr) -> Result<Self, Error> {
        let public = |port| Ok::<_, Error>(SocketAddr::new(listen, ports::prefer(port)?));
        let local = |port| Ok::<_, Error>(SocketAddr::from(([127, 0, 0, 1], ports::prefer(port)?)));
        let operations = [("ingest", 9101), ("processor", 9102), ("api", 9103), ("dispatcher", 9104)];
        Ok(Self {
            api: public(8080)?,
            edge: public(8081)?,
            operations: operations
                .map(|(name, port)| Ok((name, local(port)?)))
                .into_iter()
                .collect::<Result<_, Error>>()?,
        })
    }

    /// The API's address as a client on this machine uses it.
    pub(crate) fn api_url(&self) -> String {
        url(self.api)
    }

    /// The edge's address as a client on this machine uses it.
    pub(crate) fn edge_url(&self) -> String {
        url(self.edge)
    }
}

/// The URL of a listener; one on all addresses is reached by the loopback one.
pub(crate) fn url(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(all) if all.ip().is_unspecified() => format!("http://127.0.0.1:{}", all.port()),
        SocketAddr::V6(all) if all.ip().is_unspecified() => format!("http://[::1]:{}", all.port()),
        other => format!("http://{other}"),
    }
}

/// The variables, from the engines' addresses, ours, the keys, and the folder of the edge's spool.
pub(crate) fn variables(
    engines: impl IntoIterator<Item = (&'static str, String)>,
    addresses: &Addresses,
    secrets: &Secrets,
    spool: &Path,
) -> BTreeMap<String, String> {
    let loopback = "127.0.0.0/8,::1/128";
    let mut variables: BTreeMap<String, String> = [
        ("HOPLINE_API_LISTEN", addresses.api.to_string()),
        ("HOPLINE_EDGE_LISTEN", addresses.edge.to_string()),
        ("HOPLINE_PUBLIC_URL", addresses.edge_url()),
        // A production configuration does neither: believe a client's word on its address, or call this machine.
        ("HOPLINE_TRUSTED_PROXIES", loopback.to_owned()),
        ("HOPLINE_WEBHOOK_ALLOW", loopback.to_owned()),
        // Its snapshot of the links is in it, too.
        ("HOPLINE_SPOOL_DIR", spool.display().to_string()),
        ("HOPLINE_CLICK_ID_KEYS", secrets.click_id_keys.clone()),
        ("HOPLINE_VISITOR_KEY", secrets.visitor_key.clone()),
        ("HOPLINE_SECRET_KEYS", secrets.secret_keys.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    variables.extend(engines.into_iter().map(|(name, value)| (name.to_owned(), value)));
    for (service, address) in &addresses.operations {
        variables
            .insert(format!("HOPLINE_{}_OPERATIONS_LISTEN", service.to_uppercase()), address.to_string());
    }
    // What the user of the stack has set stays: it is theirs to try.
    for (name, value) in [("RUST_LOG", "info"), ("HOPLINE_LOG_FORMAT", "text")] {
        if std::env::var_os(name).is_none() {
            variables.insert(name.to_owned(), value.to_owned());
        }
    }
    variables
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_addresses_is_reached_by_loopback() {
        assert_eq!(url("0.0.0.0:8080".parse().unwrap()), "http://127.0.0.1:8080");
        assert_eq!(url("[::]:8080".parse().unwrap()), "http://[::1]:8080");
        assert_eq!(url("10.0.0.1:8080".parse().unwrap()), "http://10.0.0.1:8080");
    }

    #[test]
    fn the_variables_name_the_chosen_ports_and_the_stacks_own_spool() {
        let addresses = Addresses {
            api: "127.0.0.1:1".parse().unwrap(),
            edge: "127.0.0.1:2".parse().unwrap(),
            operations: [("ingest", "127.0.0.1:3".parse().unwrap())].into(),
        };
        let secrets = Secrets::draw().unwrap();
        let spool = Path::new("/clone/.dev/data/spool");
        let variables = variables([("KAFKA_BROKERS", "k:9".to_owned())], &addresses, &secrets, spool);
        assert_eq!(variables["HOPLINE_API_LISTEN"], "127.0.0.1:1");
        assert_eq!(variables["HOPLINE_PUBLIC_URL"], "http://127.0.0.1:2");
        assert_eq!(variables["HOPLINE_INGEST_OPERATIONS_LISTEN"], "127.0.0.1:3");
        assert_eq!(variables["KAFKA_BROKERS"], "k:9");
        assert_eq!(variables["HOPLINE_SPOOL_DIR"], "/clone/.dev/data/spool");
    }
}
