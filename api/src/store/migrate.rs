//! `api migrate`: the schemas of Postgres and ClickHouse, and the topics. Running it again changes nothing.

use anyhow::Context as _;
use clickhouse::Row;
use schemas::clickhouse::{MIGRATIONS, Migration};
use serde::Deserialize;
use service::kafka::{KafkaConfig, TopicSpec, ensure_topics};
use sqlx::{AssertSqlSafe, PgPool};

/// The migrations of Postgres, from the files of `schemas/postgres`.
static POSTGRES: sqlx::migrate::Migrator = sqlx::migrate!("../schemas/postgres");

/// Migrates Postgres and ClickHouse and creates topics.
pub(crate) async fn migrate(
    pool: &PgPool,
    clickhouse: &clickhouse::Client,
    kafka: &KafkaConfig,
) -> anyhow::Result<()> {
    // sqlx holds an advisory lock, so two migrations wait for each other.
    POSTGRES.run(pool).await.context("migrating Postgres")?;
    grant(pool).await.context("granting rights in Postgres")?;
    tracing::info!("Postgres is up to date");
    let applied = migrate_clickhouse(clickhouse).await.context("migrating ClickHouse")?;
    tracing::info!(applied, "ClickHouse is up to date");
    let topics = schemas::topic::ALL.map(|topic| TopicSpec {
        name: topic.name,
        partitions: topic.partitions,
        config: topic.config,
    });
    ensure_topics(kafka, &topics).await.context("creating topics")?;
    tracing::info!("topics are up to date");
    Ok(())
}

/// Gives those of the programs' users that exist their rights on the tables. An operator who uses other names grants
/// them by hand.
async fn grant(pool: &PgPool) -> sqlx::Result<()> {
    let grants = schemas::grants::postgres();
    let names: Vec<&str> = grants.iter().map(|(user, _)| user.name()).collect();
    let existing: Vec<String> =
        sqlx::query_scalar("SELECT rolname::text FROM pg_roles WHERE rolname = ANY($1)")
            .bind(names)
            .fetch_all(pool)
            .await?;
    // At once, because the programs run.
    let mut transaction = pool.begin().await?;
    for (user, statement) in grants {
        if existing.iter().any(|name| name == user.name()) {
            sqlx::query(AssertSqlSafe(statement)).execute(&mut *transaction).await?;
        }
    }
    transaction.commit().await
}

#[derive(Row, Deserialize)]
struct Applied {
    version: u32,
}

/// Runs the missing migrations and returns their number.
///
/// ClickHouse has no transactions over DDL. A migration is recorded after its last statement, so each statement must be
/// repeatable (`IF NOT EXISTS`) after a crash.
async fn migrate_clickhouse(clickhouse: &clickhouse::Client) -> anyhow::Result<usize> {
    clickhouse
        .query(
            "CREATE TABLE IF NOT EXISTS schema_migrations
             (version UInt32, name String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3))
             ENGINE = MergeTree ORDER BY version",
        )
        .execute()
        .await?;
    let applied =
        clickhouse.query("SELECT DISTINCT version FROM schema_migrations").fetch_all::<Applied>().await?;
    let missing: Vec<&Migration> = MIGRATIONS
        .iter()
        .filter(|migration| applied.iter().all(|Applied { version }| *version != migration.version))
        .collect();
    for migration in &missing {
        for statement in migration.statements() {
            // `?` would be a placeholder for a value.
            clickhouse
                .query(&statement.replace('?', "??"))
                .execute()
                .await
                .with_context(|| format!("migration {} ({})", migration.version, migration.name))?;
        }
        clickhouse
            .query("INSERT INTO schema_migrations (version, name) VALUES (?, ?)")
            .bind(migration.version)
            .bind(migration.name)
            .execute()
            .await?;
        tracing::info!(version = migration.version, name = migration.name, "migrated ClickHouse");
    }
    Ok(missing.len())
}
