//! Total and unique clicks of links, from ClickHouse.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use clickhouse::Row;
use serde::Deserialize;
use service::http::ApiError;
use uuid::Uuid;

use crate::App;
use crate::dates::Window;

/// How long a link operation waits for its counters before it answers without them.
const PATIENCE: Duration = Duration::from_secs(2);

/// 1970 and 2200: times of clicks are between, and ClickHouse's own limits are further out.
const EARLIEST_MILLIS: i64 = 0;
const LATEST_MILLIS: i64 = 7_258_118_400_000;

/// The counters of some links, or that they are not known.
///
/// ClickHouse unreachable or slow leaves them unknown: a null in the answer, never a made-up number.
#[derive(Debug)]
pub(super) struct Counters(Option<Known>);

#[derive(Debug)]
struct Known {
    by_link: HashMap<Uuid, (u64, u64)>,
    as_of: Option<DateTime<Utc>>,
}

/// Which clicks count: those of a window, as far as the broker had taken them at an instant, if one is given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    pub(super) window: Window,
    pub(super) taken_until: Option<DateTime<Utc>>,
}

impl Counted {
    /// The bounds of the queries: first and last instant of a click, last instant of the broker.
    fn bounds(&self) -> [i64; 3] {
        let millis = |time: Option<DateTime<Utc>>| {
            time.map_or(LATEST_MILLIS, |time| time.timestamp_millis().clamp(EARLIEST_MILLIS, LATEST_MILLIS))
        };
        [millis(Some(self.window.start)), millis(self.window.end), millis(self.taken_until)]
    }
}

impl From<Window> for Counted {
    fn from(window: Window) -> Self {
        Self { window, taken_until: None }
    }
}

#[derive(Row, Deserialize)]
struct CountRow {
    #[serde(with = "clickhouse::serde::uuid")]
    link_id: Uuid,
    total: u64,
    unique: u64,
}

#[derive(Row, Deserialize)]
struct TotalRow {
    #[serde(with = "clickhouse::serde::uuid")]
    link_id: Uuid,
    total: i64,
}

#[derive(Row, Deserialize)]
struct AsOfRow {
    sources: u64,
    as_of_millis: i64,
}

impl Counters {
    /// Reads the human clicks of `links`.
    pub(super) async fn read(app: &App, workspace: Uuid, counted: Counted, links: &[Uuid]) -> Self {
        if links.is_empty() {
            return Self(Some(Known { by_link: HashMap::new(), as_of: None }));
        }
        match in_time(query(&app.clickhouse, workspace, counted, links)).await {
            Ok(known) => Self(Some(known)),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "Counters are not known");
                Self(None)
            }
        }
    }

    /// Total and unique clicks of a link; no row means no click.
    pub(super) fn of(&self, link: Uuid) -> Option<(u64, u64)> {
        self.0.as_ref().map(|known| known.by_link.get(&link).copied().unwrap_or_default())
    }

    /// Up to when every click is counted, by the broker's clock.
    pub(super) fn as_of(&self) -> Option<DateTime<Utc>> {
        self.0.as_ref().and_then(|known| known.as_of)
    }

    /// Refuses to go on without the numbers.
    pub(super) fn require(self) -> Result<Self, ApiError> {
        if self.0.is_none() {
            return Err(ApiError::unavailable("the counters are not known"));
        }
        Ok(self)
    }
}

/// Total clicks of every link of a workspace that has any, for an order by them.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) links: Vec<Uuid>,
    pub(super) totals: Vec<i64>,
}

impl Totals {
    /// Reads the human clicks of a workspace's links.
    ///
    /// # Errors
    /// `UNAVAILABLE` when ClickHouse is out of reach or slow: without numbers there is no order.
    pub(super) async fn read(app: &App, workspace: Uuid, counted: Counted) -> Result<Self, ApiError> {
        let [start, end, taken_until] = counted.bounds();
        let rows = app
            .clickhouse
            .query(
                "SELECT link_id, toInt64(count()) AS total
                 FROM clicks
                 WHERE workspace_id = toUUID(?) AND class = 'human'
                   AND occurred_at >= fromUnixTimestamp64Milli(?, 'UTC')
                   AND occurred_at < fromUnixTimestamp64Milli(?, 'UTC')
                   AND broker_ts <= fromUnixTimestamp64Milli(?, 'UTC')
                 GROUP BY link_id",
            )
            .bind(workspace.to_string())
            .bind(start)
            .bind(end)
            .bind(taken_until)
            .fetch_all::<TotalRow>();
        let rows = in_time(rows).await.map_err(ApiError::unavailable)?;
        Ok(Self {
            links: rows.iter().map(|row| row.link_id).collect(),
            totals: rows.iter().map(|row| row.total).collect(),
        })
    }
}

/// Why ClickHouse did not answer.
#[derive(Debug, thiserror::Error)]
enum Silence {
    #[error("ClickHouse did not answer within {} seconds", PATIENCE.as_secs())]
    Slow,
    #[error("ClickHouse did not answer")]
    Failed(#[source] clickhouse::error::Error),
}

async fn in_time<T>(query: impl Future<Output = clickhouse::error::Result<T>>) -> Result<T, Silence> {
    tokio::time::timeout(PATIENCE, query).await.map_err(|_| Silence::Slow)?.map_err(Silence::Failed)
}

async fn query(
    clickhouse: &clickhouse::Client,
    workspace: Uuid,
    counted: Counted,
    links: &[Uuid],
) -> clickhouse::error::Result<Known> {
    // Read before the counts: what is counted by then is in them, so as_of never promises too much.
    let progress = clickhouse
        .query(
            "SELECT count() AS sources, toUnixTimestamp64Milli(min(as_of)) AS as_of_millis
             FROM (SELECT src, max(as_of) AS as_of FROM progress GROUP BY src)",
        )
        .fetch_one::<AsOfRow>()
        .await?;
    let links: Vec<String> = links.iter().map(Uuid::to_string).collect();
    let [start, end, taken_until] = counted.bounds();
    let rows = clickhouse
        .query(
            "SELECT link_id, count() AS total, uniqCombined64(17)(visitor) AS unique
             FROM clicks
             WHERE workspace_id = toUUID(?) AND link_id IN (SELECT toUUID(arrayJoin(?)))
               AND class = 'human'
               AND occurred_at >= fromUnixTimestamp64Milli(?, 'UTC')
               AND occurred_at < fromUnixTimestamp64Milli(?, 'UTC')
               AND broker_ts <= fromUnixTimestamp64Milli(?, 'UTC')
             GROUP BY link_id",
        )
        .bind(workspace.to_string())
        .bind(links)
        .bind(start)
        .bind(end)
        .bind(taken_until)
        .fetch_all::<CountRow>()
        .await?;
    Ok(Known {
        by_link: rows.into_iter().map(|row| (row.link_id, (row.total, row.unique))).collect(),
        as_of: (progress.sources > 0)
            .then(|| DateTime::from_timestamp_millis(progress.as_of_millis))
            .flatten(),
    })
}
