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

    /// Returns the statements without comments, for tables of one server or of a cluster's replicas.
    pub fn statements(&self, is_replicated: bool) -> Vec<String> {
        let statements = statements(&self.sql.replace("{precision}", &PRECISION.to_string()));
        if is_replicated {
            statements.iter().map(|statement| replicated(statement)).collect()
        } else {
            statements
        }
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
    Migration::new(17, "rows_before_stretches", include_str!("../clickhouse/0017_rows_before_stretches.sql")),
    Migration::new(18, "shards", include_str!("../clickhouse/0018_shards.sql")),
    Migration::new(19, "waiting_conversions", include_str!("../clickhouse/0019_waiting_conversions.sql")),
];

const CLICKS: &str = include_str!("../clickhouse/0002_clicks.sql");

/// Precision of every `uniqCombined64` state of visitors, in rollups and in queries that merge raw rows with them.
pub const PRECISION: u8 = 17;

/// Number of distinct visitors below which a state of this precision is exact, because it is a plain set.
pub const EXACT_VISITORS: u64 = 1 << (PRECISION - 5);

/// The tables whose rows are counts, or decide which of them are active. A replica can be read when it has all of
/// these.
pub const COUNTED: [&str; 6] = ["clicks", "counts", "breakdowns", "slices", "deleted_links", "conversions"];

/// The tables whose rows are divided among the shards; every shard has all rows of the others.
const SHARDED: [&str; 3] = ["clicks", "counts", "breakdowns"];

/// The settings of replicated tables: for how long an insert's token is remembered, and that a row which a replica got
/// from another one is on its disk before it counts as there.
const REPLICATED_SETTINGS: &str = "replicated_deduplication_window = 100000, \
     replicated_deduplication_window_seconds = 86400, min_compressed_bytes_to_fsync_after_fetch = 1";

/// The table whose rows keep the number of their block when blocks are merged: a report counts the conversions of the
/// blocks that every replica has.
const BLOCK_NUMBERS: (&str, &str) = ("conversions", ", enable_block_number_column = 1");

/// Returns a statement that creates a replicated table instead of the same table of a single server.
///
/// ClickHouse replaces the names in braces: `shard` and `replica` are macros of its configuration.
pub fn replicated(statement: &str) -> String {
    const CREATE: &str = "CREATE TABLE IF NOT EXISTS ";
    let Some(table) = statement.strip_prefix(CREATE).and_then(|rest| rest.split_whitespace().next()) else {
        return statement.to_owned();
    };
    let (shard, replica) =
        if SHARDED.contains(&table) { ("{shard}", "{replica}") } else { ("all", "{shard}-{replica}") };
    let place = format!("'/hopline/{{database}}/{shard}/{table}', '{replica}'");
    let Some((columns, engine)) = statement.split_once("ENGINE = ") else { return statement.to_owned() };
    let end = engine.find(|c: char| !c.is_alphanumeric()).unwrap_or(engine.len());
    let (name, rest) = engine.split_at(end);
    let (arguments, rest) = match rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((arguments, rest)) => (format!("{place}, {arguments}"), rest),
        None => (place, rest),
    };
    let separator = if rest.contains("SETTINGS ") { "," } else { "\nSETTINGS" };
    let numbers = if table == BLOCK_NUMBERS.0 { BLOCK_NUMBERS.1 } else { "" };
    format!("{columns}ENGINE = Replicated{name}({arguments}){rest}{separator} {REPLICATED_SETTINGS}{numbers}")
}

/// Returns the statement that creates a table of one server beside table `clicks`, with the same columns and
/// partitions.
pub fn staging(table: &str) -> String {
    let clicks = without_comments(CLICKS);
    let engine = clicks.find("ENGINE = ").map_or("", |at| &clicks[at..]);
    format!("CREATE TABLE {table} AS clicks {}", engine.trim_end_matches(';'))
}

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
            let statements = migration.statements(false);
            assert!(!statements.is_empty(), "{}", migration.name);
            assert!(statements.iter().all(|statement| !statement.contains('{')), "{statements:?}");
        }
    }

    #[test]
    fn a_replicated_table_differs_in_engine_and_settings() {
        let of = |version: usize| MIGRATIONS[version - 1].statements(true).remove(0);
        let clicks = of(2);
        assert!(
            clicks.contains(
                "ENGINE = ReplicatedMergeTree('/hopline/{database}/{shard}/clicks', '{replica}')\n"
            ),
            "{clicks}"
        );
        let settings = "fsync_part_directory = 1, replicated_deduplication_window = 100000, ";
        assert!(clicks.contains(settings) && clicks.contains("ORDER BY (workspace_id, "), "{clicks}");
        let progress = of(4);
        let engine =
            "ReplicatedReplacingMergeTree('/hopline/{database}/all/progress', '{shard}-{replica}', as_of)\n";
        assert!(progress.contains(engine), "{progress}");
        assert!(progress.contains("ORDER BY src\nSETTINGS replicated_deduplication_window = "), "{progress}");
        assert!(of(5).ends_with("enable_block_number_column = 1"), "{}", of(5));
        let altered = MIGRATIONS[13].statements(true);
        assert_eq!(altered, MIGRATIONS[13].statements(false));
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
