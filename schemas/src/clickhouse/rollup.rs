//! The statements that compute rollups from raw rows.
//!
//! A run writes rows under a version that no other run has, and its last statement puts that version in force. What
//! a run that was broken off has left is in force nowhere, so it counts nothing.

use std::collections::BTreeSet;

use chrono::{Datelike as _, Days, Months, NaiveDate};
use uuid::Uuid;

use super::{Generation, PRECISION, under_epoch, without_comments};
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
const MONTH_OF_BREAKDOWNS: &str = include_str!("../../clickhouse/rollup/month_of_breakdowns.sql");
const IN_FORCE: &str = include_str!("../../clickhouse/rollup/in_force.sql");

/// The versions of slices that were ever in force.
const KNOWN: &str = "SELECT workspace_id, slice, version FROM {slices}";

/// What a run is about to put in force beside them.
const PENDING: &str =
    "UNION ALL SELECT toUUID('{workspace}'), toDate(arrayJoin([{run_slices}])), toUInt64({version})";

const SLICES: &str = include_str!("../../clickhouse/rollup/slices.sql");

/// Whose rows a run writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those of all links and workspaces: it closes a slice.
    All,
    /// Those of one workspace as a whole, without its links': a deleted link has left it.
    Workspace(WorkspaceId),
}

/// One computation of the rollups of some slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The tables.
    pub generation: Generation,
    /// Whose rows.
    pub scope: Scope,
    /// The epoch under which it writes, and the version of what it writes.
    pub version: u64,
    /// Which slices.
    pub slices: Vec<NaiveDate>,
}

impl Run {
    /// Returns the statements in their order; the last one puts what the others wrote in force.
    ///
    /// Each is refused when somebody else has raised the epoch of upkeep.
    pub fn statements(&self) -> Vec<String> {
        let mut statements = vec![self.render(COUNTS, "")];
        statements.extend(DIMENSIONS.iter().map(|dimension| self.render(BREAKDOWNS, dimension)));
        // A month is folded from its days, so those of every slice come first.
        if self.slices.iter().any(|slice| ends_month(*slice)) {
            statements.push(self.render(MONTH_OF_COUNTS, ""));
            statements.extend(DIMENSIONS.iter().map(|dimension| self.render(MONTH_OF_BREAKDOWNS, dimension)));
        }
        statements.push(self.render(SLICES, ""));
        statements
    }

    fn render(&self, template: &str, dimension: &str) -> String {
        let zero = Uuid::nil();
        let (workspace, links, scope) = match self.scope {
            Scope::All => (zero, format!("[link_id, toUUID('{zero}')]"), "1".to_owned()),
            Scope::Workspace(id) => {
                (id.uuid(), format!("[toUUID('{zero}')]"), format!("workspace_id = toUUID('{}')", id.uuid()))
            }
        };
        // What a run of one workspace folds are its own rows, not its links'.
        let folded = match self.scope {
            Scope::All => scope.clone(),
            Scope::Workspace(_) => format!("{scope} AND link_id = toUUID('{zero}')"),
        };
        let folds: BTreeSet<NaiveDate> =
            self.slices.iter().copied().filter(|slice| ends_month(*slice)).collect();
        let text = |day: Option<&NaiveDate>| day.map(NaiveDate::to_string).unwrap_or_default();
        let mut sql = without_comments(template);
        for (name, value) in [
            // Those that have placeholders of their own come first.
            ("in_force", without_comments(IN_FORCE)),
            ("known", format!("{KNOWN} {PENDING}")),
            ("counts", self.generation.counts()),
            ("breakdowns", self.generation.breakdowns()),
            ("clicks", self.generation.clicks()),
            ("slices", self.generation.slices()),
            ("guard", under_epoch(UPKEEP, self.version)),
            ("run_slices", dates(&self.slices)),
            ("folds", dates(&folds)),
            ("first_fold", text(folds.first())),
            ("last_fold", text(folds.last())),
            ("dimension", dimension.to_owned()),
            ("links", links),
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

/// Returns the condition that holds for the rollup rows of a generation which are in force.
pub fn in_force(generation: Generation) -> String {
    without_comments(IN_FORCE)
        .replace("{known}", KNOWN)
        .replace("{slices}", &generation.slices())
        .replace("{zero}", &Uuid::nil().to_string())
}

fn dates<'a>(days: impl IntoIterator<Item = &'a NaiveDate>) -> String {
    days.into_iter().map(|day| format!("'{day}'")).collect::<Vec<_>>().join(", ")
}

/// Returns the slice that folds a month: its last day.
pub fn fold_of_month(day: NaiveDate) -> NaiveDate {
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
        let slices = slices.iter().map(|slice| slice.parse().unwrap()).collect();
        Run { generation: Generation(4), scope, version: 77, slices }
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
        assert!(!in_force(Generation(4)).contains('{'), "{}", in_force(Generation(4)));
    }

    #[test]
    fn only_a_months_last_day_folds_it_and_after_all_days() {
        let statements = run(Scope::All, &["2028-02-29", "2028-03-01"]).statements();
        let folds: Vec<usize> =
            (0..statements.len()).filter(|place| statements[*place].contains("'month', link_id")).collect();
        assert_eq!(folds, (11..22).collect::<Vec<_>>());
        assert!(statements[11].contains("toLastDayOfMonth(start) IN ('2028-02-29')"), "{}", statements[11]);
        assert_eq!(fold_of_month("2028-02-03".parse().unwrap()), "2028-02-29".parse().unwrap());
        assert_eq!(fold_of_month("2026-12-31".parse().unwrap()), "2026-12-31".parse().unwrap());
    }

    #[test]
    fn dimensions_are_columns_of_clicks() {
        for dimension in DIMENSIONS {
            assert!(crate::row::CLICK_STRUCTURE.contains(&format!("{dimension} String")), "{dimension}");
        }
    }
}
