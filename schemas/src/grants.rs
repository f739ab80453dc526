//! The least privileges of each program's user on each engine. `api migrate --print-grants` prints them, and the tests
//! run the programs under exactly these.

use std::fmt;

use crate::topic::{self, Topic};

/// A user of the engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// `api migrate`.
    Migrate,
    /// The management API and `api admin`.
    Api,
    /// The redirect edge.
    Ingest,
    /// The processor and its commands.
    Processor,
    /// The dispatcher.
    Dispatcher,
}

impl User {
    /// Every user.
    pub const ALL: [Self; 5] = [Self::Migrate, Self::Api, Self::Ingest, Self::Processor, Self::Dispatcher];

    /// Returns the user as which a program runs.
    #[must_use]
    pub fn of(program: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|user| user.name().strip_prefix("hopline_") == Some(program))
    }

    /// Returns the user's name on every engine.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Migrate => "hopline_migrate",
            Self::Api => "hopline_api",
            Self::Ingest => "hopline_ingest",
            Self::Processor => "hopline_processor",
            Self::Dispatcher => "hopline_dispatcher",
        }
    }
}

/// The tables of Postgres, with what the API and the dispatcher may do.
const POSTGRES: [(&str, &str, &str); 33] = {
    const READ: &str = "SELECT";
    const ADD: &str = "SELECT, INSERT";
    const CHANGE: &str = "SELECT, INSERT, UPDATE";
    const QUEUE: &str = "SELECT, INSERT, DELETE";
    const ALL: &str = "SELECT, INSERT, UPDATE, DELETE";
    [
        ("accounts", ALL, READ),
        ("api_keys", ALL, ""),
        // Entries stay; the names in those of a deleted account go.
        ("audit_trail", "SELECT, INSERT, UPDATE (details)", ""),
        ("blocked_hosts", QUEUE, ""),
        ("conversion_days", ALL, ""),
        ("conversions", ALL, ""),
        ("deleted_links", ADD, ""),
        ("dispatchers", "", QUEUE),
        ("edge_tokens", ALL, ""),
        ("endpoints_version", "SELECT, UPDATE", "SELECT, UPDATE"),
        ("former_slugs", ALL, ""),
        ("idempotency_keys", ALL, ""),
        ("import_bytes", ALL, ""),
        ("link_import_pieces", QUEUE, ""),
        ("link_import_refusals", QUEUE, ""),
        ("link_imports", ALL, ""),
        ("link_tags", QUEUE, ""),
        ("links", ALL, ""),
        ("outbox", QUEUE, ""),
        ("recovery_codes", QUEUE, ""),
        ("request_windows", ALL, ""),
        ("sessions", ALL, ""),
        ("sign_in_attempts", ALL, ""),
        ("users", ALL, ""),
        ("webhook_deliveries", ADD, ALL),
        ("webhook_endpoints", ALL, "SELECT, UPDATE"),
        ("webhook_failed_deliveries", READ, ALL),
        ("webhook_failures", READ, ALL),
        ("webhook_finished", READ, QUEUE),
        ("webhook_health", READ, ALL),
        ("webhook_notices", "", ADD),
        ("webhook_offsets", "", CHANGE),
        ("workspaces", ALL, READ),
    ]
};

/// Returns the statements that give each user exactly its rights on the tables of Postgres, which exist already. The
/// owner of the tables runs them: `api migrate` for those of these users that exist.
pub fn postgres() -> Vec<(User, String)> {
    let mut statements = Vec::new();
    for user in [User::Api, User::Dispatcher, User::Ingest] {
        let name = user.name();
        statements.push((user, format!("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {name}")));
        statements.push((user, format!("GRANT USAGE ON SCHEMA public TO {name}")));
        for (table, api, dispatcher) in POSTGRES {
            let rights = match user {
                User::Api => api,
                User::Dispatcher => dispatcher,
                // For HOPLINE_LOOKUP_DATABASE_URL.
                _ if table == "links" => "SELECT",
                _ => "",
            };
            if !rights.is_empty() {
                statements.push((user, format!("GRANT {rights} ON {table} TO {name}")));
            }
        }
    }
    statements
}

/// The tables of ClickHouse, with what the API and the processor may do.
const CLICKHOUSE: [(&str, &str, &str); 17] = {
    const READ: &str = "SELECT";
    const ADD: &str = "SELECT, INSERT";
    const ALL: &str = "SELECT, INSERT, ALTER DELETE";
    [
        ("audits", READ, ADD),
        ("breakdowns", READ, ALL),
        ("clicks", READ, ALL),
        ("conversions", READ, ALL),
        ("counts", READ, ALL),
        ("deleted_links", READ, ADD),
        ("intake_positions", "", ADD),
        ("owners", "", ADD),
        ("progress", READ, ADD),
        ("purges", "", ADD),
        ("rebuilds", "", ADD),
        ("recounts", "", ADD),
        ("retention", ADD, READ),
        ("slices", READ, ADD),
        ("sources", READ, ADD),
        ("stretches", "", ADD),
        ("waiting_conversions", "", ALL),
    ]
};

/// Prefix of the tables in which the processor rebuilds a day.
pub const STAGING: &str = "clicks_staging_";

/// Returns the rights of each user in ClickHouse, as `GRANT … ON …`, on a single server or in a cluster; the tables
/// need not exist yet.
pub fn clickhouse(database: &str, in_cluster: bool) -> Vec<(User, String)> {
    let mut grants = vec![(User::Migrate, format!("GRANT ALL ON `{database}`.*"))];
    for engine in [
        "MergeTree",
        "ReplacingMergeTree",
        // In a cluster.
        "ReplicatedMergeTree",
        "ReplicatedReplacingMergeTree",
    ] {
        grants.push((User::Migrate, format!("GRANT TABLE ENGINE ON {engine}")));
    }
    for (table, of_api, of_processor) in CLICKHOUSE {
        for (user, rights) in [(User::Api, of_api), (User::Processor, of_processor)] {
            if !rights.is_empty() {
                grants.push((user, format!("GRANT {rights} ON `{database}`.{table}")));
            }
        }
    }
    // In a cluster, reading begins when the replica has all rows, and `/readyz` names one that is read-only.
    for user in [User::Api, User::Processor] {
        grants.push((user, format!("GRANT SYSTEM SYNC REPLICA ON `{database}`.*")));
        grants.push((user, "GRANT SELECT ON system.parts".to_owned()));
    }
    for user in [User::Api, User::Processor, User::Migrate] {
        grants.push((user, "GRANT SELECT ON system.replicas".to_owned()));
        if in_cluster {
            grants.push((user, "GRANT SELECT ON system.clusters".to_owned()));
        }
    }
    // Of several shards, one reads the tables of all.
    for user in [User::Api, User::Processor].into_iter().filter(|_| in_cluster) {
        grants.push((user, "GRANT CREATE TEMPORARY TABLE, REMOTE ON *.*".to_owned()));
    }
    // A day is rebuilt in a table of its own. Statements of a former owner of a source are stopped.
    let staging =
        format!("GRANT CREATE TABLE, DROP TABLE, TRUNCATE, SELECT, INSERT ON `{database}`.{STAGING}*");
    grants.push((User::Processor, staging));
    grants.push((User::Processor, "GRANT TABLE ENGINE ON MergeTree".to_owned()));
    for table in ["processes", "tables"] {
        grants.push((User::Processor, format!("GRANT SELECT ON system.{table}")));
    }
    grants
}

/// What a user may do with some resources of Kafka.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    /// The user.
    pub user: User,
    /// The operations.
    pub operations: &'static [Operation],
    /// The resources.
    pub resources: Vec<Resource>,
}

/// An operation on a resource of Kafka; Read and Write include Describe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "Kafka's own names")]
pub enum Operation {
    Read,
    Write,
    Create,
    Describe,
    DescribeConfigs,
    AlterConfigs,
}

/// A resource of Kafka, by its full name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// A topic.
    Topic(String),
    /// A consumer group.
    Group(String),
    /// The id of a transactional producer.
    TransactionalId(String),
    /// The cluster as a whole.
    Cluster,
}

impl fmt::Display for Acl {
    /// Writes the arguments of `kafka-acls.sh --add`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "--allow-principal User:{}", self.user.name())?;
        for operation in self.operations {
            write!(formatter, " --operation {operation:?}")?;
        }
        for resource in &self.resources {
            match resource {
                Resource::Topic(name) => write!(formatter, " --topic {name}")?,
                Resource::Group(name) => write!(formatter, " --group {name}")?,
                Resource::TransactionalId(name) => write!(formatter, " --transactional-id {name}")?,
                Resource::Cluster => write!(formatter, " --cluster")?,
            }
        }
        Ok(())
    }
}

/// Returns the rights of each user in Kafka, for topics, groups and ids with this prefix.
pub fn kafka(prefix: &str) -> Vec<Acl> {
    use Operation::{AlterConfigs, Create, Describe, DescribeConfigs, Read, Write};
    use User::{Api, Dispatcher, Ingest, Migrate, Processor};
    use topic::{CLICKS, CONVERSIONS, DEAD_LETTERS, LINK_EVENTS, LINKS};
    let named = |name: &str| format!("{prefix}{name}");
    let topics = |topics: &[Topic]| -> Vec<Resource> {
        topics.iter().map(|topic| Resource::Topic(named(topic.name))).collect()
    };
    let group = |name: &str| vec![Resource::Group(named(name))];
    let mut acls: Vec<Acl> = [
        (Ingest, &[Write][..], topics(&[CLICKS])),
        (Ingest, &[Read], topics(&[LINKS])),
        (
            Processor,
            &[Read],
            [
                topics(&[CLICKS, LINKS, CONVERSIONS, DEAD_LETTERS]),
                group("hopline-processor"),
                // Its member that has topic `links` runs upkeep.
                group("hopline-processor-upkeep"),
            ]
            .concat(),
        ),
        // It sends dead letters back to where they came from.
        (Processor, &[Write], topics(&[CLICKS, CONVERSIONS, LINK_EVENTS, DEAD_LETTERS])),
        (Api, &[Read], topics(&[CLICKS])),
        (
            Api,
            &[Write],
            [topics(&[LINKS, LINK_EVENTS, CONVERSIONS]), vec![Resource::TransactionalId(named("outbox"))]]
                .concat(),
        ),
        (Dispatcher, &[Read], [topics(&[CLICKS, LINK_EVENTS]), group("hopline-dispatcher")].concat()),
        (Dispatcher, &[Write], topics(&[DEAD_LETTERS])),
        (Migrate, &[Create, Describe, DescribeConfigs, AlterConfigs], topics(&topic::ALL)),
        // Of consumers that join no group: librdkafka asks for the coordinator of their group all the same.
        (Ingest, &[Describe], group("ingest-links")),
        (Processor, &[Describe], group("hopline-reader")),
        (Api, &[Describe], group("api-live")),
    ]
    .map(|(user, operations, resources)| Acl { user, operations, resources })
    .into();
    // `/readyz` reports a broker that does not flush its only replica.
    for user in [Ingest, Processor, Api, Dispatcher] {
        acls.push(Acl { user, operations: &[DescribeConfigs], resources: vec![Resource::Cluster] });
    }
    acls
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::clickhouse::MIGRATIONS;

    /// Returns the word after each occurrence of a text.
    fn words_after<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(before)
            .skip(1)
            .map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap())
    }

    #[test]
    fn every_table_is_listed() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/postgres");
        let files =
            std::fs::read_dir(folder).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()));
        let sql: String = files.map(Result::unwrap).collect();
        let created = ["CREATE TABLE ", "CREATE UNLOGGED TABLE "].map(|create| words_after(&sql, create));
        let created: BTreeSet<&str> = created.into_iter().flatten().collect();
        let listed: BTreeSet<&str> = POSTGRES.iter().map(|(table, ..)| *table).collect();
        assert_eq!(listed, created);

        let sql: String = MIGRATIONS.iter().flat_map(|migration| migration.statements(false)).collect();
        let created: BTreeSet<&str> = words_after(&sql, "CREATE TABLE IF NOT EXISTS ").collect();
        assert_eq!(CLICKHOUSE.iter().map(|(table, ..)| *table).collect::<BTreeSet<_>>(), created);
    }

    #[test]
    fn acls_have_the_format_of_kafkas_tool() {
        let written: Vec<String> = kafka("eu.").iter().map(Acl::to_string).collect();
        for expected in [
            "--allow-principal User:hopline_ingest --operation Write --topic eu.clicks",
            "--allow-principal User:hopline_dispatcher --operation Read \
             --topic eu.clicks --topic eu.link-events --group eu.hopline-dispatcher",
            "--allow-principal User:hopline_api --operation DescribeConfigs --cluster",
        ] {
            assert!(written.iter().any(|acl| acl == expected), "{written:#?}");
        }
    }
}
