//! Starts, uses, kills and restarts the real engines, and checks that nothing is left of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use devstack::clickhouse_cluster::start_cluster;
use devstack::process::{descendants, is_alive};
use devstack::{Cause, Kind, Options, Server, clickhouse, readiness};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{FutureProducer, FutureRecord};
use sqlx::{Connection as _, Executor as _, PgConnection};

/// Set in the process that [`a_parent_killed_with_sigkill_leaves_no_process`] starts and kills.
const PARENT: &str = "DEVSTACK_TEST_PARENT";

/// How long a test waits for a condition, even on a busy machine. Only a failing test waits this long.
const DEADLINE: Duration = Duration::from_secs(240);

async fn throw_away(kind: Kind) -> Server {
    kind.start(Options::throw_away(kind.name()).unwrap()).await.unwrap()
}

async fn query(url: &str, statement: &str) -> Result<String, Cause> {
    clickhouse::query(url, None, statement).await
}

/// Returns the temporary folder of an engine.
fn scratch_of(server: &Server) -> PathBuf {
    server.launch().log.parent().unwrap().to_path_buf()
}

/// Returns the server's process and all its descendants.
fn processes(server: &Server) -> Vec<u32> {
    let pid = server.pid().unwrap();
    let mut all = descendants(pid);
    all.push(pid);
    all
}

fn assert_removed(processes: &[u32], folder: &Path) {
    let alive: Vec<_> = processes.iter().filter(|pid| is_alive(**pid)).collect();
    assert!(alive.is_empty(), "still running: {alive:?}");
    assert!(!folder.exists(), "{} is still there", folder.display());
}

#[tokio::test]
async fn kafka_keeps_messages_after_a_kill_and_creates_no_topics() {
    let kafka = throw_away(Kind::Kafka).await;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka.url()).set("group.id", "test").set("auto.offset.reset", "earliest");

    let admin: AdminClient<_> = config.create().unwrap();
    let topic = NewTopic::new("notes", 1, TopicReplication::Fixed(1));
    let created = admin.create_topics([&topic], &AdminOptions::new()).await.unwrap();
    assert!(created.iter().all(Result::is_ok), "{created:?}");
    let producer: FutureProducer = config.create().unwrap();
    producer.send(FutureRecord::to("notes").key("k").payload("kept"), DEADLINE).await.unwrap();
    let hasty: FutureProducer = config.clone().set("message.timeout.ms", "3000").create().unwrap();
    let sent = hasty.send(FutureRecord::<(), _>::to("typo").payload("lost"), DEADLINE).await;
    assert!(sent.is_err(), "{sent:?}");
    let metadata = admin.inner().fetch_metadata(None, DEADLINE).unwrap();
    assert!(metadata.topics().iter().all(|topic| topic.name() != "typo"));

    let address = kafka.url().to_owned();
    kafka.kill().await;
    assert!(kafka.check().await.is_err());
    kafka.start().await.unwrap();
    assert_eq!(kafka.url(), address);

    let read = tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = config.create().unwrap();
        consumer.subscribe(&["notes"]).unwrap();
        loop {
            // Errors come from reconnecting; the caller's deadline ends the loop.
            if let Some(Ok(message)) = consumer.poll(Duration::from_millis(200)) {
                return rdkafka::Message::payload(&message).map(<[u8]>::to_vec);
            }
        }
    });
    let payload = tokio::time::timeout(DEADLINE, read).await.unwrap().unwrap();
    assert_eq!(payload.as_deref(), Some(&b"kept"[..]));

    let (processes, folder) = (processes(&kafka), scratch_of(&kafka));
    drop(kafka);
    assert_removed(&processes, &folder);
}

#[tokio::test]
async fn clickhouse_keeps_rows_after_a_kill() {
    let clickhouse = throw_away(Kind::ClickHouse).await;
    let url = clickhouse.url().to_owned();
    query(&url, "CREATE TABLE hopline.notes (text String) ENGINE = MergeTree ORDER BY text").await.unwrap();
    query(&url, "INSERT INTO hopline.notes VALUES ('kept')").await.unwrap();

    clickhouse.kill().await;
    assert!(clickhouse.check().await.is_err());
    clickhouse.start().await.unwrap();
    assert_eq!(query(&url, "SELECT text FROM hopline.notes").await.unwrap().trim(), "kept");

    let (processes, folder) = (processes(&clickhouse), scratch_of(&clickhouse));
    clickhouse.stop().await;
    drop(clickhouse);
    assert_removed(&processes, &folder);
}

#[tokio::test]
async fn clickhouse_replicas_exchange_rows_even_after_a_kill() {
    let cluster = start_cluster(1, 2, Options::throw_away).await.unwrap();
    let [first, second] = &cluster.shards[0][..] else { panic!("{cluster:?}") };
    for replica in [first, second] {
        let sql = "CREATE TABLE hopline.notes (text String) \
                   ENGINE = ReplicatedMergeTree('/test/{shard}/notes', '{replica}') ORDER BY text";
        query(replica.url(), sql).await.unwrap();
    }
    query(first.url(), "INSERT INTO hopline.notes VALUES ('one')").await.unwrap();
    query(second.url(), "SYSTEM SYNC REPLICA hopline.notes").await.unwrap();
    second.kill().await;
    query(first.url(), "INSERT INTO hopline.notes VALUES ('two')").await.unwrap();
    second.start().await.unwrap();
    // The replica is read-only until it has reconnected to ZooKeeper.
    let sync = || query(second.url(), "SYSTEM SYNC REPLICA hopline.notes");
    readiness::until("the replica", DEADLINE, sync).await.unwrap();
    let notes = "SELECT groupArray(text) FROM (SELECT text FROM hopline.notes ORDER BY text)";
    assert_eq!(query(second.url(), notes).await.unwrap().trim(), "['one','two']");
}

#[tokio::test]
async fn clickhouse_applies_the_profile_and_the_password() {
    let clickhouse = throw_away(Kind::ClickHouse).await;
    let url = clickhouse.url();
    let settings = "SELECT getSetting('http_receive_timeout'), getSetting('async_insert'), currentUser()";
    assert_eq!(query(url, settings).await.unwrap().trim(), "5\tfalse\thopline");
    assert!(query(&url.replace("hopline:hopline@", "hopline:wrong@"), "SELECT 1").await.is_err());
    // The library's user has no password, and no rights.
    let own = url.replace("hopline:hopline@", "default:@");
    assert!(query(&own, "CREATE DATABASE other").await.is_err());
}

#[tokio::test]
async fn postgres_keeps_data_after_a_kill() {
    let postgres = throw_away(Kind::Postgres).await;
    let mut connection = PgConnection::connect(postgres.url()).await.unwrap();
    connection.execute("CREATE TABLE notes (text text); INSERT INTO notes VALUES ('kept')").await.unwrap();
    postgres.kill().await;
    assert!(postgres.check().await.is_err());
    postgres.start().await.unwrap();
    let mut connection = PgConnection::connect(postgres.url()).await.unwrap();
    let text: String = sqlx::query_scalar("SELECT text FROM notes").fetch_one(&mut connection).await.unwrap();
    assert_eq!(text, "kept");

    let (processes, folder) = (processes(&postgres), scratch_of(&postgres));
    assert!(processes.len() > 1, "Postgres has child processes");
    drop(postgres);
    assert_removed(&processes, &folder);
}

#[tokio::test]
async fn the_downloaded_postgres_runs() {
    let options = Options::throw_away("postgres").unwrap();
    let programs = options.cache.postgres_package().await.unwrap();
    let postgres = devstack::postgres::start_from(programs, options).await.unwrap();
    postgres.check().await.unwrap();
    let (processes, folder) = (processes(&postgres), scratch_of(&postgres));
    postgres.restart().await.unwrap();
    drop(postgres);
    assert_removed(&processes, &folder);
}

#[tokio::test]
async fn a_failed_start_reports_the_end_of_the_log() {
    let options = Options::throw_away("postgres").unwrap();
    let folder = options.folder.clone();
    std::fs::create_dir_all(folder.join("data")).unwrap();
    let error = Kind::Postgres.start(options).await.unwrap_err().to_string();
    assert!(error.contains("postgres ended") && error.contains("postgresql.conf"), "{error}");
}

#[test]
fn a_parent_killed_with_sigkill_leaves_no_process() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if std::env::var_os(PARENT).is_some() {
        runtime.block_on(async {
            let (postgres, clickhouse) =
                tokio::join!(throw_away(Kind::Postgres), throw_away(Kind::ClickHouse));
            let all = [processes(&postgres), processes(&clickhouse)].concat();
            let mut output = std::io::stdout().lock();
            writeln!(output, "\nprocesses {all:?}").and_then(|()| output.flush()).unwrap();
            drop(output);
            std::future::pending::<()>().await;
        });
    }
    // Runs this test in another process, as the parent to kill.
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_parent_killed_with_sigkill_leaves_no_process", "--nocapture"])
        .env(PARENT, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(parent.stdout.take().unwrap());
    let list = output
        .by_ref()
        .lines()
        .map(Result::unwrap)
        .find_map(|line| Some(line.strip_prefix("processes ")?.to_owned()));
    let processes: Vec<u32> = serde_json::from_str(&list.expect("the parent started its engines")).unwrap();
    // Some of Postgres's processes end soon after a start.
    assert!(processes.iter().filter(|pid| is_alive(**pid)).count() > 2);

    parent.kill().unwrap();
    parent.wait().unwrap();
    runtime.block_on(async {
        readiness::until("the end of all processes", DEADLINE, || async {
            let alive: Vec<_> = processes.iter().filter(|pid| is_alive(**pid)).collect();
            if alive.is_empty() { Ok(()) } else { Err(format!("{alive:?} are still running").into()) }
        })
        .await
        .unwrap();
    });
}

#[tokio::test]
async fn the_country_crawler_and_browser_data_are_installed() {
    let cache = devstack::install::Cache::shared();
    let files = cache.data().await.unwrap();
    for name in ["country.mmdb", "crawler-user-agents.json", "uap-core.json"] {
        assert!(std::fs::metadata(files.join(name)).unwrap().len() > 100_000, "{name}");
    }
    let rules: serde_json::Value =
        serde_json::from_slice(&std::fs::read(files.join("uap-core.json")).unwrap()).unwrap();
    assert!(rules["user_agent_parsers"].as_array().unwrap().len() > 300);
    assert!(cache.browsers().await.unwrap().is_file());
}
