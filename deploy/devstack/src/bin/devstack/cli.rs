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
    after_help = "Everything is kept in .dev/ (git ignores it): data, logs, keys, downloaded engines. A second clone has \
    its own stack.\n\
    KAFKA_BROKERS, CLICKHOUSE_URL and DATABASE_URL name engines to use instead of starting them.\n\n\
    Exit codes: 0 on success, 1 on failure, 64 on wrong usage."
)]
pub(crate) struct Cli {
    /// The repository, as `./dev` names it: a program in a copied folder would name the original's
    #[arg(long, env = "DEVSTACK_ROOT", hide = true)]
    pub(crate) root: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start everything; Ctrl-C stops it
    ///
    /// Downloads the engines if they are missing, builds the services, starts everything and waits until it is ready.
    /// The first start creates a demo account; later ones keep the data.
    #[command(
        after_help = "Examples:\n  ./dev up\n  ./dev up --detach && ./dev status\n  KAFKA_BROKERS=broker:9092 ./dev up\n\n\
        Exit codes: 0 after it was stopped, 1 if it could not start or is already running.\n\
        With --detach: 0 once everything is ready, also if it already was; 1 otherwise."
    )]
    Up(Up),
    /// Stop the services, then the engines
    #[command(
        after_help = "Examples:\n  ./dev down\n\nExit code 0 once everything has stopped, also if nothing was running."
    )]
    Down,
    /// Show what is running and where
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
    /// Delete all data, keys and the demo account; downloaded engines stay
    #[command(after_help = "Examples:\n  ./dev down && ./dev reset && ./dev up\n\n\
        Not while the stack is running. Data in engines that environment variables name are kept.")]
    Reset,
    /// Fill the demo workspace with links, two months of clicks and conversions, and a webhook endpoint
    ///
    /// For looking around and for screenshots. The stack has to be running. Once is enough: a second run adds nothing.
    #[command(after_help = "Examples:\n  ./dev up --detach && ./dev demo")]
    Demo,
    /// Accounts, workspaces, keys and what else operators do (`api admin`); see `./dev admin --help`
    #[command(disable_help_flag = true)]
    Admin(Passed),
    /// Count everything again and compare (`processor audit`)
    #[command(disable_help_flag = true)]
    Audit(Passed),
    /// Show how far clicks are counted (`processor lag`)
    #[command(disable_help_flag = true)]
    Lag(Passed),
    /// List, show and resubmit messages that could not be read (`processor dead-letters`)
    #[command(disable_help_flag = true)]
    DeadLetters(Passed),
    /// Read the log of clicks again (`processor replay`)
    #[command(disable_help_flag = true)]
    Replay(Passed),
    /// Compute the rollups of closed days again (`processor close-again`)
    #[command(disable_help_flag = true)]
    CloseAgain(Passed),
    /// Apply the current rules of classes and devices to stored clicks (`processor recount`)
    #[command(disable_help_flag = true)]
    Recount(Passed),
    /// Print a topic's messages, one JSON object per line
    #[command(
        after_help = "Examples:\n  ./dev topic clicks --max 3\n  ./dev topic links --follow | jq .value"
    )]
    Topic(Topic),
    /// Start a service or an engine that is not running
    #[command(after_help = "Examples:\n  ./dev start processor")]
    Start {
        /// ingest, processor, api, dispatcher, kafka, clickhouse or postgres
        service: String,
    },
    /// Stop a service or an engine until it is started again
    #[command(after_help = "Examples:\n  ./dev stop clickhouse")]
    Stop {
        /// ingest, processor, api, dispatcher, kafka, clickhouse or postgres
        service: String,
    },
    /// Restart a service or an engine on the same port
    #[command(after_help = "Examples:\n  cargo build -p api && ./dev restart api")]
    Restart {
        /// ingest, processor, api, dispatcher, kafka, clickhouse or postgres
        service: String,
    },
    /// Run all tests on separate engines
    ///
    /// Starts engines in temporary folders on free ports, so a stack may be running. The exit code is cargo's.
    #[command(
        after_help = "Examples:\n  ./dev test\n  ./dev test -- -p processor\n  ./dev test -- --test it -- a_click"
    )]
    Test {
        /// Arguments for `cargo test`, which runs the whole workspace unless they name a package
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
    /// Break things under load for longer than a test may take
    ///
    /// Kills, stops and outages, on separate engines and programs, so a stack may be running. `./dev soak -- --help` lists
    /// them.
    #[command(after_help = "Examples:\n  ./dev soak edge-kills\n  ./dev soak kafka-outage --seconds 600\n  \
        ./dev soak counts-clickhouse-kills --kills 200\n  \
        ./dev soak --release edge-kills --kills 500\n  ./dev soak -- --help\n\n\
        Exit codes: 0 when every answered click arrived and each is counted once, 1 when not, 64 wrong usage.")]
    Soak(Soak),
    /// The process that ClickHouse's library runs in
    #[command(name = devstack::libchdb::SUBCOMMAND, hide = true)]
    RunLibchdb {
        library: PathBuf,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// The arguments of another program's command, `--help` among them.
#[derive(Debug, Args)]
pub(crate) struct Passed {
    /// See --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

impl Passed {
    /// Whether they only ask what the command does.
    pub(crate) fn asks_for_help(&self) -> bool {
        self.arguments.iter().any(|argument| ["--help", "-h", "help"].iter().any(|help| argument == help))
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Up {
    /// Start in the background and return once everything is ready
    #[arg(long)]
    pub(crate) detach: bool,
    /// This is the process in the background
    #[arg(long, hide = true)]
    pub(crate) in_background: bool,
    /// Build the services with optimisations
    #[arg(long)]
    pub(crate) release: bool,
    /// Address that the API and the edge listen on
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
    /// Only this service or engine
    pub(crate) service: Option<String>,
    /// Keep printing new lines
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// How many of each log's last lines to begin with
    #[arg(short = 'n', long, default_value_t = 40)]
    pub(crate) lines: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Topic {
    /// The topic's full name
    pub(crate) name: String,
    /// Keep printing new messages
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Stop after this many messages
    #[arg(short = 'n', long)]
    pub(crate) max: Option<u64>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_of_an_operators_command_is_asked_of_its_program() {
        let cli = Cli::try_parse_from(["./dev", "admin", "--help"]).unwrap();
        let Command::Admin(passed) = cli.command else { panic!("{cli:?}") };
        assert!(passed.asks_for_help());
        assert_eq!(passed.arguments, ["--help"]);
    }
}
