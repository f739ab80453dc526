//! The publisher of the outbox: every change committed in Postgres reaches Kafka.
//!
//! A change writes its outbox rows in its own transaction. One publisher over all instances sends all visible rows in
//! the order of `seq`, in one Kafka transaction, and then deletes them. It is a queue and not a cursor: a cursor would
//! skip a row whose transaction commits after one with a higher `seq`.
//!
//! A publisher that dies between the Kafka commit and the delete leaves its rows, and they are sent again. Readers
//! detect repeats: links carry a revision, events an id, conversions a click id.

use std::pin::pin;
use std::time::{Duration, Instant};

use rdkafka::error::KafkaResult;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use service::Shutdown;
use service::kafka::KafkaConfig;
use service::metrics::UNKNOWN;
use sqlx::PgPool;
use sqlx::postgres::PgListener;

use crate::store::outbox::{self, CHANNEL, OutboxRow, PublisherSession};

/// Rows in one Kafka transaction.
const BATCH: usize = 500;

/// Wait after a failure, and for a notification that may have been missed.
const PAUSE: Duration = Duration::from_millis(500);

/// How long one Kafka transaction may take.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(20);

/// Interval of statements to Postgres while the publisher waits for Kafka, which keep its session alive.
const SIGN: Duration = Duration::from_secs(2);

/// Least time between the beginnings of two Kafka transactions. A change after a pause is published at once; under
/// load, one transaction publishes many changes, which costs far less than one for each.
const GATHERING: Duration = Duration::from_millis(20);

/// Time between two measurements of the outbox.
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);

/// Measures how many messages wait, and since when, until shutdown. Every instance does, because the one that publishes
/// may hang.
pub(crate) async fn measure(pool: PgPool, shutdown: Shutdown) {
    let measurements = async {
        loop {
            // Without Postgres neither is known; its check says so.
            let (messages, age) = outbox::size_and_age(&pool).await.unwrap_or((UNKNOWN, UNKNOWN));
            metrics::gauge!("hopline_outbox_messages").set(messages);
            metrics::gauge!("hopline_outbox_oldest_seconds").set(age);
            tokio::time::sleep(MEASURE_INTERVAL).await;
        }
    };
    tokio::select! {
        () = shutdown.wait() => {}
        () = measurements => {}
    }
}

/// Publishes the outbox until shutdown; failures are logged and tried again.
pub(crate) async fn publish(pool: PgPool, kafka: KafkaConfig, shutdown: Shutdown) {
    while !shutdown.requested() {
        let outcome = tokio::select! {
            outcome = publish_as_the_only_one(&pool, &kafka, &shutdown) => outcome,
            () = shutdown.wait() => return,
        };
        if let Err(error) = outcome {
            tracing::warn!(error = format!("{error:#}"), "cannot publish the outbox; trying again");
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
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let mut session = PublisherSession::begin(pool).await?;
    while !session.lock().await? {
        // Another instance publishes.
        tokio::time::sleep(PAUSE).await;
    }
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(CHANNEL).await?;
    let producer = hold_until(&mut session, fenced_producer(kafka)).await?;
    tracing::info!("this instance publishes the outbox");
    while !shutdown.requested() {
        let began = Instant::now();
        match publish_batch(&mut session, &producer, kafka).await? {
            // A missed notification costs one pause, not the message.
            0 => drop(tokio::time::timeout(PAUSE, listener.recv()).await),
            BATCH.. => {}
            _ => tokio::time::sleep_until((began + GATHERING).into()).await,
        }
    }
    session.close().await?;
    Ok(())
}

/// Waits for Kafka while keeping the session and its lock.
async fn hold_until<T>(
    session: &mut PublisherSession,
    done: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let mut done = pin!(done);
    loop {
        tokio::select! {
            done = &mut done => return done,
            () = tokio::time::sleep(SIGN) => session.check().await?,
        }
    }
}

/// Creates a producer under the deployment's transactional id. Kafka fences the producer that had the id before, so a
/// former publisher that still believes in its lock can commit nothing.
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

/// Sends visible rows, up to a batch, and deletes them. Returns how many.
async fn publish_batch(
    session: &mut PublisherSession,
    producer: &FutureProducer,
    kafka: &KafkaConfig,
) -> anyhow::Result<usize> {
    session.check().await?;
    let rows = session.oldest(BATCH).await?;
    if rows.is_empty() {
        return Ok(0);
    }
    hold_until(session, send(producer, kafka, &rows)).await?;
    let sent: Vec<i64> = rows.iter().map(|(seq, ..)| *seq).collect();
    session.delete(&sent).await?;
    metrics::counter!("hopline_outbox_published_total").increment(rows.len() as u64);
    Ok(rows.len())
}

/// Sends rows to Kafka in one transaction.
async fn send(producer: &FutureProducer, kafka: &KafkaConfig, rows: &[OutboxRow]) -> anyhow::Result<()> {
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

/// Runs a blocking call to Kafka on a blocking thread.
async fn blocking(
    producer: &FutureProducer,
    call: impl FnOnce(&FutureProducer) -> KafkaResult<()> + Send + 'static,
) -> anyhow::Result<()> {
    let producer = producer.clone();
    tokio::task::spawn_blocking(move || call(&producer)).await??;
    Ok(())
}
