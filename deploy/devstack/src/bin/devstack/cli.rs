//! The commands of `./dev`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Hopline on this machine: real Kafka, ClickHouse and Postgres, and the four services, without Docker.
#[derive(Debug, Parser)]
#[command(
    name = "./dev",
    bin_name = "./dev",
    after_help = "Everything is kept in .dev/ (git ignores it): data, logs, keys, downloaded engines. \
    A second clone has a separate stack.\n\
    Set KAFKA_BROKERS, CLICKHOUSE_URL or DATABASE_URL to use an external engine.\n\n\
    Exit codes: 0 on success, 1 on failure, 64 on wrong usage."
)]
pub(crate) struct Cli {
    /// The repository, from `./dev`: the path compiled into a copied program would be the original's
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
    /// The first start creates a demo account; later ones keep the data. With --cluster any one server may be stopped,
    /// killed or paused.
    #[command(
        after_help = "Examples:\n  ./dev up\n  ./dev up --detach && ./dev status\n  ./dev up --cluster\n  \
        KAFKA_BROKERS=broker:9092 ./dev up\n\n\
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
        Services: ingest, processor, api, dispatcher, kafka, clickhouse, postgres, devstack. In a cluster also the \
        name of one server, such as ingest-2."
    )]
    Logs(Logs),
    /// Delete all data, keys and the demo account; downloaded engines stay
    #[command(after_help = "Examples:\n  ./dev down && ./dev reset && ./dev up\n\n\
        Fails while the stack is running. Keeps the data of external engines.")]
    Reset,
    /// Fill the demo workspace with links, two months of clicks and conversions, and a webhook endpoint
    ///
    /// The stack must be running. A second run adds nothing.
    #[command(after_help = "Examples:\n  ./dev up --detach && ./dev demo")]
    Demo,
    /// Manage accounts, workspaces, keys and more (`api admin`); see `./dev admin --help`
    #[command(disable_help_flag = true)]
    Admin(ForwardedArguments),
    /// Count everything again and compare (`processor audit`)
    #[command(disable_help_flag = true)]
    Audit(ForwardedArguments),
    /// Show how far clicks are counted (`processor lag`)
    #[command(disable_help_flag = true)]
    Lag(ForwardedArguments),
    /// List, show and resubmit messages that could not be read (`processor dead-letters`)
    #[command(disable_help_flag = true)]
    DeadLetters(ForwardedArguments),
    /// Read the log of clicks again (`processor replay`)
    #[command(disable_help_flag = true)]
    Replay(ForwardedArguments),
    /// Compute the rollups of closed days again (`processor close-again`)
    #[command(disable_help_flag = true)]
    CloseAgain(ForwardedArguments),
    /// Apply the current rules for classes and devices to stored clicks (`processor recount`)
    #[command(disable_help_flag = true)]
    Recount(ForwardedArguments),
    /// Print a topic's messages, one JSON object per line
    #[command(
        after_help = "Examples:\n  ./dev topic clicks --max 3\n  ./dev topic links --follow | jq .value"
    )]
    Topic(Topic),
    /// Start a service or an engine that is not running
    ///
    /// A service is built first if its sources have changed. A standby of Postgres begins with a copy of the primary.
    #[command(after_help = "Examples:\n  ./dev start processor\n  ./dev start kafka-2")]
    Start(ServerName),
    /// Stop a service or an engine until it is started again
    #[command(after_help = "Examples:\n  ./dev stop clickhouse\n  ./dev stop clickhouse-1-2")]
    Stop(ServerName),
    /// Restart a service or an engine on the same port
    ///
    /// A service is built first if its sources have changed.
    #[command(after_help = "Examples:\n  ./dev restart api\n  ./dev restart kafka-2")]
    Restart(ServerName),
    /// End a service or an engine at once (SIGKILL); it stays away until it is started again
    #[command(after_help = "Examples:\n  ./dev kill ingest\n  ./dev kill kafka-1 && ./dev start kafka-1")]
    Kill(ServerName),
    /// Freeze a service or an engine with all its processes (SIGSTOP) until it is resumed
    ///
    /// A second pause changes nothing. `start`, `stop` and `restart` work on a paused one, too.
    #[command(
        after_help = "Examples:\n  ./dev pause processor-1\n  ./dev pause postgres && ./dev resume postgres"
    )]
    Pause(ServerName),
    /// Let a paused service or engine continue (SIGCONT)
    #[command(after_help = "Examples:\n  ./dev resume processor-1")]
    Resume(ServerName),
    /// Stop Postgres' primary and make its standby the primary, in a cluster
    ///
    /// Nothing that was confirmed is lost. `./dev start` brings the former primary back as the standby.
    #[command(
        after_help = "Examples:\n  ./dev promote postgres-2 && ./dev start postgres-1\n  ./dev promote postgres-1\n\n\
        Exit code 0 once the new primary accepts writes; `./dev status` shows which one it is."
    )]
    Promote {
        /// The standby, such as postgres-2
        name: String,
    },
    /// Run the tests on separate engines
    ///
    /// Starts engines in temporary folders on free ports, so a stack may be running. A test that fails and then passes
    /// is reported as flaky at the end and does not fail the run.
    #[command(
        after_help = "Examples:\n  ./dev test\n  ./dev test -- -p processor\n  ./dev test -- -p tests kills\n  \
        ./dev test --heavy -- counts_faults\n  ./dev test --cluster -- -p tests\n\n\
        Exit codes are those of cargo-nextest: 0 when every test passed, 4 when none has such a name, \
        100 when one failed."
    )]
    Test {
        /// On three brokers, two shards of two replicas and two servers of Postgres, for tests that start no own
        /// engines
        #[arg(long)]
        cluster: bool,
        /// Run the heavy tests, which take minutes or start many engines, instead of all others
        ///
        /// Select some by name: a filterset (-E) adds tests to them.
        #[arg(long)]
        heavy: bool,
        /// Arguments for `cargo nextest run`, which tests the whole workspace unless they name a package
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
    /// Inject faults under load for longer than a test may take
    ///
    /// Uses separate engines and programs, so a stack may be running. `./dev soak -- --help` lists the faults.
    #[command(after_help = "Examples:\n  ./dev soak edge-kills\n  ./dev soak kafka-outage --seconds 600\n  \
        ./dev soak counts-clickhouse-kills --kills 200\n  \
        ./dev soak --release edge-kills --kills 500\n  ./dev soak -- --help\n\n\
        Exit codes: 0 when every acknowledged click arrived and is counted once, 1 when not, 64 on wrong usage.")]
    Soak(Soak),
    /// Run ClickHouse's library in this process
    #[command(name = devstack::libchdb::SUBCOMMAND, hide = true)]
    RunLibchdb {
        library: PathBuf,
        /// The second address that it listens on for HTTP, which it then uses for replication
        #[arg(long)]
        replicates_at: Option<SocketAddrV4>,
        /// Where connections are encrypted; the library listens elsewhere
        #[arg(long)]
        encrypted: Vec<SocketAddrV4>,
        #[arg(long)]
        ca: Option<PathBuf>,
        #[arg(long)]
        certificate: Option<PathBuf>,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// Arguments for another program's command, including `--help`.
#[derive(Debug, Args)]
pub(crate) struct ForwardedArguments {
    /// See --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) values: Vec<OsString>,
}

impl ForwardedArguments {
    /// Returns whether they request help.
    pub(crate) fn has_help(&self) -> bool {
        self.values.iter().any(|argument| ["--help", "-h", "help"].iter().any(|help| argument == help))
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Up {
    /// Start in the background and return once everything is ready
    #[arg(long)]
    pub(crate) detach: bool,
    /// Start three brokers of Kafka, two shards of ClickHouse with two replicas each, two servers of Postgres, two of
    /// each service
    ///
    /// Its data is separate from that of a stack without --cluster. Only one of the two can run at a time.
    #[arg(long)]
    pub(crate) cluster: bool,
    /// Run as the process in the background
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
pub(crate) struct ServerName {
    /// ingest, processor, api, dispatcher, kafka, clickhouse or postgres; in a cluster all of them or, as ingest-2, one
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Soak {
    /// Build with optimisations
    #[arg(long)]
    pub(crate) release: bool,
    /// The fault and its options
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
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_definitions_are_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_of_an_operator_command_is_forwarded() {
        let cli = Cli::try_parse_from(["./dev", "admin", "--help"]).unwrap();
        let Command::Admin(arguments) = cli.command else { panic!("{cli:?}") };
        assert!(arguments.has_help());
        assert_eq!(arguments.values, ["--help"]);
    }
}
