//! Apache Kafka as one KRaft node or several, from its jars.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use futures_util::future::join_all;

use crate::process::{Launch, run};
use crate::tls::SERVERS;
use crate::{Error, Options, Probe, Server, Tls, ports, private, programs, random};

/// The user that may do everything.
pub const ADMINISTRATOR: &str = "hopline";

/// The services' variable with the brokers.
pub(crate) const BROKERS: &str = "KAFKA_BROKERS";

/// How users prove their passwords.
const MECHANISM: &str = "SCRAM-SHA-512";

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

/// Starts several brokers, which keep each topic on three of them. `options` are those of a broker, by its name, such
/// as `kafka-1`.
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
    private::create_folder(folder)?;
    // A test's broker has a second listener.
    let is_test = !options.users.is_empty() && !options.is_closed();
    let port = if is_test { ports::free_in_a_row(2)? } else { ports::prefer(options.port)? };
    let config = folder.join("server.properties");
    private::write(&config, &properties(&options, port, node))?;
    let logging = folder.join("log4j2.properties");
    private::write(&logging, LOGGING)?;

    let formatted = folder.join("formatted");
    if !formatted.exists() {
        let mut format = Command::new(&java);
        format.args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp"]).arg(&classes);
        // --ignore-formatted: repeats a format that was killed half-way.
        format.args(["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", &node.cluster]);
        // In a file, because passwords are not for the list of processes.
        let arguments = folder.join("arguments");
        private::write(&arguments, &format!("-c\n{}\n{}", config.display(), scram_users(&options)))?;
        format.arg(format!("@{}", arguments.display()));
        run("formatting Kafka's data folder", format).await?;
        fs::remove_file(&arguments).map_err(Error::file("remove", &arguments))?;
        private::write(&formatted, "")?;
    }

    let brokers = format!("127.0.0.1:{port}");
    let administrator = options.is_closed().then_some((ADMINISTRATOR, &*options.password));
    let tls = options.tls.as_ref().filter(|_| administrator.is_some());
    let client = settings(&brokers, administrator, tls).into_iter().collect();
    let probe = Probe::Kafka { client };
    let mut launch = Launch::new(java, options.log).arguments(["-Xms64m", "-Xmx512m", "-XX:+UseSerialGC"]);
    if !options.durable {
        // Test brokers run for seconds, in which the optimising compiler costs more than it saves.
        launch = launch.arguments(["-XX:TieredStopAtLevel=1"]);
    }
    let logging = format!("-Dlog4j2.configurationFile={}", logging.display());
    launch = launch.arguments(["-XX:+ExitOnOutOfMemoryError".to_owned(), logging, "-cp".to_owned()]);
    launch = launch.arguments([classes.into_os_string(), "kafka.Kafka".into(), config.into_os_string()]);
    Server::start_engine(&options.name, &brokers, launch, probe, options.scratch).await
}

/// Returns the addresses of the listeners that ask for a user, by those of a test's that do not.
pub fn with_users(brokers: &str) -> String {
    let next = |port: &str| Some(port.parse::<u16>().ok()? + 1);
    let with_next = |broker: &str| {
        let next = broker.rsplit_once(':').and_then(|(host, port)| Some(format!("{host}:{}", next(port)?)));
        next.unwrap_or_else(|| broker.to_owned())
    };
    brokers.split(',').map(with_next).collect::<Vec<_>>().join(",")
}

/// Returns librdkafka's settings of a client, as a user with a password if the listener asks for one.
pub fn settings(brokers: &str, user: Option<(&str, &str)>, tls: Option<&Tls>) -> BTreeMap<String, String> {
    let protocol = if tls.is_some() { "sasl_ssl" } else { "sasl_plaintext" };
    let user = user.map(|(name, password)| {
        [
            ("security.protocol", protocol),
            ("sasl.mechanism", MECHANISM),
            ("sasl.username", name),
            ("sasl.password", password),
        ]
    });
    let ca = tls.map(|tls| tls.ca.display().to_string());
    let ca = ca.as_deref().map(|ca| ("ssl.ca.location", ca));
    let settings = [("bootstrap.servers", brokers)].into_iter().chain(user.into_iter().flatten()).chain(ca);
    settings.map(|(setting, value)| (setting.to_owned(), value.to_owned())).collect()
}

/// Returns the variables with which the services take the settings of a client.
pub fn variables(settings: BTreeMap<String, String>) -> impl Iterator<Item = (String, String)> {
    settings.into_iter().map(|(setting, value)| match &*setting {
        "bootstrap.servers" => (BROKERS.to_owned(), value),
        _ => (format!("KAFKA_CONFIG_{}", setting.replace('.', "_").to_uppercase()), value),
    })
}

/// Returns the arguments, one on each line, with which Kafka's data begin with users.
fn scram_users(options: &Options) -> String {
    let users = options.users.iter().map(|(user, password)| (user.name(), password));
    let administrator = options.is_closed().then_some((ADMINISTRATOR, &options.password));
    let argument = |(name, password)| format!("--add-scram\n{MECHANISM}=[name={name},password={password}]\n");
    users.chain(administrator).map(argument).collect()
}

/// Returns the listeners for clients: one that asks nobody, unless the broker is closed, whose clients are the
/// administrator; and one for the users of [`schemas::grants`], who have no rights but those that [`acls::add`] adds.
///
/// Controllers prove who they are with the servers' certificate: the users are known once controllers agree.
fn listeners(options: &Options, port: u16, controller: u16) -> String {
    let address = format!("127.0.0.1:{port}");
    let open = (!options.is_closed()).then(|| format!("PLAINTEXT://{address}"));
    let of_users = if open.is_some() { with_users(&address) } else { address };
    let of_users = (!options.users.is_empty()).then(|| format!("USERS://{of_users}"));
    let between = if open.is_some() { "PLAINTEXT" } else { "USERS" };
    let clients: Vec<String> = open.into_iter().chain(of_users).collect();
    let clients = clients.join(",");
    let (sasl, ssl) =
        if options.tls.is_some() { ("SASL_SSL", "SSL") } else { ("SASL_PLAINTEXT", "PLAINTEXT") };
    let mut text = format!(
        "\
listeners={clients},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={clients}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,USERS:{sasl},CONTROLLER:{ssl}
inter.broker.listener.name={between}
"
    );
    if !options.users.is_empty() {
        let anybody = if options.is_closed() { "" } else { ";User:ANONYMOUS" };
        text += &format!(
            "\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{ADMINISTRATOR};User:CN={SERVERS}{anybody}
sasl.enabled.mechanisms={MECHANISM}
sasl.mechanism.inter.broker.protocol={MECHANISM}
listener.name.users.{}.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
username=\"{ADMINISTRATOR}\" password=\"{}\";
",
            MECHANISM.to_lowercase(),
            options.password
        );
    }
    if let Some(Tls { ca, server }) = &options.tls {
        text += &format!(
            "\
ssl.keystore.type=PEM
ssl.keystore.location={}
ssl.truststore.type=PEM
ssl.truststore.location={}
listener.name.controller.ssl.client.auth=required
",
            server.display(),
            ca.display()
        );
    }
    text
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
    let (of_cluster, listeners) = (node.settings(), listeners(options, port, node.controller()));
    format!(
        "\
process.roles=broker,controller
{of_cluster}\
controller.listener.names=CONTROLLER
{listeners}log.dirs={data}

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
        options.users.clear();
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
