//! The retention of all workspaces, for the processor that removes old rows.

use chrono::{DateTime, Utc};
use clickhouse::Row;
use clickhouse::error::Result;
use serde::{Deserialize, Serialize};
use service::clickhouse::Clickhouse;
use sqlx::PgConnection;
use uuid::Uuid;

/// Advisory lock of the instance that writes: "keep" as ASCII.
const ADVISORY_LOCK: i64 = 0x6b65_6570;

/// The retention of a workspace's plan, in days.
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

/// Returns whether the retention was written since an instant.
pub(crate) async fn is_written_since(client: &Clickhouse, instant: DateTime<Utc>) -> Result<bool> {
    let sql = format!(
        "SELECT count() > 0 AS written FROM retention WHERE at >= {}",
        super::source::instant(instant.timestamp_millis())
    );
    client.query_raw(&sql).fetch_one::<WrittenRow>().await.map(|row| row.written != 0)
}

/// Writes the retention of all workspaces as one part: all or nothing.
pub(crate) async fn write(client: &Clickhouse, kept: &[Kept]) -> Result<()> {
    let client = client
        .clone()
        .with_setting("async_insert", "0")
        .with_setting("max_insert_block_size", "100000000")
        .with_setting("min_insert_block_size_rows", "100000000")
        .with_setting("min_insert_block_size_bytes", "0");
    let mut insert = client.client().insert::<Kept>("retention").await?;
    for row in kept {
        insert.write(row).await?;
    }
    insert.end().await
}

/// Takes the lock of the instance that writes, for the session; false when another one holds it.
pub(crate) async fn try_lock(connection: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(ADVISORY_LOCK).fetch_one(connection).await
}
