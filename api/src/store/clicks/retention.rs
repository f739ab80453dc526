//! What the plans of all workspaces keep, for those who delete rows from the disk.

use chrono::{DateTime, Utc};
use clickhouse::error::Result;
use clickhouse::{Client, Row};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use uuid::Uuid;

/// Held by the one instance that writes. An arbitrary constant: "keep" as ASCII.
const ADVISORY_LOCK: i64 = 0x6b65_6570;

/// The days that a workspace's plan shows, on the day that it was written.
#[derive(Debug, Clone, Copy, Row, Serialize)]
pub(crate) struct Kept {
    #[serde(with = "clickhouse::serde::uuid")]
    pub(crate) workspace_id: Uuid,
    pub(crate) days: u32,
    #[serde(with = "clickhouse::serde::chrono::datetime64::millis")]
    pub(crate) at: DateTime<Utc>,
}

#[derive(Row, Deserialize)]
struct WrittenRow {
    written: u8,
}

/// Whether all workspaces were written since an instant.
pub(crate) async fn is_written_since(client: &Client, instant: DateTime<Utc>) -> Result<bool> {
    let sql = format!(
        "SELECT count() > 0 AS written FROM retention WHERE at >= {}",
        super::source::instant(instant.timestamp_millis())
    );
    client.query_raw(&sql).fetch_one::<WrittenRow>().await.map(|row| row.written != 0)
}

/// Writes the windows of all workspaces as one part: all of them or none.
pub(crate) async fn write(client: &Client, kept: &[Kept]) -> Result<()> {
    let client = client
        .clone()
        .with_setting("async_insert", "0")
        .with_setting("max_insert_block_size", "100000000")
        .with_setting("min_insert_block_size_rows", "100000000")
        .with_setting("min_insert_block_size_bytes", "0");
    let mut insert = client.insert::<Kept>("retention").await?;
    for row in kept {
        insert.write(row).await?;
    }
    insert.end().await
}

/// Takes the lock of the one instance that writes, for the session; false when another one has it.
pub(crate) async fn try_lock(connection: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(ADVISORY_LOCK).fetch_one(connection).await
}
