//! The migrations of ClickHouse, in the order in which `api migrate` runs them.

pub mod rollup;

/// One migration: statements that bear to run again.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// Place in the order, from 1 without gaps.
    pub version: u32,
    /// What it is about, from the file's name.
    pub name: &'static str,
    sql: &'static str,
}

impl Migration {
    const fn new(version: u32, name: &'static str, sql: &'static str) -> Self {
        Self { version, name, sql }
    }

    /// Returns the statements, without comments between them.
    pub fn statements(&self) -> Vec<String> {
        statements(&self.sql.replace("{precision}", &PRECISION.to_string()))
    }
}

/// Every migration.
pub const MIGRATIONS: &[Migration] = &[
    Migration::new(1, "owners", include_str!("../clickhouse/0001_owners.sql")),
    Migration::new(2, "clicks", CLICKS),
    Migration::new(3, "counts", include_str!("../clickhouse/0003_counts.sql")),
    Migration::new(4, "progress", include_str!("../clickhouse/0004_progress.sql")),
    Migration::new(5, "conversions", include_str!("../clickhouse/0005_conversions.sql")),
    Migration::new(6, "deleted_links", include_str!("../clickhouse/0006_deleted_links.sql")),
    Migration::new(7, "retention", include_str!("../clickhouse/0007_retention.sql")),
    Migration::new(8, "rebuilds", include_str!("../clickhouse/0008_rebuilds.sql")),
    Migration::new(9, "sources", include_str!("../clickhouse/0009_sources.sql")),
    Migration::new(10, "recounts", include_str!("../clickhouse/0010_recounts.sql")),
    Migration::new(11, "stretches", include_str!("../clickhouse/0011_stretches.sql")),
    Migration::new(12, "breakdowns", include_str!("../clickhouse/0012_breakdowns.sql")),
    Migration::new(13, "slices", include_str!("../clickhouse/0013_slices.sql")),
];

const CLICKS: &str = include_str!("../clickhouse/0002_clicks.sql");

/// Precision of every state of visitors, a `uniqCombined64`: in rollups, and wherever raw rows are merged with them.
pub const PRECISION: u8 = 17;

/// Distinct visitors below which a state of this precision is a set of them, and so exact.
pub const EXACT_VISITORS: u64 = 1 << (PRECISION - 5);

/// The condition that lets a statement through only under the highest epoch of a source.
pub fn under_epoch(src: u32, epoch: u64) -> String {
    format!("throwIf((SELECT max(epoch) FROM owners WHERE src = {src}) != {epoch}) = 0")
}

/// Cuts a file into its statements, each of which ends with a semicolon at a line's end.
fn statements(sql: &str) -> Vec<String> {
    sql.split(";\n").map(without_comments).filter(|statement| !statement.is_empty()).collect()
}

fn without_comments(sql: &str) -> String {
    let lines = sql.lines().filter(|line| !line.trim_start().starts_with("--"));
    lines.collect::<Vec<_>>().join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_without_gaps_and_every_file_has_a_statement() {
        for (place, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version as usize, place + 1);
            let statements = migration.statements();
            assert!(!statements.is_empty(), "{}", migration.name);
            assert!(statements.iter().all(|statement| !statement.contains('{')), "{statements:?}");
        }
    }

    #[test]
    fn the_table_of_clicks_has_the_columns_that_rows_have() {
        for column in crate::row::CLICK_STRUCTURE.split(", ").filter_map(|part| part.split_once(' ')) {
            if column.1.starts_with("'UTC'") {
                continue;
            }
            assert!(CLICKS.contains(&format!("\n    {} ", column.0)), "no column {}", column.0);
        }
    }
}
