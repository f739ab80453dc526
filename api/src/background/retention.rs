//! Writes the retention of each workspace's plan to ClickHouse once a day, for the processor that removes old rows.

use std::time::Duration;

use anyhow::Context as _;
use chrono::{NaiveTime, Utc};
use service::Shutdown;
use service::clickhouse::Clickhouse;
use sqlx::{Connection as _, PgConnection, PgPool};

use crate::plan::{Plan, Plans};
use crate::store::clicks::retention;
use crate::store::clicks::retention::Kept;
use crate::store::workspaces;

/// Time between two checks.
const PAUSE: Duration = Duration::from_secs(300);

/// Writes the retention of all workspaces on each day (UTC) until shutdown. Failures are logged and tried again.
pub(crate) async fn write_daily(pool: PgPool, clickhouse: Clickhouse, plans: Plans, shutdown: Shutdown) {
    while !shutdown.requested() {
        let outcome = tokio::select! {
            outcome = write_once_a_day(&pool, &clickhouse, &plans) => outcome,
            () = shutdown.wait() => return,
        };
        match outcome {
            Ok(0) => {}
            Ok(workspaces) => tracing::info!(workspaces, "wrote the retention of all workspaces"),
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "cannot write the retention of workspaces; trying again"
            ),
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = shutdown.wait() => return,
        }
    }
}

/// Writes the retention unless it was written today or another instance is writing it. Returns the number of
/// workspaces.
async fn write_once_a_day(pool: &PgPool, clickhouse: &Clickhouse, plans: &Plans) -> anyhow::Result<usize> {
    // A separate connection: the lock ends with it in any case.
    let mut connection = pool.acquire().await?.detach();
    let is_free = retention::try_lock(&mut connection).await?;
    let written = if is_free { write(&mut connection, clickhouse, plans).await } else { Ok(0) };
    connection.close().await?;
    written
}

async fn write(
    connection: &mut PgConnection,
    clickhouse: &Clickhouse,
    plans: &Plans,
) -> anyhow::Result<usize> {
    let now = schemas::time::to_millis(Utc::now());
    let today = now.date_naive().and_time(NaiveTime::MIN).and_utc();
    if retention::is_written_since(clickhouse, today).await.context("reading what was written")? {
        return Ok(0);
    }
    let workspaces = workspaces::plans(connection).await?;
    if workspaces.is_empty() {
        return Ok(0);
    }
    let kept = workspaces
        .into_iter()
        .map(|(workspace_id, plan)| {
            let days = u32::try_from(plans.retention_days(plan.parse::<Plan>()?))?;
            Ok(Kept { workspace_id, days, at: now })
        })
        .collect::<anyhow::Result<Vec<Kept>>>()?;
    retention::write(clickhouse, &kept).await.context("writing what the plans keep")?;
    Ok(kept.len())
}
