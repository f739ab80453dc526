//! The migrations of ClickHouse, in the order in which `api migrate` runs them, and the tables of a generation.

pub mod rollup;

use std::fmt;

/// One migration: statements that bear to run again.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// Place in the order, from 1 without gaps.
    pub version: u32,
    /// What it is about, from the file's name.
    pub name: &'static str,
    source: Source,
}

#[derive(Debug, Clone, Copy)]
enum Source {
    /// A file of statements.
    File(&'static str),
    /// The tables of a generation.
    Generation(Generation),
}

impl Migration {
    const fn file(version: u32, name: &'static str, sql: &'static str) -> Self {
        Self { version, name, source: Source::File(sql) }
    }

    /// Returns the statements, without comments between them.
    pub fn statements(&self) -> Vec<String> {
        match self.source {
            Source::File(sql) => statements(sql),
            Source::Generation(generation) => generation.statements(),
        }
    }
}

/// Every migration.
pub const MIGRATIONS: &[Migration] = &[
    Migration::file(1, "owners", include_str!("../clickhouse/0001_owners.sql")),
    // Its tables come before the row that names it.
    Migration { version: 2, name: "generation_1", source: Source::Generation(Generation::FIRST) },
    Migration::file(3, "generations", include_str!("../clickhouse/0003_generations.sql")),
    Migration::file(4, "progress", include_str!("../clickhouse/0004_progress.sql")),
    Migration::file(5, "conversions", include_str!("../clickhouse/0005_conversions.sql")),
    Migration::file(6, "deleted_links", include_str!("../clickhouse/0006_deleted_links.sql")),
    Migration::file(7, "retention", include_str!("../clickhouse/0007_retention.sql")),
    Migration::file(8, "rebuilds", include_str!("../clickhouse/0008_rebuilds.sql")),
    Migration::file(9, "sources", include_str!("../clickhouse/0009_sources.sql")),
    Migration::file(10, "recounts", include_str!("../clickhouse/0010_recounts.sql")),
    Migration::file(11, "stretches", include_str!("../clickhouse/0011_stretches.sql")),
];

/// The statements that create the tables of a generation, with `{n}` for its number.
const GENERATION: [&str; 4] = [
    include_str!("../clickhouse/generation/clicks.sql"),
    include_str!("../clickhouse/generation/counts.sql"),
    include_str!("../clickhouse/generation/breakdowns.sql"),
    include_str!("../clickhouse/generation/slices.sql"),
];

/// Precision of every state of visitors, a `uniqCombined64`: in rollups, and wherever raw rows are merged with them.
pub const PRECISION: u8 = 17;

/// Distinct visitors below which a state of this precision is a set of them, and so exact.
pub const EXACT_VISITORS: u64 = 1 << (PRECISION - 5);

/// The query whose one value is the number of the current generation.
pub const CURRENT_GENERATION: &str = "SELECT max(generation) FROM generations";

/// The condition that lets a statement through only under the highest epoch of a source.
pub fn under_epoch(src: u32, epoch: u64) -> String {
    format!("throwIf((SELECT max(epoch) FROM owners WHERE src = {src}) != {epoch}) = 0")
}

/// A generation of tables: raw clicks, the rollups of them, and which slices of those are closed.
///
/// Which one is current says the row of table `generations` with the highest number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u32);

impl Generation {
    /// The one that the migrations make.
    pub const FIRST: Self = Self(1);

    /// Returns the name of the table of raw clicks.
    pub fn clicks(self) -> String {
        format!("clicks_{self}")
    }

    /// Returns the name of the table of clicks and visitors by hour, day and month.
    pub fn counts(self) -> String {
        format!("counts_{self}")
    }

    /// Returns the name of the table of clicks and visitors by dimension and day.
    pub fn breakdowns(self) -> String {
        format!("breakdowns_{self}")
    }

    /// Returns the name of the table that says which version of a slice is in force.
    pub fn slices(self) -> String {
        format!("slices_{self}")
    }

    /// Returns the statements that make its tables, where they are not there yet.
    pub fn statements(self) -> Vec<String> {
        let (number, precision) = (self.to_string(), PRECISION.to_string());
        let fill = |sql: &&str| sql.replace("{n}", &number).replace("{precision}", &precision);
        GENERATION.iter().flat_map(|sql| statements(&fill(sql))).collect()
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
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
            assert!(!migration.statements().is_empty(), "{}", migration.name);
        }
    }

    #[test]
    fn a_generation_makes_the_tables_that_it_names() {
        let generation = Generation(7);
        let tables = [generation.clicks(), generation.counts(), generation.breakdowns(), generation.slices()];
        let statements = generation.statements();
        assert_eq!(statements.len(), tables.len());
        for (statement, table) in statements.iter().zip(tables) {
            assert!(statement.starts_with(&format!("CREATE TABLE IF NOT EXISTS {table}\n")), "{statement}");
            assert!(!statement.contains('{'), "{statement}");
        }
    }

    #[test]
    fn the_table_of_clicks_has_the_columns_that_rows_have() {
        let sql = GENERATION[0];
        for column in crate::row::CLICK_STRUCTURE.split(", ").filter_map(|part| part.split_once(' ')) {
            if column.1.starts_with("'UTC'") {
                continue;
            }
            assert!(sql.contains(&format!("\n    {} ", column.0)), "no column {}", column.0);
        }
    }
}
