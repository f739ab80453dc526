//! `api migrate --print-grants` and `--add-acls`: the least privileges of the programs' users, for administrators of
//! the engines.

use std::fmt::Write as _;

use anyhow::Context as _;
use clap::ValueEnum;
use schemas::grants::{self, User};
use service::kafka::KafkaConfig;

/// An engine whose rights are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "their names")]
pub enum Engine {
    Postgres,
    #[value(name = "clickhouse")]
    ClickHouse,
    Kafka,
}

/// Returns the rights on one engine or on all: SQL for Postgres and ClickHouse, commands for Kafka. Names of topics,
/// groups and ids start with `prefix`.
pub(crate) fn print(
    engine: Option<Engine>,
    clickhouse_database: &str,
    in_cluster: bool,
    prefix: &str,
) -> String {
    let engines = engine.map_or_else(|| Engine::value_variants().to_vec(), |engine| vec![engine]);
    let texts: Vec<String> = engines
        .into_iter()
        .map(|engine| match engine {
            Engine::Postgres => postgres(),
            Engine::ClickHouse => clickhouse(clickhouse_database, in_cluster),
            Engine::Kafka => kafka(prefix),
        })
        .collect();
    texts.join("\n")
}

fn postgres() -> String {
    let mut text = "\
-- Postgres: create the roles, and give hopline_migrate the database:
"
    .to_owned();
    for user in [User::Migrate, User::Api, User::Dispatcher, User::Ingest] {
        let _ = writeln!(text, "--   CREATE ROLE {} LOGIN PASSWORD '…';", user.name());
    }
    let _ = writeln!(text, "--   ALTER DATABASE … OWNER TO {};", User::Migrate.name());
    text.push_str(
        "\
-- `api migrate`, run as hopline_migrate, grants the rest to those of the roles that exist:
",
    );
    for (_, grant) in grants::postgres() {
        let _ = writeln!(text, "{grant};");
    }
    text
}

fn clickhouse(database: &str, in_cluster: bool) -> String {
    let mut text = "\
-- ClickHouse: create the users and grant their rights before the first `api migrate`, and again after each upgrade:
"
    .to_owned();
    for user in [User::Migrate, User::Api, User::Processor] {
        let _ = writeln!(text, "--   CREATE USER {} IDENTIFIED BY '…';", user.name());
    }
    for (user, grant) in grants::clickhouse(database, in_cluster) {
        let _ = writeln!(text, "{grant} TO {};", user.name());
    }
    text
}

fn kafka(prefix: &str) -> String {
    let mut text = "\
# Kafka: create the users as your listener wants them, and add their rights before the first `api migrate`, and again
# after each upgrade (BROKERS and admin.properties are yours):
"
    .to_owned();
    for acl in grants::kafka(prefix) {
        let _ = writeln!(
            text,
            "kafka-acls.sh --bootstrap-server \"$BROKERS\" --command-config admin.properties --add {acl}"
        );
    }
    text
}

/// Gives the users their rights in Kafka. Rights that they have stay, also those of a former release.
pub(crate) async fn add_acls(kafka: &KafkaConfig) -> anyhow::Result<()> {
    let rights = grants::kafka(&kafka.topic(""));
    acls::add(kafka.client_config("migrate"), rights).await.context("adding rights in Kafka")?;
    tracing::info!("the programs' users have their rights in Kafka");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_compose_has_the_rights_in_clickhouse() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/compose/clickhouse-grants.sql");
        let printed = print(Some(Engine::ClickHouse), "hopline", false, "");
        assert_eq!(
            std::fs::read_to_string(file).unwrap(),
            printed,
            "write it with api migrate --print-grants"
        );
    }

    #[test]
    fn one_engine_or_all_are_printed() {
        let all = print(None, "hop", false, "eu.");
        let one = print(Some(Engine::ClickHouse), "hop", false, "eu.");
        assert!(all.contains(&one));
        for expected in [
            "GRANT SELECT, INSERT, UPDATE, DELETE ON links TO hopline_api;\n",
            "GRANT SELECT ON `hop`.counts TO hopline_api;\n",
            " --add --allow-principal User:hopline_ingest --operation Write --topic eu.clicks\n",
        ] {
            assert_eq!((all.contains(expected), one.contains(expected)), (true, expected.contains("hop`")));
        }
        assert!(!all.contains("REMOTE") && print(None, "hop", true, "eu.").contains("REMOTE"));
    }
}
