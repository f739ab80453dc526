//! The ClickHouse migrations, which `api migrate` runs in this order.

pub mod rollup;

/// One migration: statements that may be run more than once.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// Number in the order, from 1 without gaps.
    pub version: u32,
    /// Subject, from the file's name.
    pub name: &'static str,
    sql: &'static str,
}

impl Migration {
    const fn new(version: u32, name: &'static str, sql: &'static str) -> Self {
        Self { version, name, sql }
    }

    /// Returns the statements without comments.
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
    Migration::new(
        14,
        "deleted_links_of_workspaces",
        include_str!("../clickhouse/0014_deleted_links_of_workspaces.sql"),
    ),
    Migration::new(15, "audits", include_str!("../clickhouse/0015_audits.sql")),
    Migration::new(16, "intake_positions", include_str!("../clickhouse/0016_intake_positions.sql")),
];

const CLICKS: &str = include_str!("../clickhouse/0002_clicks.sql");

/// Precision of every `uniqCombined64` state of visitors, in rollups and in queries that merge raw rows with them.
pub const PRECISION: u8 = 17;

/// Number of distinct visitors below which a state of this precision is exact, because it is a plain set.
pub const EXACT_VISITORS: u64 = 1 << (PRECISION - 5);

/// Returns a condition that makes a statement fail unless `epoch` is the source's highest.
pub fn epoch_guard(src: u32, epoch: u64) -> String {
    format!("throwIf((SELECT max(epoch) FROM owners WHERE src = {src}) != {epoch}) = 0")
}

/// Splits a file into its statements; each ends with a semicolon at the end of a line.
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
    fn versions_have_no_gaps_and_every_file_has_a_statement() {
        for (index, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version as usize, index + 1);
            let statements = migration.statements();
            assert!(!statements.is_empty(), "{}", migration.name);
            assert!(statements.iter().all(|statement| !statement.contains('{')), "{statements:?}");
        }
    }

    #[test]
    fn table_clicks_has_the_columns_of_click_rows() {
        for column in crate::row::CLICK_STRUCTURE.split(", ").filter_map(|part| part.split_once(' ')) {
            if column.1.starts_with("'UTC'") {
                continue;
            }
            assert!(CLICKS.contains(&format!("\n    {} ", column.0)), "no column {}", column.0);
        }
    }
}
