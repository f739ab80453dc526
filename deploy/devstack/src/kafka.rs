//! Apache Kafka as one KRaft node or several, from its jars.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures_util::future::join_all;
use schemas::grants::User;

use crate::process::{Launch, run};
use crate::{Error, Options, Probe, Server, ports, programs, random};

/// Kafka's logging configuration.
const LOGGING: &str = "\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX} %-5p %c{1}: %m%n
";

/// Starts a broker and waits until it answers; its URL is `host:port`.
///
/// # Errors
/// The reason why it cannot be installed, formatted or started.
pub async fn start(options: Options) -> Result<Server, Error> {
    let cluster = cluster_of([&options])?;
    start_node(options, &Node { id: 1, controllers: vec![ports::free()?], cluster }).await
}

/// Starts several brokers, which keep each topic on three of them. `options` are those of a broker, by its name, such as
/// `kafka-1`.
///
/// # Errors
/// As [`start`].
pub async fn start_cluster(
    brokers: usize,
    options: impl Fn(&str) -> Result<Options, Error>,
) -> Result<Vec<Server>, Error> {
    let controllers = (0..brokers).map(|_| ports::free()).collect::<Result<Vec<_>, _>>()?;
    let name = |id| if brokers == 1 { "kafka".to_owned() } else { format!("kafka-{id}") };
    let options = (1..=brokers).map(|id| options(&name(id))).collect::<Result<Vec<_>, _>>()?;
    let cluster = cluster_of(&options)?;
    // None is ready before most of them run.
    let start = async |(index, options)| {
        let node = Node { id: index + 1, controllers: controllers.clone(), cluster: cluster.clone() };
        start_node(options, &node).await
    };
    join_all(options.into_iter().enumerate().map(start)).await.into_iter().collect()
}

/// Returns the id of the cluster that one of these brokers is in already, or else a new one.
fn cluster_of<'a>(brokers: impl IntoIterator<Item = &'a Options>) -> Result<String, Error> {
    let known = |options: &Options| {
        let properties = fs::read_to_string(data_of(options).join("meta.properties")).ok()?;
        properties.lines().find_map(|line| line.strip_prefix("cluster.id=").map(str::to_owned))
    };
    brokers.into_iter().find_map(known).map_or_else(cluster_id, Ok)
}

fn data_of(options: &Options) -> PathBuf {
    options.folder.join("data")
}

/// A broker's place in its cluster.
struct Node {
    /// From 1 on.
    id: usize,
    /// The ports of all brokers' controllers.
    controllers: Vec<u16>,
    /// The cluster's id.
    cluster: String,
}

impl Node {
    fn controller(&self) -> u16 {
        self.controllers[self.id - 1]
    }

    /// Returns the settings that depend on how many brokers there are.
    fn settings(&self) -> String {
        let voters: Vec<String> = self
            .controllers
            .iter()
            .enumerate()
            .map(|(index, port)| format!("{}@127.0.0.1:{port}", index + 1))
            .collect();
        let replicas = self.controllers.len().min(3);
        // The last of several to stop would wait for a controller that has none of the others left to agree with.
        let orderly = self.controllers.len() == 1;
        // A static voter: unlike a dynamic quorum it lets the controller's port change between runs.
        format!(
            "\
node.id={id}
controller.quorum.voters={voters}
controlled.shutdown.enable={orderly}
default.replication.factor={replicas}
offsets.topic.replication.factor={replicas}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync}
",
            id = self.id,
            voters = voters.join(","),
            in_sync = replicas.saturating_sub(1).max(1),
        )
    }
}

async fn start_node(options: Options, node: &Node) -> Result<Server, Error> {
    let java = programs::java()?;
    let classes = options.cache.kafka().await?.join("*");
    let folder = &options.folder;
    fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    let port = if options.users { ports::free_in_a_row(2)? } else { ports::prefer(options.port)? };
    let config = folder.join("server.properties");
    write(&config, &properties(&options, port, node))?;
    let logging = folder.join("log4j2.properties");
    write(&logging, LOGGING)?;

    let formatted = folder.join("formatted");
    if !formatted.exists() {
        let mut format = Command::new(&java);
        format.args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp"]).arg(&classes);
        // --ignore-formatted: repeats a format that was killed half-way.
        format.args(["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", &node.cluster, "-c"]);
        format.arg(&config);
        run("formatting Kafka's data folder", format).await?;
        write(&formatted, "")?;
    }

    let brokers = format!("127.0.0.1:{port}");
    let mut launch = Launch::new(java, options.log).arguments(["-Xms64m", "-Xmx512m", "-XX:+UseSerialGC"]);
    if !options.durable {
        // Test brokers run for seconds, in which the optimising compiler costs more than it saves.
        launch = launch.arguments(["-XX:TieredStopAtLevel=1"]);
    }
    let logging = format!("-Dlog4j2.configurationFile={}", logging.display());
    launch = launch.arguments(["-XX:+ExitOnOutOfMemoryError".to_owned(), logging, "-cp".to_owned()]);
    launch = launch.arguments([classes.into_os_string(), "kafka.Kafka".into(), config.into_os_string()]);
    let probe = Probe::Kafka { brokers: brokers.clone() };
    Server::start_engine(&options.name, &brokers, launch, probe, options.scratch).await
}

/// Returns the addresses of the listeners that ask for a user, by those of the ones that do not.
pub fn with_users(brokers: &str) -> String {
    let next = |port: &str| Some(port.parse::<u16>().ok()? + 1);
    let with_next = |broker: &str| {
        let next = broker.rsplit_once(':').and_then(|(host, port)| Some(format!("{host}:{}", next(port)?)));
        next.unwrap_or_else(|| broker.to_owned())
    };
    brokers.split(',').map(with_next).collect::<Vec<_>>().join(",")
}

/// The second listener, at which the users of [`schemas::grants`] have no rights but those that the administrator adds.
/// Who connects to the first one is the administrator.
fn listener_of_users(options: &Options) -> String {
    let users = User::ALL.map(|user| format!("user_{}=\"{}\"", user.name(), options.password)).join(" ");
    let keys = options.tls.as_ref().map_or_else(String::new, |tls| {
        format!(
            "listener.name.users.ssl.keystore.type=PEM\nlistener.name.users.ssl.keystore.location={}\n",
            tls.display()
        )
    });
    format!(
        "\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
listener.name.users.sasl.enabled.mechanisms=PLAIN
listener.name.users.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {users};
{keys}"
    )
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::file("write", path))
}

/// Returns a random cluster id: the URL-safe base64 of 16 bytes.
fn cluster_id() -> Result<String, Error> {
    // Letters and digits only: a leading dash would be read as an option. Only two bits of the last of the 22
    // characters count; A is valid.
    const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let random: [u8; 21] = random::bytes()?;
    let drawn = random.iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
    Ok(drawn.chain(['A']).collect())
}

fn properties(options: &Options, port: u16, node: &Node) -> String {
    let (controller, of_cluster) = (node.controller(), node.settings());
    let [address, protocol, settings] = if options.users {
        let security = if options.tls.is_some() { "SASL_SSL" } else { "SASL_PLAINTEXT" };
        let address = with_users(&format!("127.0.0.1:{port}"));
        [format!(",USERS://{address}"), format!(",USERS:{security}"), listener_of_users(options)]
    } else {
        Default::default()
    };
    format!(
        "\
process.roles=broker,controller
{of_cluster}\
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port}{address},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{address}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT{protocol},CONTROLLER:PLAINTEXT
{settings}log.dirs={data}

# `api migrate` creates the topics; a typing error must not create one.
auto.create.topics.enable=false
# A consumer that joins an empty group reads at once.
group.initial.rebalance.delay.ms=0

offsets.topic.num.partitions=8
transaction.state.log.num.partitions=8
# A killed broker can register again once its former session has ended, after 9 s by default.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
# On one node, a power cut loses what is not on the disk: at most this many milliseconds. A topic's `flush.ms`
# has no effect without it.
log.flush.scheduler.interval.ms=1000
# The default of 128 MiB is a quarter of the heap.
log.cleaner.dedupe.buffer.size=16777216
",
        data = data_of(options).display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advertised_address_is_the_listener() {
        let mut options = Options::throw_away("kafka").unwrap();
        options.users = false;
        let node = Node { id: 1, controllers: vec![5678], cluster: cluster_id().unwrap() };
        let text = properties(&options, 1234, &node);
        assert!(text.contains("\nadvertised.listeners=PLAINTEXT://127.0.0.1:1234\n"));
        assert!(text.contains("\nlisteners=PLAINTEXT://127.0.0.1:1234,CONTROLLER://127.0.0.1:5678\n"));
        assert!(text.contains("\ncontroller.quorum.voters=1@127.0.0.1:5678\n"));
    }

    #[test]
    fn a_broker_without_data_joins_the_cluster_of_the_others() {
        let [first, second] = ["kafka-1", "kafka-2"].map(|name| Options::throw_away(name).unwrap());
        fs::create_dir_all(data_of(&second)).unwrap();
        let properties = "#\ncluster.id=Kw4dmV3sTB6pXqQb7Jz0AA\nnode.id=2\n";
        fs::write(data_of(&second).join("meta.properties"), properties).unwrap();
        assert_eq!(cluster_of([&first, &second]).unwrap(), "Kw4dmV3sTB6pXqQb7Jz0AA");
    }

    #[test]
    fn a_cluster_id_is_random_and_has_22_characters() {
        let id = cluster_id().unwrap();
        assert_eq!(id.len(), 22);
        assert_ne!(id, cluster_id().unwrap());
    }
}
