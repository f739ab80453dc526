//! The outbox: messages about changes, on their way to Kafka.

use anyhow::ensure;
use schemas::topic::Topic;
use sqlx::{Connection as _, PgConnection, PgPool};

/// The channel on which a committed change wakes the publisher.
pub(crate) const CHANNEL: &str = "hopline_outbox";

/// Advisory lock of the only publisher: "outbox" as ASCII.
const ADVISORY_LOCK: i64 = 0x6f75_7462_6f78;

/// Postgres ends the session of an idle publisher, and with it its lock: a process that hangs must not keep others from
/// publishing. A working publisher sends a statement every two seconds. (Postgres 14 or later.)
const END_IDLE_SESSION: &str = "SET idle_session_timeout = '10s'";

/// Deletes rows without waiting for the disk. After a crash of Postgres they may be back, and are sent again.
const DELETE_WITHOUT_WAITING: &str = "SET synchronous_commit = off";

/// A row: its place, topic, key and value.
pub(crate) type OutboxRow = (i64, String, String, Vec<u8>);

/// A message on its way to Kafka.
pub(crate) struct Outgoing {
    pub(crate) topic: Topic,
    pub(crate) key: String,
    pub(crate) value: Vec<u8>,
}

/// Queues messages in this transaction, in their order, with one statement.
pub(crate) async fn enqueue_all(
    transaction: &mut PgConnection,
    messages: impl IntoIterator<Item = Outgoing>,
) -> sqlx::Result<()> {
    let (topics, keys, values) = columns(messages);
    // Postgres sends the notification when the transaction commits, and only once.
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

/// Splits messages into topics, keys and values, for a statement that queues them.
pub(crate) fn columns(
    messages: impl IntoIterator<Item = Outgoing>,
) -> (Vec<&'static str>, Vec<String>, Vec<Vec<u8>>) {
    messages.into_iter().map(|Outgoing { topic, key, value }| (topic.name, key, value)).collect()
}

/// Returns the highest place in the outbox.
pub(crate) async fn last(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT coalesce(max(seq), 0) FROM outbox").fetch_one(connection).await
}

/// Counts the messages up to a place that are not in Kafka yet.
pub(crate) async fn waiting(connection: &mut PgConnection, last: i64) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT count(*) FROM outbox WHERE seq <= $1").bind(last).fetch_one(connection).await
}

/// Returns how many messages wait, and for how many seconds the oldest one has.
pub(crate) async fn size_and_age(pool: &PgPool) -> sqlx::Result<(f64, f64)> {
    // A message of a transaction that commits late is older than those before it.
    sqlx::query_as(
        "SELECT count(*)::float8, coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 FROM outbox",
    )
    .fetch_one(pool)
    .await
}

/// A session of Postgres that holds the publisher's lock, or waits for it.
pub(crate) struct PublisherSession {
    /// The lock lives as long as this connection, which is therefore detached from the pool.
    connection: PgConnection,
    /// Postgres' process id of the session.
    process: i32,
}

impl PublisherSession {
    /// Opens a session.
    pub(crate) async fn begin(pool: &PgPool) -> anyhow::Result<Self> {
        let mut connection = pool.acquire().await?.detach();
        sqlx::query(END_IDLE_SESSION).execute(&mut connection).await?;
        sqlx::query(DELETE_WITHOUT_WAITING).execute(&mut connection).await?;
        let process = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await?;
        Ok(Self { connection, process })
    }

    /// Takes the lock if it is free.
    pub(crate) async fn lock(&mut self) -> anyhow::Result<bool> {
        self.check().await?;
        let lock = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(ADVISORY_LOCK);
        Ok(lock.fetch_one(&mut self.connection).await?)
    }

    /// Checks that the connection still reaches the session with the lock, and keeps it alive.
    pub(crate) async fn check(&mut self) -> anyhow::Result<()> {
        let process: i32 =
            sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut self.connection).await?;
        ensure!(
            process == self.process,
            "the connection to Postgres changes its session between statements, as a connection pooler in transaction \
             mode does: locks of a session do not hold there. Use a pooler in session mode, or none"
        );
        Ok(())
    }

    /// Reads the first visible rows.
    pub(crate) async fn oldest(&mut self, limit: usize) -> anyhow::Result<Vec<OutboxRow>> {
        let rows = sqlx::query_as("SELECT seq, topic, key, value FROM outbox ORDER BY seq LIMIT $1")
            .bind(i64::try_from(limit)?)
            .fetch_all(&mut self.connection);
        Ok(rows.await?)
    }

    /// Deletes rows that Kafka has.
    pub(crate) async fn delete(&mut self, sent: &[i64]) -> sqlx::Result<()> {
        sqlx::query("DELETE FROM outbox WHERE seq = ANY($1)")
            .bind(sent)
            .execute(&mut self.connection)
            .await?;
        Ok(())
    }

    /// Closes the connection, which releases the lock.
    pub(crate) async fn close(self) -> sqlx::Result<()> {
        self.connection.close().await
    }
}
