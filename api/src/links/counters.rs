//! Total and unique clicks of links, from ClickHouse.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Days, NaiveTime, Utc};
use clickhouse::Row;
use serde::Deserialize;
use uuid::Uuid;

use crate::App;
use crate::plan::Plan;

/// How long a link operation waits for its counters before it answers without them.
const PATIENCE: Duration = Duration::from_secs(2);

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

#[derive(Row, Deserialize)]
struct CountRow {
    #[serde(with = "clickhouse::serde::uuid")]
    link_id: Uuid,
    total: u64,
    unique: u64,
}

#[derive(Row, Deserialize)]
struct AsOfRow {
    sources: u64,
    as_of_millis: i64,
}

impl Counters {
    /// Reads the human clicks of `links` within the plan's retention window.
    pub(super) async fn read(app: &App, workspace: Uuid, plan: Plan, links: &[Uuid]) -> Self {
        if links.is_empty() {
            return Self(Some(Known { by_link: HashMap::new(), as_of: None }));
        }
        let start = window_start(plan, Utc::now());
        match tokio::time::timeout(PATIENCE, query(&app.clickhouse, workspace, start, links)).await {
            Ok(Ok(known)) => Self(Some(known)),
            Ok(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "Counters are not known");
                Self(None)
            }
            Err(_) => {
                tracing::warn!(patience_ms = PATIENCE.as_millis(), "Counters did not come in time");
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
}

/// The start of a plan's window: 00:00 UTC as many days ago as the plan keeps.
fn window_start(plan: Plan, now: DateTime<Utc>) -> DateTime<Utc> {
    let first_day = now.date_naive() - Days::new(plan.retention_days());
    first_day.and_time(NaiveTime::MIN).and_utc()
}

async fn query(
    clickhouse: &clickhouse::Client,
    workspace: Uuid,
    start: DateTime<Utc>,
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
    let rows = clickhouse
        .query(
            "SELECT link_id, count() AS total, uniqCombined64(17)(visitor) AS unique
             FROM clicks
             WHERE workspace_id = toUUID(?) AND link_id IN (SELECT toUUID(arrayJoin(?)))
               AND class = 'human' AND occurred_at >= fromUnixTimestamp64Milli(?, 'UTC')
             GROUP BY link_id",
        )
        .bind(workspace.to_string())
        .bind(links)
        .bind(start.timestamp_millis())
        .fetch_all::<CountRow>()
        .await?;
    Ok(Known {
        by_link: rows.into_iter().map(|row| (row.link_id, (row.total, row.unique))).collect(),
        as_of: (progress.sources > 0)
            .then(|| DateTime::from_timestamp_millis(progress.as_of_millis))
            .flatten(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plans_window_starts_at_midnight() {
        let now = "2026-11-21T08:30:00Z".parse().unwrap();
        assert_eq!(window_start(Plan::Free, now), "2026-10-22T00:00:00Z".parse::<DateTime<Utc>>().unwrap());
        assert_eq!(
            window_start(Plan::Business, now),
            "2023-11-22T00:00:00Z".parse::<DateTime<Utc>>().unwrap()
        );
    }
}
