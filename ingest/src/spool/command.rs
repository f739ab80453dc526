//! `ingest spool`.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use super::inspect::Report;

/// The exit code for a spool of which something cannot be read.
const EXIT_DAMAGED: u8 = 2;

/// The command line of `ingest` when its first argument is `spool`.
///
/// Apart from the edge's: looking into a spool needs neither keys nor Kafka.
#[derive(Debug, clap::Parser)]
#[command(name = "ingest", version, disable_help_subcommand = true)]
pub struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Shows what is in a spool: clicks that were answered and that Kafka may not have yet.
    ///
    /// Reads and changes nothing, so it may run beside the edge that uses the spool.
    #[command(after_help = "\
Examples:
  ingest spool                              the spool that HOPLINE_SPOOL_DIR names
  ingest spool /var/lib/hopline/spool       another one
  ingest spool --json | jq .records         for scripts

Exit codes: 0 everything in it can be read, 1 the directory cannot be read, 2 something is damaged or left alone,
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

/// Runs the command that the arguments of this process ask for.
pub fn main() -> ExitCode {
    let Program { command: Command::Spool { directory, json } } = service::config::parse();
    let shown = Report::read(&directory).and_then(|report| {
        show(&report, json)?;
        Ok(report.is_whole())
    });
    match shown {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => EXIT_DAMAGED.into(),
        Err(error) => {
            // Nobody is left to tell when the terminal is gone.
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
    fn every_variable_is_one_that_all_processes_accept() {
        service::config::assert_listed::<Program>();
    }
}
