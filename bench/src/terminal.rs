//! Output for people, and the checks before a run.

use std::io::Write as _;

use anyhow::ensure;

/// The variables that name the three engines.
pub(crate) const ENGINES: [&str; 3] = ["KAFKA_BROKERS", "CLICKHOUSE_URL", "DATABASE_URL"];

/// Prints a line of the result on standard output.
pub(crate) fn say(line: &str) {
    // A closed pipe, as after `| head`, is no error.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Prints progress or an error on standard error.
pub(crate) fn report_progress(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Checks that the environment names the engines that a run needs, and warns about a debug build.
pub(crate) fn prepare(engines: &[&str]) -> anyhow::Result<()> {
    for variable in engines {
        ensure!(std::env::var_os(variable).is_some(), "{variable} is not set; set it to a running engine");
    }
    if cfg!(debug_assertions) {
        report_progress("warning: this is a debug build; build with --release for meaningful figures");
    }
    Ok(())
}
