//! The commands of `./dev`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Hopline on this machine: real Kafka, ClickHouse and Postgres, and the four services, without Docker.
#[derive(Debug, Parser)]
#[command(
    name = "./dev",
    bin_name = "./dev",
    after_help = "Everything it keeps is in .dev/ (git ignores it): data, logs, keys, downloaded engines.\n\
    An engine that KAFKA_BROKERS, CLICKHOUSE_URL or DATABASE_URL names is used instead of being started."
)]
pub(crate) struct Cli {
    /// The repository
    #[arg(long, env = "DEVSTACK_ROOT", hide = true, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))]
    pub(crate) root: PathBuf,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start everything; Ctrl-C stops it
    ///
    /// Installs the engines when they are missing, builds the services, starts all, waits until all are ready, and
    /// makes a demo account the first time. A second start keeps the data.
    #[command(
        after_help = "Examples:\n  ./dev up\n  ./dev up --detach && ./dev status\n  KAFKA_BROKERS=broker:9092 ./dev up\n\n\
        Exit codes: 0 after a stop that was asked for, 1 when the stack could not start or runs already.\n\
        With --detach: 0 when all is ready, also when it was already; 1 otherwise."
    )]
    Up(Up),
    /// Stop the services, then the engines
    #[command(
        after_help = "Examples:\n  ./dev down\n\nExit code 0 when nothing runs any more, also when nothing ran."
    )]
    Down,
    /// Show what runs and where
    #[command(after_help = "Examples:\n  ./dev status\n  ./dev status --json | jq -r .api_key\n\n\
        Exit code 0 whether the stack is ready or not: read `ready`.")]
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the logs
    #[command(
        after_help = "Examples:\n  ./dev logs\n  ./dev logs api --lines 200\n  ./dev logs processor -f\n\n\
        Services: ingest, processor, api, dispatcher, kafka, clickhouse, postgres, devstack."
    )]
    Logs(Logs),
    /// Wipe all data, keys and the demo account
    #[command(after_help = "Examples:\n  ./dev down && ./dev reset && ./dev up\n\n\
        Refuses while the stack runs. Data in engines given by environment variables stay.")]
    Reset,
    /// Run an operator's command (`api admin …`) against this stack
    #[command(
        after_help = "Examples:\n  ./dev admin create-account --name Example --plan pro --json\n  ./dev admin --help"
    )]
    Admin {
        /// What `api admin` understands
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Print a topic's messages, one JSON object a line
    #[command(
        after_help = "Examples:\n  ./dev topic clicks --max 3\n  ./dev topic links --follow | jq .value"
    )]
    Topic(Topic),
    /// Start a service or an engine that does not run
    #[command(after_help = "Examples:\n  ./dev start processor")]
    Start {
        /// ingest, processor, api, dispatcher, kafka, clickhouse or postgres
        service: String,
    },
    /// Stop a service or an engine; it stays stopped
    #[command(after_help = "Examples:\n  ./dev stop clickhouse")]
    Stop {
        /// ingest, processor, api, dispatcher, kafka, clickhouse or postgres
        service: String,
    },
    /// Stop a service or an engine and start it again, on the same port
    #[command(after_help = "Examples:\n  cargo build -p api && ./dev restart api")]
    Restart {
        /// ingest, processor, api, dispatcher, kafka, clickhouse or postgres
        service: String,
    },
    /// Run all tests, on engines of their own
    ///
    /// Starts engines in temporary folders on free ports, beside a running stack too, and ends with cargo's exit code.
    #[command(
        after_help = "Examples:\n  ./dev test\n  ./dev test -- -p processor\n  ./dev test -- --test it -- a_click"
    )]
    Test {
        /// Arguments for `cargo test`; --workspace is left out when they name a package
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
    /// Break things under load for longer than a test may take
    ///
    /// Kills, stops and outages, each on engines and programs of its own, beside a running stack too. `./dev soak -- --help`
    /// lists them.
    #[command(after_help = "Examples:\n  ./dev soak edge-kills\n  ./dev soak kafka-outage --seconds 600\n  \
        ./dev soak counts-clickhouse-kills --kills 200\n  \
        ./dev soak --release edge-kills --kills 500\n  ./dev soak -- --help\n\n\
        Exit codes: 0 when every answered click arrived and each is counted once, 1 when not, 2 wrong usage.")]
    Soak(Soak),
    /// The process that ClickHouse's library runs in
    #[command(name = devstack::libchdb::SUBCOMMAND, hide = true)]
    RunLibchdb {
        library: PathBuf,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Up {
    /// Return when everything is ready, and leave it running
    #[arg(long)]
    pub(crate) detach: bool,
    /// Build the services with optimisations
    #[arg(long)]
    pub(crate) release: bool,
    /// The address that the API and the edge listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) listen: IpAddr,
}

#[derive(Debug, Args)]
pub(crate) struct Soak {
    /// Build with optimisations
    #[arg(long)]
    pub(crate) release: bool,
    /// What to break, and its options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Only this service
    pub(crate) service: Option<String>,
    /// Go on with new lines as they come
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// How many lines of each log to begin with
    #[arg(short = 'n', long, default_value_t = 40)]
    pub(crate) lines: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Topic {
    /// The topic's full name
    pub(crate) name: String,
    /// Go on with new messages as they come
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Stop after this many messages
    #[arg(short = 'n', long)]
    pub(crate) max: Option<u64>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }
}
