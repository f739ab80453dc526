//! Removes rows that no plan shows any more.
//!
//! Raw rows and rollups are removed by whole months, because a month's rollup covers all its days. So a row stays up to
//! a month longer than its plan requires.

use chrono::{Datelike as _, Days, NaiveDate};

use super::{Upkeep, UpkeepError};

/// Days that rows are kept after a plan stops showing them, so that an upgrade brings them back.
const GRACE_DAYS: u64 = 30;

/// Maximum workspaces of one statement; keeps it well below `max_query_size`.
const MAX_WORKSPACES: usize = 2_000;

impl Upkeep {
    /// Removes the rows that are older than each workspace's window plus the grace period.
    pub(super) async fn expire(&self, today: NaiveDate) -> Result<(), UpkeepError> {
        let windows = self.tables.windows().await?;
        let Some(largest) = windows.keys().max().copied() else {
            // No window is known, so no row is known to be too old.
            return Ok(());
        };
        let kept = first_kept(today, largest);
        for (table, time) in DERIVED {
            self.remove(table, &format!("{time} < '{kept}'")).await?;
        }
        // Dropping whole partitions is cheap.
        for partition in self.tables.partitions_before("clicks", kept).await? {
            self.tables.keep_positions(&format!("toDate(broker_ts) = '{partition}'")).await?;
            self.tables.drop_partition("clicks", &partition).await?;
            tracing::info!(partition, "dropped the clicks of {partition}");
        }
        for (days, workspaces) in windows.range(..largest) {
            let kept = first_kept(today, *days);
            for workspaces in workspaces.chunks(MAX_WORKSPACES) {
                let ids: Vec<String> = workspaces.iter().map(|id| format!("toUUID('{id}')")).collect();
                let of_these = format!("workspace_id IN ({})", ids.join(", "));
                for (table, time) in DERIVED {
                    self.remove(table, &format!("{of_these} AND {time} < '{kept}'")).await?;
                }
                // Last: the other tables can be computed again from the raw rows.
                let rows = self
                    .tables
                    .delete_clicks(&format!("{of_these} AND toDate(broker_ts) < '{kept}'"))
                    .await?;
                log_removed("clicks", rows);
            }
        }
        Ok(())
    }

    /// Removes deleted rows from the disk.
    pub(super) async fn erase(&self) -> Result<(), UpkeepError> {
        for (table, _) in DERIVED {
            self.tables.erase(table).await?;
        }
        self.tables.erase("waiting_conversions").await?;
        Ok(self.tables.erase("clicks").await?)
    }

    async fn remove(&self, table: &str, old: &str) -> Result<(), UpkeepError> {
        log_removed(table, self.tables.delete(table, old).await?);
        Ok(())
    }
}

fn log_removed(table: &str, rows: u64) {
    if rows > 0 {
        tracing::info!(table, rows, "removed {rows} rows that no plan shows any more");
    }
}

/// The tables derived from clicks, and the expression for the day of a row.
const DERIVED: [(&str, &str); 3] =
    [("counts", "slice"), ("breakdowns", "slice"), ("conversions", "toDate(occurred_at)")];

/// Returns the first day that is kept for a window of `window` days: the first of a month.
pub(crate) fn first_kept(today: NaiveDate, window: u32) -> NaiveDate {
    let oldest = today.checked_sub_days(Days::new(u64::from(window) + GRACE_DAYS)).unwrap_or(NaiveDate::MIN);
    oldest.with_day(1).unwrap_or(oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_month_of_window_and_grace_is_kept() {
        let today = "2026-11-21".parse().unwrap();
        for (window, kept) in
            [(30, "2026-09-01"), (20, "2026-10-01"), (365, "2025-10-01"), (1_095, "2023-10-01")]
        {
            assert_eq!(first_kept(today, window).to_string(), kept);
        }
        assert_eq!(first_kept(today, u32::MAX), NaiveDate::MIN);
    }
}
