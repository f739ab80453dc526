//! The outbox: what changes in Postgres reaches Kafka, whatever is killed in between.
//!
//! A change writes its rows in its own transaction. One publisher at a time, over all instances of the API,
//! sends all visible rows in the order of `seq` in one Kafka transaction and then deletes them. It is a queue
//! and not a cursor: a cursor would skip a row whose transaction commits after a row with a higher `seq`.
//!
//! A publisher that dies after the Kafka commit and before the delete leaves its rows; they are sent again.
//! Readers are ready for that: links carry a revision, events an id, conversions a click id.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::ensure;
use rdkafka::error::KafkaResult;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use schemas::topic::Topic;
use service::kafka::KafkaConfig;
use service::{Check, Shutdown};
use sqlx::postgres::PgListener;
use sqlx::{Connection as _, PgConnection, PgPool};

/// The channel on which a committed change wakes the publisher.
pub(crate) const CHANNEL: &str = "hopline_outbox";

/// Held by the one publisher of all instances. An arbitrary constant: "outbox" as ASCII.
const ADVISORY_LOCK: i64 = 0x6f75_7462_6f78;

/// Rows in one Kafka transaction.
const BATCH: usize = 500;

/// How long to wait before trying again after a failure, and for a notification that may have been missed.
const PAUSE: Duration = Duration::from_millis(500);

/// How long one Kafka transaction may take.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(20);

/// Ends the session of a publisher that has asked nothing for so long, and with it its lock: a process that hangs
/// must not keep the others from publishing. A publisher at work asks every [`SIGN`] at the latest. (Postgres 14 or
/// later.)
const END_IDLE_SESSION: &str = "SET idle_session_timeout = '10s'";

/// How long a publisher waits for Kafka before it asks Postgres something, so that its session stays awake.
const SIGN: Duration = Duration::from_secs(2);

/// Does not wait for the disk when rows are deleted: a Postgres that crashes may bring them back, and they are sent
/// again, as after a publisher that died. Waiting would make each change of a link share the disk with a deletion.
const DELETE_WITHOUT_WAITING: &str = "SET synchronous_commit = off";

/// The least time from one Kafka transaction's begin to the next one's. A change after a pause is published at once;
/// under load a transaction takes what came meanwhile, which costs Kafka and Postgres far less than one for each.
const GATHERING: Duration = Duration::from_millis(20);

/// A row of the outbox: its place, topic, key and value.
type Row = (i64, String, String, Vec<u8>);

/// A message on its way to Kafka.
pub(crate) struct Outgoing {
    pub(crate) topic: Topic,
    pub(crate) key: String,
    pub(crate) value: Vec<u8>,
}

/// Puts messages into the outbox of the transaction at hand, in their order, with one statement.
pub(crate) async fn enqueue_all(
    transaction: &mut PgConnection,
    messages: impl IntoIterator<Item = Outgoing>,
) -> sqlx::Result<()> {
    let (topics, keys, values) = columns(messages);
    // Postgres sends the notification when the transaction commits, and once however often it is asked.
    sqlx::query(
        "WITH queued AS (
             INSERT INTO outbox (topic, key, value)
             SELECT topic, key, value
             FROM unnest($1::text[], $2::text[], $3::bytea[]) WITH ORDINALITY AS m (topic, key, value, place)
             ORDER BY place
             RETURNING seq
         )
         SELECT pg_notify($4, '') FROM queued LIMIT 1",
    )
    .bind(topics)
    .bind(keys)
    .bind(values)
    .bind(CHANNEL)
    .execute(transaction)
    .await?;
    Ok(())
}

/// Returns the topics, keys and values of messages, for a statement that puts them into the outbox.
pub(crate) fn columns(
    messages: impl IntoIterator<Item = Outgoing>,
) -> (Vec<&'static str>, Vec<String>, Vec<Vec<u8>>) {
    messages.into_iter().map(|Outgoing { topic, key, value }| (topic.name, key, value)).collect()
}

/// Publishes the outbox until shutdown; failures are logged, shown by `check`, and tried again.
pub(crate) async fn publish(pool: PgPool, kafka: KafkaConfig, check: Check, shutdown: Shutdown) {
    while !shutdown.requested() {
        let outcome = tokio::select! {
            outcome = publish_as_the_only_one(&pool, &kafka, &check, &shutdown) => outcome,
            () = shutdown.wait() => return,
        };
        if let Err(error) = outcome {
            check.unready(format!("{error:#}"));
            tracing::warn!(error = format!("{error:#}"), "Publishing the outbox failed; trying again");
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = shutdown.wait() => return,
        }
    }
}

/// Waits to become the only publisher, then publishes until something fails.
async fn publish_as_the_only_one(
    pool: &PgPool,
    kafka: &KafkaConfig,
    check: &Check,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let mut session = Session::begin(pool).await?;
    while !session.lock().await? {
        // Another instance publishes: this one stands by.
        check.ready();
        tokio::time::sleep(PAUSE).await;
    }
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(CHANNEL).await?;
    let producer = session.keep_until(fenced_producer(kafka)).await?;
    tracing::info!("Publishing the outbox");
    check.ready();
    while !shutdown.requested() {
        let began = Instant::now();
        match publish_batch(&mut session, &producer, kafka).await? {
            // A missed notification costs one pause, not the message.
            0 => drop(tokio::time::timeout(PAUSE, listener.recv()).await),
            BATCH.. => {}
            _ => tokio::time::sleep_until((began + GATHERING).into()).await,
        }
    }
    session.connection.close().await?;
    Ok(())
}

/// A session of Postgres that has the lock, or waits for it.
struct Session {
    /// The lock lives as long as this connection, which therefore does not go back to the pool.
    connection: PgConnection,
    /// The process of Postgres that serves it.
    process: i32,
}

impl Session {
    async fn begin(pool: &PgPool) -> anyhow::Result<Self> {
        let mut connection = pool.acquire().await?.detach();
        sqlx::query(END_IDLE_SESSION).execute(&mut connection).await?;
        sqlx::query(DELETE_WITHOUT_WAITING).execute(&mut connection).await?;
        let process = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await?;
        Ok(Self { connection, process })
    }

    /// Takes the lock, if nobody has it.
    async fn lock(&mut self) -> anyhow::Result<bool> {
        self.is_the_same().await?;
        let lock = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(ADVISORY_LOCK);
        Ok(lock.fetch_one(&mut self.connection).await?)
    }

    /// Checks that the process of Postgres which has the lock is the one that is asked, and keeps its session awake.
    async fn is_the_same(&mut self) -> anyhow::Result<()> {
        let process: i32 =
            sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut self.connection).await?;
        ensure!(
            process == self.process,
            "the connection to Postgres changes its session between statements, as a connection pooler in transaction \
             mode does: locks of a session do not hold there. Use a pooler in session mode, or none"
        );
        Ok(())
    }

    /// Waits for something that Kafka does, and keeps the lock meanwhile.
    async fn keep_until<T>(&mut self, done: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let mut done = pin!(done);
        loop {
            tokio::select! {
                done = &mut done => return done,
                () = tokio::time::sleep(SIGN) => self.is_the_same().await?,
            }
        }
    }
}

/// A transactional producer under the deployment's one id: Kafka refuses whoever held it before, so a former
/// publisher that still believes in its lock can commit nothing.
async fn fenced_producer(kafka: &KafkaConfig) -> anyhow::Result<FutureProducer> {
    let mut config = kafka.client_config("api-outbox");
    config
        .set("transactional.id", kafka.topic("outbox"))
        .set("transaction.timeout.ms", "30000")
        .set("compression.type", "zstd")
        .set("linger.ms", "0");
    let producer: FutureProducer = config.create()?;
    blocking(&producer, |producer| producer.init_transactions(TRANSACTION_TIMEOUT)).await?;
    Ok(producer)
}

/// Sends all visible rows, up to a batch, and deletes them. Returns how many.
async fn publish_batch(
    session: &mut Session,
    producer: &FutureProducer,
    kafka: &KafkaConfig,
) -> anyhow::Result<usize> {
    session.is_the_same().await?;
    let rows: Vec<Row> = sqlx::query_as("SELECT seq, topic, key, value FROM outbox ORDER BY seq LIMIT $1")
        .bind(i64::try_from(BATCH)?)
        .fetch_all(&mut session.connection)
        .await?;
    if rows.is_empty() {
        return Ok(0);
    }
    session.keep_until(send(producer, kafka, &rows)).await?;
    let sent: Vec<i64> = rows.iter().map(|(seq, ..)| *seq).collect();
    sqlx::query("DELETE FROM outbox WHERE seq = ANY($1)")
        .bind(&sent)
        .execute(&mut session.connection)
        .await?;
    metrics::counter!("hopline_outbox_published_total").increment(rows.len() as u64);
    Ok(rows.len())
}

/// Sends rows to Kafka in one transaction.
async fn send(producer: &FutureProducer, kafka: &KafkaConfig, rows: &[Row]) -> anyhow::Result<()> {
    producer.begin_transaction()?;
    let mut reports = Vec::with_capacity(rows.len());
    for (_, topic, key, value) in rows {
        let topic = kafka.topic(topic);
        // Queued in the order of seq; one producer keeps the order within a partition.
        let report = producer
            .send_result(FutureRecord::to(&topic).key(key).payload(value))
            .map_err(|(error, _)| error)?;
        reports.push(report);
    }
    for report in reports {
        report.await?.map_err(|(error, _)| error)?;
    }
    blocking(producer, |producer| producer.commit_transaction(TRANSACTION_TIMEOUT)).await
}

/// Runs a call that blocks on Kafka away from the tasks that must not wait.
async fn blocking(
    producer: &FutureProducer,
    call: impl FnOnce(&FutureProducer) -> KafkaResult<()> + Send + 'static,
) -> anyhow::Result<()> {
    let producer = producer.clone();
    tokio::task::spawn_blocking(move || call(&producer)).await??;
    Ok(())
}
