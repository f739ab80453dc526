//! What every comparison looks at before it begins.

use anyhow::ensure;

use crate::terminal::complain;

/// The variables that name the three engines.
pub(crate) const ENGINES: [&str; 3] = ["KAFKA_BROKERS", "CLICKHOUSE_URL", "DATABASE_URL"];

/// Holds that the engines which a run needs are named, and says what a debug build's numbers are worth.
pub(crate) fn prepare(engines: &[&str]) -> anyhow::Result<()> {
    for variable in engines {
        ensure!(std::env::var_os(variable).is_some(), "{variable} is not set: it names a running engine");
    }
    if cfg!(debug_assertions) {
        complain("a debug build measures the compiler's debug code; build with --release for a result");
    }
    Ok(())
}
