//! The statements that compute rollups from raw rows.
//!
//! A run writes rows under a new version, and its last statement activates that version. The rows of an
//! interrupted run never become active, so queries do not count them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{Datelike as _, Days, Months, NaiveDate};
use uuid::Uuid;

use super::{PRECISION, epoch_guard, without_comments};
use crate::id::WorkspaceId;
use crate::row::UPKEEP;

/// The dimensions of breakdowns: each is a column of the raw rows.
pub const DIMENSIONS: [&str; 10] = [
    "country",
    "device_type",
    "browser",
    "os",
    "referrer",
    "utm_source",
    "utm_medium",
    "utm_campaign",
    "utm_term",
    "utm_content",
];

const COUNTS: &str = include_str!("../../clickhouse/rollup/counts.sql");
const MONTH_OF_COUNTS: &str = include_str!("../../clickhouse/rollup/month_of_counts.sql");
const BREAKDOWNS: &str = include_str!("../../clickhouse/rollup/breakdowns.sql");
const DAYS_OF_BREAKDOWNS: &str = include_str!("../../clickhouse/rollup/days_of_breakdowns.sql");
const MONTH_OF_BREAKDOWNS: &str = include_str!("../../clickhouse/rollup/month_of_breakdowns.sql");
const ACTIVE: &str = include_str!("../../clickhouse/rollup/active.sql");

/// All versions of slices that have been active.
const KNOWN: &str = "SELECT workspace_id, slice, version FROM slices";

/// The versions that a run is about to activate.
const PENDING: &str =
    "UNION ALL SELECT toUUID('{workspace}'), toDate(arrayJoin([{run_slices}])), toUInt64({version})";

const SLICES: &str = include_str!("../../clickhouse/rollup/slices.sql");

/// Selects the rows that a run writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The rows of all links and workspaces; the run closes its slices.
    All,
    /// The totals of one workspace but not of its links, after a link of it was deleted.
    Workspace(WorkspaceId),
}

/// One computation of the rollups of some slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The rows to write.
    pub scope: Scope,
    /// The version of the rows, which is also the epoch that the statements check.
    pub version: u64,
    /// The slices, each with the number of its last block of clicks, or -1 when it has no block.
    pub slices: BTreeMap<NaiveDate, i64>,
}

impl Run {
    /// Returns the statements in order; the last one activates the rows of the others.
    ///
    /// Each of them fails once another process has raised the epoch of upkeep.
    pub fn statements(&self) -> Vec<String> {
        let mut statements = vec![self.render(COUNTS, "")];
        statements.extend(DIMENSIONS.iter().map(|dimension| self.render(BREAKDOWNS, dimension)));
        // A month is summed from its days, so the days of all slices come first.
        if self.slices.keys().any(|slice| ends_month(*slice)) {
            statements.push(self.render(MONTH_OF_COUNTS, ""));
            statements.extend(DIMENSIONS.iter().map(|dimension| self.render(MONTH_OF_BREAKDOWNS, dimension)));
        }
        statements.push(self.render(SLICES, ""));
        statements
    }

    fn render(&self, template: &str, dimension: &str) -> String {
        let zero = Uuid::nil();
        let of_workspace = format!("toUUID('{zero}')");
        let (workspace, links, scope) = match self.scope {
            Scope::All => (zero, vec!["link_id", &of_workspace], "1".to_owned()),
            Scope::Workspace(id) => {
                (id.uuid(), vec![&*of_workspace], format!("workspace_id = toUUID('{}')", id.uuid()))
            }
        };
        let days = without_comments(DAYS_OF_BREAKDOWNS);
        let days: Vec<String> = links.iter().map(|link| days.replace("{link}", link)).collect();
        // A run of one workspace sums the workspace's own rows, not its links'.
        let folded = match self.scope {
            Scope::All => scope.clone(),
            Scope::Workspace(_) => format!("{scope} AND link_id = toUUID('{zero}')"),
        };
        let folds: BTreeSet<NaiveDate> =
            self.slices.keys().copied().filter(|slice| ends_month(*slice)).collect();
        let blocks: Vec<String> =
            self.slices.iter().map(|(slice, block)| format!("('{slice}', {block})")).collect();
        let text = |day: Option<&NaiveDate>| day.map(NaiveDate::to_string).unwrap_or_default();
        let mut sql = without_comments(template);
        for (name, value) in [
            // Values that contain placeholders come first.
            ("active", without_comments(ACTIVE)),
            ("known", format!("{KNOWN} {PENDING}")),
            ("days", days.join(" UNION ALL ")),
            ("guard", epoch_guard(UPKEEP, self.version)),
            ("run_slices", dates(self.slices.keys())),
            ("run_blocks", blocks.join(", ")),
            ("folds", dates(&folds)),
            ("first_fold", text(folds.first())),
            ("last_fold", text(folds.last())),
            ("dimension", dimension.to_owned()),
            ("links", format!("[{}]", links.join(", "))),
            ("scope", scope),
            ("folded", folded),
            ("workspace", workspace.to_string()),
            ("version", self.version.to_string()),
            ("precision", PRECISION.to_string()),
            ("zero", zero.to_string()),
        ] {
            sql = sql.replace(&format!("{{{name}}}"), &value);
        }
        sql
    }
}

/// Returns a condition that selects the active rollup rows.
pub fn is_active() -> String {
    active_of(KNOWN)
}

/// Returns a condition that selects the rollup rows that a query may still read if it began at most `ago` ago.
pub fn may_be_read(ago: Duration) -> String {
    let since = format!("now64(3) - INTERVAL {} MILLISECOND", ago.as_millis());
    let then = active_of(&format!("{KNOWN} WHERE slices.at <= {since}"));
    format!(
        "({} OR {then} OR version IN (SELECT version FROM slices WHERE slices.at > {since}))",
        is_active()
    )
}

fn active_of(known: &str) -> String {
    let sql = without_comments(ACTIVE).replace("{known}", known).replace("{zero}", &Uuid::nil().to_string());
    format!("({sql})")
}

fn dates<'a>(days: impl IntoIterator<Item = &'a NaiveDate>) -> String {
    days.into_iter().map(|day| format!("'{day}'")).collect::<Vec<_>>().join(", ")
}

/// Returns the last day of the month of `day`: the slice whose run sums that month.
pub fn last_day_of_month(day: NaiveDate) -> NaiveDate {
    let next = first_of_month(day).checked_add_months(Months::new(1));
    next.and_then(|next| next.pred_opt()).unwrap_or(day)
}

fn ends_month(slice: NaiveDate) -> bool {
    slice.checked_add_days(Days::new(1)).is_some_and(|next| next.month() != slice.month())
}

fn first_of_month(day: NaiveDate) -> NaiveDate {
    day.with_day(1).unwrap_or(day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(scope: Scope, slices: &[&str]) -> Run {
        let slices = slices.iter().map(|slice| (slice.parse().unwrap(), 5)).collect();
        Run { scope, version: 77, slices }
    }

    #[test]
    fn every_statement_is_complete_and_guarded() {
        let workspace = Scope::Workspace(WorkspaceId::from_uuid(Uuid::from_u128(5)));
        for (scope, slices, count) in [
            (Scope::All, &["2026-11-21"][..], 12),
            (Scope::All, &["2026-11-30"], 23),
            (workspace, &["2026-11-21", "2026-11-30", "2026-12-01"], 23),
        ] {
            let statements = run(scope, slices).statements();
            assert_eq!(statements.len(), count);
            for statement in statements {
                assert!(!statement.contains('{') && !statement.contains("--"), "{statement}");
                assert!(
                    statement.starts_with("INSERT INTO ") && statement.contains("throwIf("),
                    "{statement}"
                );
            }
        }
        assert!(!may_be_read(Duration::ZERO).contains('{'), "{}", may_be_read(Duration::ZERO));
    }

    #[test]
    fn a_month_is_summed_by_its_last_day_after_all_days() {
        let statements = run(Scope::All, &["2028-02-29", "2028-03-01"]).statements();
        let folds: Vec<usize> =
            (0..statements.len()).filter(|index| statements[*index].contains("'month', link_id")).collect();
        assert_eq!(folds, (11..22).collect::<Vec<_>>());
        assert!(statements[11].contains("toLastDayOfMonth(start) IN ('2028-02-29')"), "{}", statements[11]);
        assert_eq!(last_day_of_month("2028-02-03".parse().unwrap()), "2028-02-29".parse().unwrap());
        assert_eq!(last_day_of_month("2026-12-31".parse().unwrap()), "2026-12-31".parse().unwrap());
    }

    #[test]
    fn dimensions_are_columns_of_clicks() {
        for dimension in DIMENSIONS {
            assert!(crate::row::CLICK_STRUCTURE.contains(&format!("{dimension} String")), "{dimension}");
        }
    }
}
