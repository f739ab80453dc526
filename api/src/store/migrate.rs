//! `api migrate`: the schemas of Postgres and ClickHouse, and the topics. Running it again changes nothing.
//!
//! A release only adds to the schema of the one before, so that the programs of both work on it. What nothing uses any
//! more is removed by the release after.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clickhouse::error::Error;
use schemas::clickhouse::{MIGRATIONS, Migration, replicated};
use schemas::topic;
use service::clickhouse::Clickhouse;
use service::kafka::{EnsuredTopic, KafkaConfig, TopicSpec, add_partitions, ensure_topics, plan_topics};
use sqlx::migrate::Migrator;
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, PgPool, Postgres};
use tokio::time::sleep;

/// How long a server that died counts as active: the longest session with ZooKeeper or Keeper.
const SESSION: Duration = Duration::from_secs(120);

/// The advisory lock in Postgres of a whole migration, a number of our own.
const LOCK: i64 = 0x686f_706c_696e_6501;

/// Returns the migrations of Postgres, from the files of `schemas/postgres`.
fn postgres() -> Migrator {
    let mut migrator = sqlx::migrate!("../schemas/postgres");
    // Those of a later release, before which an operator has gone back.
    migrator.set_ignore_missing(true);
    migrator
}

/// The specifications of all topics.
fn topics() -> [TopicSpec<'static>; topic::ALL.len()] {
    topic::ALL.map(|topic| TopicSpec { name: topic.name, partitions: topic.partitions, config: topic.config })
}

/// Migrates Postgres and ClickHouse and creates topics. Two of these wait for each other.
pub(crate) async fn migrate(
    pool: &PgPool,
    clickhouse: &Clickhouse,
    kafka: &KafkaConfig,
    partitions: Option<u16>,
    replaced: Option<&str>,
) -> anyhow::Result<()> {
    let lock = lock(pool).await.context("waiting for another migration")?;
    postgres().run(pool).await.context("migrating Postgres")?;
    grant(pool).await.context("granting rights in Postgres")?;
    tracing::info!("Postgres is up to date");
    if let Some(name) = replaced {
        forget_replica(clickhouse, name).await.with_context(|| format!("replacing {name}"))?;
    }
    let clickhouse = &with_tables(clickhouse).await.context("asking ClickHouse for its tables")?;
    if is_migrated(clickhouse).await? {
        // Another shard may be new.
        copy_tables(clickhouse).await.context("creating the tables of ClickHouse's other replicas")?;
    }
    let applied = migrate_clickhouse(clickhouse).await.context("migrating ClickHouse")?;
    copy_tables(clickhouse).await.context("creating the tables of ClickHouse's other replicas")?;
    name_shards(clickhouse).await.context("writing the shard of each source")?;
    if replaced.is_some() {
        // Links and conversions that were lost are read again, and a conversion that was counted before waits again.
        for table in ["intake_positions", "waiting_conversions"] {
            let forget = clickhouse.query_raw(&format!("TRUNCATE TABLE {table}")).execute().await;
            forget.context("forgetting which links and conversions were read")?;
        }
    }
    tracing::info!(applied, "ClickHouse is up to date");
    let ensured = ensure_topics(kafka, &topics()).await.context("creating topics")?;
    for EnsuredTopic { topic, missing_replicas, .. } in &ensured {
        if let Some(replicas) = missing_replicas {
            tracing::warn!(
                topic,
                replicas,
                "topic {topic} has fewer replicas than configured ({replicas}): add them with kafka-reassign-partitions"
            );
        }
    }
    if let Some(partitions) = partitions {
        let clicks = ensured.iter().find(|ensured| ensured.topic == kafka.topic(topic::CLICKS.name));
        let differing =
            clicks.and_then(|clicks| clicks.differing_partitions).and_then(|count| u16::try_from(count).ok());
        let present = differing.unwrap_or(topic::CLICKS.partitions.unsigned_abs() as u16);
        ensure!(partitions >= present, "topic clicks has {present} partitions, which cannot become fewer");
        if partitions > present {
            add_partitions(kafka, topic::CLICKS.name, partitions).await.context("adding partitions")?;
        }
    }
    tracing::info!("topics are up to date");
    lock.close().await.context("disconnecting from Postgres")
}

/// Returns what [`migrate`] would do, a line for each change.
pub(crate) async fn plan(
    pool: &PgPool,
    clickhouse: &Clickhouse,
    kafka: &KafkaConfig,
) -> anyhow::Result<String> {
    let in_postgres = missing_in_postgres(pool).await.context("reading Postgres")?;
    let clickhouse = &with_tables(clickhouse).await.context("reading ClickHouse")?;
    let in_clickhouse = missing_in_clickhouse(clickhouse).await.context("reading ClickHouse")?;
    let in_clickhouse = in_clickhouse.iter().map(|one| (i64::from(one.version), one.name.to_owned()));
    let migration = |(version, name): (i64, String)| format!("{version:04} {}", name.replace('_', " "));
    let planned = plan_topics(kafka, &topics()).await.context("reading topics")?;
    let parts = [
        ("Postgres", in_postgres.into_iter().map(migration).collect()),
        ("ClickHouse", in_clickhouse.map(migration).collect()),
        ("Kafka", planned.iter().flat_map(changes).collect::<Vec<_>>()),
    ];
    Ok(parts.map(|(engine, lines)| section(engine, &lines)).concat())
}

fn section(engine: &str, lines: &[String]) -> String {
    match lines {
        [] => format!("{engine}: up to date\n"),
        lines => format!("{engine}:\n  {}\n", lines.join("\n  ")),
    }
}

/// Describes what would change in a topic.
fn changes(planned: &EnsuredTopic) -> Vec<String> {
    let EnsuredTopic { topic, created, altered, missing_replicas, .. } = planned;
    let settings = altered.iter().map(|(name, old, new)| format!("{topic}: {name} {old} -> {new}"));
    let missing = missing_replicas.map(|replicas| {
        format!(
            "{topic}: fewer replicas than configured ({replicas}); add them with kafka-reassign-partitions"
        )
    });
    created.then(|| format!("{topic}: create")).into_iter().chain(settings).chain(missing).collect()
}

/// Waits until no other migration runs, and keeps others away until the connection ends: ClickHouse has no locks.
async fn lock(pool: &PgPool) -> sqlx::Result<PoolConnection<Postgres>> {
    let mut connection = pool.acquire().await?;
    let is_free = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(LOCK);
    if !is_free.fetch_one(&mut *connection).await? {
        tracing::info!("another migration runs; waiting for its end");
        sqlx::query("SET lock_timeout = 0").execute(&mut *connection).await?;
        sqlx::query("SELECT pg_advisory_lock($1)").bind(LOCK).execute(&mut *connection).await?;
    }
    Ok(connection)
}

/// Returns the migrations that Postgres does not have, as versions and names.
async fn missing_in_postgres(pool: &PgPool) -> sqlx::Result<Vec<(i64, String)>> {
    let is_migrated: bool =
        sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NOT NULL").fetch_one(pool).await?;
    let applied: Vec<i64> = if is_migrated {
        sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success").fetch_all(pool).await?
    } else {
        Vec::new()
    };
    let migrator = postgres();
    let missing = migrator.iter().filter(|migration| !applied.contains(&migration.version));
    Ok(missing.map(|migration| (migration.version, migration.description.to_string())).collect())
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

/// Returns the first replica that was migrated before, or else the first one: another one may have been recreated.
async fn with_tables(clickhouse: &Clickhouse) -> anyhow::Result<Clickhouse> {
    for replica in 0..clickhouse.names().len() {
        let replica = clickhouse.at(replica);
        if is_migrated(&replica).await? {
            return Ok(replica);
        }
    }
    Ok(clickhouse.at(0))
}

async fn is_migrated(clickhouse: &Clickhouse) -> anyhow::Result<bool> {
    let tables =
        "SELECT count() FROM system.tables WHERE database = currentDatabase() AND name = 'schema_migrations'";
    Ok(clickhouse.query_raw(tables).fetch_one::<u64>().await? > 0)
}

/// Returns the migrations that ClickHouse does not have.
async fn missing_in_clickhouse(clickhouse: &Clickhouse) -> anyhow::Result<Vec<&'static Migration>> {
    let applied: Vec<u32> = if !is_migrated(clickhouse).await? {
        Vec::new()
    } else {
        clickhouse.query("SELECT DISTINCT version FROM schema_migrations").fetch_all().await?
    };
    Ok(MIGRATIONS.iter().filter(|migration| !applied.contains(&migration.version)).collect())
}

/// Runs the missing migrations and returns their number.
///
/// ClickHouse has no transactions over DDL. A migration is recorded after its last statement, so each statement must be
/// repeatable (`IF NOT EXISTS`) after a crash.
async fn migrate_clickhouse(clickhouse: &Clickhouse) -> anyhow::Result<usize> {
    let is_replicated = clickhouse.is_replicated();
    let create = "CREATE TABLE IF NOT EXISTS schema_migrations
                  (version UInt32, name String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3))
                  ENGINE = MergeTree ORDER BY version";
    let create = if is_replicated { replicated(create) } else { create.to_owned() };
    clickhouse.query_raw(&create).execute().await?;
    let missing = missing_in_clickhouse(clickhouse).await?;
    for migration in &missing {
        for statement in migration.statements(is_replicated) {
            for shard in clickhouse.each_shard().await? {
                let done = shard.query_raw(&statement).execute().await;
                done.with_context(|| format!("migration {} ({})", migration.version, migration.name))?;
            }
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

/// Writes the only shard to sources that a release without shards began, before there is another shard.
async fn name_shards(clickhouse: &Clickhouse) -> anyhow::Result<()> {
    let [shard] = clickhouse.shards().await?[..] else { return Ok(()) };
    let nameless = clickhouse.query_raw("SELECT count() FROM sources WHERE shard = 0").fetch_one::<u64>();
    if shard > 0 && nameless.await? > 0 {
        let update = format!("ALTER TABLE sources UPDATE shard = {shard} WHERE shard = 0");
        clickhouse.query_raw(&update).execute().await?;
    }
    Ok(())
}

/// Creates the tables of the replica that is used on the others, which then get their rows from it.
///
/// A table's columns must be those that it has now, so the migrations cannot run there one after another.
async fn copy_tables(clickhouse: &Clickhouse) -> anyhow::Result<()> {
    const TABLES: &str = "SELECT name, create_table_query FROM system.tables \
                          WHERE database = currentDatabase() AND startsWith(engine, 'Replicated')";
    if !clickhouse.is_replicated() {
        return Ok(());
    }
    let tables: Vec<(String, String)> = clickhouse.query_raw(TABLES).fetch_all().await?;
    ensure!(!tables.is_empty(), "the tables of this database are those of a single server");
    for (replica, name) in clickhouse.names().enumerate() {
        for (table, create) in &tables {
            let create = create.replacen("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1);
            let created = clickhouse.at(replica).query_raw(&create).execute().await;
            created.with_context(|| format!("table {table} on {name}"))?;
        }
    }
    Ok(())
}

/// Makes the other replicas forget one that has lost its data, so that it can be recreated under its name.
async fn forget_replica(clickhouse: &Clickhouse, name: &str) -> anyhow::Result<()> {
    let Some(replica) = clickhouse.names().position(|known| known == name) else {
        let known: Vec<&str> = clickhouse.names().collect();
        anyhow::bail!("CLICKHOUSE_URL does not name it, but {}", known.join(", "));
    };
    let replaced = clickhouse.at(replica);
    let tables: u64 = replaced
        .query_raw("SELECT count() FROM system.tables WHERE database = currentDatabase()")
        .fetch_one()
        .await?;
    ensure!(tables == 0, "it has {tables} tables: remove its data first");
    // The names by which tables know it; see `schemas::clickhouse::replicated`.
    let (shard, own): (String, String) =
        replaced.query_raw("SELECT getMacro('shard'), getMacro('replica')").fetch_one().await?;
    let of_shard = clickhouse.of_shard(shard.parse().unwrap_or_default()).await?;
    let other = of_shard.from_chosen().find(|other| *other != replica);
    let other = clickhouse.at(other.context("there is no other replica of its shard to copy from")?);
    let of_all = format!("{shard}-{own}");
    let known: Vec<(String, String)> = other
        .query_raw(
            "SELECT table, zookeeper_path FROM system.replicas WHERE database = currentDatabase() ORDER BY table",
        )
        .fetch_all()
        .await?;
    for (table, place) in known {
        let own = if place.split('/').rev().nth(1) == Some("all") { &of_all } else { &own };
        let forget = format!("SYSTEM DROP REPLICA '{own}' FROM TABLE {table}");
        let began = Instant::now();
        loop {
            match other.query_raw(&forget).execute().await {
                Ok(()) => break,
                // The session of the former one has not ended yet.
                Err(Error::BadResponse(text)) if text.contains("active") && began.elapsed() < SESSION => {
                    sleep(Duration::from_secs(1)).await;
                }
                Err(error) => return Err(error).with_context(|| format!("table {table}")),
            }
        }
    }
    Ok(())
}
