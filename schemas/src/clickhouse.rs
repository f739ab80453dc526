//! The migrations of ClickHouse, in the order in which `api migrate` runs them.

/// One migration: a file of statements, each ended by a semicolon at a line's end.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// Place in the order, from 1 without gaps.
    pub version: u32,
    /// What it is about, from the file's name.
    pub name: &'static str,
    /// The file.
    pub sql: &'static str,
}

impl Migration {
    /// The file's statements, without comments between them.
    pub fn statements(&self) -> impl Iterator<Item = String> {
        self.sql.split(";\n").filter_map(|part| {
            let lines = part.lines().filter(|line| !line.trim_start().starts_with("--"));
            let statement = lines.collect::<Vec<_>>().join("\n").trim().to_owned();
            (!statement.is_empty()).then_some(statement)
        })
    }
}

/// Every migration.
pub const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "owners", sql: include_str!("../clickhouse/0001_owners.sql") },
    Migration { version: 2, name: "clicks", sql: include_str!("../clickhouse/0002_clicks.sql") },
    Migration { version: 3, name: "progress", sql: include_str!("../clickhouse/0003_progress.sql") },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_without_gaps_and_every_file_has_a_statement() {
        for (place, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version as usize, place + 1);
            assert!(migration.statements().count() > 0, "{}", migration.name);
        }
    }

    #[test]
    fn the_table_of_clicks_has_the_columns_that_rows_have() {
        let sql = MIGRATIONS[1].sql;
        for column in crate::row::CLICK_STRUCTURE.split(", ").filter_map(|part| part.split_once(' ')) {
            if column.1.starts_with("'UTC'") {
                continue;
            }
            assert!(sql.contains(&format!("\n    {} ", column.0)), "no column {}", column.0);
        }
    }
}
