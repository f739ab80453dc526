//! Creates topics, databases and tables.

use std::sync::Arc;
use std::time::Duration;

use devstack::{Kind, each_host};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use schemas::clickhouse::MIGRATIONS;
use schemas::grants::{self, User};
use schemas::topic;
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::isolated::{Database, Isolated};
use super::statements::{accepted, clickhouse};
use super::urls::{database_of, host_of, with_database};

/// Creates the topics. The topic of clicks has this number of partitions, and these settings override its own.
pub(super) async fn create_topics(
    isolated: &Isolated,
    click_partitions: i32,
    click_settings: &[(&str, &str)],
) {
    let admin: AdminClient<_> = isolated.kafka().create().unwrap();
    let names = topic::ALL.map(|topic| isolated.topic(topic));
    let replicas = isolated.topic_replicas();
    let topics: Vec<NewTopic<'_>> = std::iter::zip(topic::ALL, &names)
        .map(|(topic, name)| {
            let (partitions, instead) = if topic == topic::CLICKS {
                (click_partitions, click_settings)
            } else {
                (topic.partitions, &[][..])
            };
            let own = topic.config.iter().filter(|(key, _)| instead.iter().all(|(other, _)| other != key));
            let mut start = NewTopic::new(name, partitions, TopicReplication::Fixed(replicas));
            if replicas > 1 {
                start = start.set("min.insync.replicas", "2");
            }
            own.chain(instead).fold(start, |new, (key, value)| new.set(key, value))
        })
        .collect();
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
    for result in admin.create_topics(&topics, &options).await.unwrap() {
        result.unwrap();
    }
}

pub(super) async fn add_acls(isolated: &Isolated) {
    if isolated.has_users {
        acls::add(isolated.kafka(), grants::kafka(&isolated.topic_prefix)).await.unwrap();
    }
}

/// Creates a database on each server of ClickHouse.
pub(super) async fn create_clickhouse(isolated: &mut Isolated, servers: &[String]) {
    isolated.clickhouse_url = create_first_clickhouse(&servers[0], isolated).await;
    let name = database_of(&isolated.clickhouse_url);
    for server in &servers[1..] {
        accepted(server, &format!("CREATE DATABASE {name}"), Vec::new()).await;
        isolated.other_clickhouse.push(host_of(server));
    }
    let shared = Kind::ClickHouse.external_url().map(|url| each_host(&url)).unwrap_or_default();
    // A replica must be gone from ZooKeeper before another test creates one of the same path.
    let end = if servers.len() > 1 { " SYNC" } else { "" };
    let drop = |server: &String, name: &str, end: &str| {
        let statement = format!("DROP DATABASE IF EXISTS {name}{end}");
        Arc::new(Database { server: server.clone(), statement })
    };
    let shared = servers.iter().filter(|server| shared.contains(server));
    isolated.databases = shared.clone().map(|server| drop(server, &name, end)).collect();
    // The claim comes last: a server forgets a database's name before the database's tables are gone.
    let claims = shared.take(1).map(|server| drop(server, &claim_of(&name), ""));
    isolated.databases.extend(claims);
}

/// The name of the database whose creation claims a name, on the first server.
fn claim_of(name: &str) -> String {
    format!("{name}_claimed")
}

/// Creates a database, and returns its URL.
pub(super) async fn create_first_clickhouse(url: &str, isolated: &Isolated) -> String {
    if !isolated.has_users {
        let name = isolated.name();
        accepted(url, &format!("CREATE DATABASE {name}"), Vec::new()).await;
        return with_database(url, name);
    }
    // Picks a database that has its own users.
    let of_migrate = devstack::clickhouse::user_of("", User::Migrate);
    let list = format!(
        "SELECT substring(name, 1, length(name) - {}) FROM system.users WHERE endsWith(name, '{of_migrate}')",
        of_migrate.len()
    );
    let names = clickhouse(url, &list, Vec::new()).await.unwrap();
    let names: Vec<&str> = names.lines().collect();
    // Other test programs pick one at the same time.
    let drawn = u32::from_be_bytes(*uuid::Uuid::now_v7().as_bytes().last_chunk().unwrap());
    let first = usize::try_from(drawn).unwrap() % names.len();
    for name in names.iter().cycle().skip(first).take(names.len()) {
        match clickhouse(url, &format!("CREATE DATABASE {}", claim_of(name)), Vec::new()).await {
            Ok(_) => {
                // A database that its test could not drop keeps its name, and now the claim, too.
                if clickhouse(url, &format!("CREATE DATABASE {name}"), Vec::new()).await.is_ok() {
                    return with_database(url, name);
                }
            }
            Err(error) => assert!(error.contains("DATABASE_ALREADY_EXISTS"), "{error}"),
        }
    }
    panic!("all {} databases are in use", names.len());
}

/// Creates the tables on the first server, then the same tables on the others.
pub(super) async fn migrate_clickhouse(isolated: &Isolated) {
    let is_cluster = isolated.is_replicated();
    let url =
        if is_cluster { isolated.clickhouse_url.clone() } else { isolated.clickhouse_url_of(User::Migrate) };
    for statement in MIGRATIONS.iter().flat_map(|migration| migration.statements(is_cluster)) {
        accepted(&url, &statement, Vec::new()).await;
    }
    if !is_cluster {
        return;
    }
    let tables =
        "SELECT create_table_query FROM system.tables WHERE database = currentDatabase() FORMAT TSVRaw";
    for create in isolated.clickhouse(tables).await.split("\nCREATE ") {
        let create = create.trim_start_matches("CREATE ");
        for other in &isolated.every_clickhouse()[1..] {
            accepted(other, &format!("CREATE {create}"), Vec::new()).await;
        }
    }
}

/// Creates a database, and returns its URL.
pub(super) async fn create_postgres(url: &str, isolated: &Isolated) -> String {
    let mut admin = PgConnection::connect(url).await.unwrap();
    let owner = if isolated.has_users { format!(" OWNER {}", User::Migrate.name()) } else { String::new() };
    let create = format!("CREATE DATABASE {}{owner}", isolated.name());
    admin.execute(sqlx::AssertSqlSafe(create)).await.unwrap();
    with_database(url, isolated.name())
}

pub(super) async fn migrate_postgres(isolated: &Isolated) {
    let mut owner = PgConnection::connect(&isolated.primary_url_of(User::Migrate)).await.unwrap();
    sqlx::migrate!("../schemas/postgres").run(&mut owner).await.unwrap();
    if isolated.has_users {
        let grants: Vec<String> = grants::postgres().into_iter().map(|(_, grant)| grant).collect();
        owner.execute(sqlx::AssertSqlSafe(grants.join(";\n"))).await.unwrap();
    }
}
