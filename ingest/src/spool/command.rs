//! The command `ingest spool`.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::spool::inspect::Report;

/// The exit code for a spool that cannot be read completely.
const EXIT_DAMAGED: u8 = 2;

/// The command line of `ingest` when its first argument is `spool`.
///
/// Separate from the edge's configuration, because reading a spool needs neither keys nor Kafka.
#[derive(Debug, clap::Parser)]
#[command(name = "ingest", version, disable_help_subcommand = true)]
pub struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Shows the content of a spool: answered clicks that Kafka may not have yet.
    ///
    /// Changes nothing, so it may run while an edge uses the spool.
    #[command(after_help = "\
Examples:
  ingest spool                              the spool in HOPLINE_SPOOL_DIR
  ingest spool /var/lib/hopline/spool       another spool
  ingest spool --json | jq .records         for scripts

Exit codes: 0 everything can be read, 1 the directory cannot be read, 2 something is damaged or unrecognized,
64 wrong usage.")]
    Spool {
        /// The spool's directory.
        #[arg(value_name = "DIR", env = "HOPLINE_SPOOL_DIR", default_value = "/var/lib/hopline/spool")]
        directory: PathBuf,

        /// Prints one JSON object.
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command in the arguments of this process.
pub fn main() -> ExitCode {
    let Program { command: Command::Spool { directory, json } } = service::config::parse();
    let shown = Report::read(&directory).and_then(|report| {
        show(&report, json)?;
        Ok(report.is_complete())
    });
    match shown {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => EXIT_DAMAGED.into(),
        Err(error) => {
            // A failure to write to standard error cannot be reported.
            let _ = writeln!(io::stderr(), "cannot show {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}

fn show(report: &Report, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)
    } else {
        write!(out, "{report}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_listed() {
        service::config::assert_listed::<Program>();
    }
}
