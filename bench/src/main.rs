//! The `bench` program: comparisons of a hot path with a peer or a limit, both measured in one run.
//!
//! A number of one machine at one moment says little about another. A ratio of two servers that took turns on the
//! same machine, in the same minutes, under the same load, says more; so every benchmark here reports one.

mod api;
mod bar;
mod child;
mod constant;
mod cpu;
mod deliver;
mod links;
mod load;
mod paced;
mod prepare;
mod process;
mod queries;
mod redirect;
mod statistics;
mod terminal;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use terminal::complain;

/// Compares hot paths with a peer or a limit, both measured in one run.
#[derive(Debug, Parser)]
#[command(
    name = "bench",
    version,
    after_help = "KAFKA_BROKERS, CLICKHOUSE_URL and DATABASE_URL name the engines; what a run makes there it removes.\n\
    Build what is measured in the same profile: cargo build --release -p bench -p ingest -p api --bins\n\
    Wrong usage ends with exit code 64."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The redirect of `ingest`, its clicks spooled and shipped to Kafka, against a constant 302
    #[command(
        after_help = "Examples:\n  bench redirect\n  bench redirect --pairs 9 --seconds 10 --skip outage,sustained\n  \
        bench redirect --json | jq .ratio.median\n\n\
        Exit codes: 0 after a complete run, whatever the ratio; 1 when there is no result, also because a click is \
        missing on its topic."
    )]
    Redirect(redirect::Options),
    /// List, create and authentication of `api` against the bare statements, and the list against constant JSON
    #[command(after_help = "Examples:\n  bench api\n  bench api --pairs 9 --seconds 10\n  \
        bench api --json | jq '.comparisons[] | [.name, .p50.median, .p99.median]'\n\n\
        Exit codes: 0 after a complete run, whatever the ratios; 1 when there is no result, also because the list's \
        counters are not those of ClickHouse.")]
    Api(api::Options),
    /// Memory per link of `ingest`, its start with links on the topic, and how soon a change is seen
    #[command(after_help = "Examples:\n  bench links\n  bench links --links 10000000 --start-links 0\n  \
        bench links --json | jq .memory.bytes_per_link_above_strings\n\n\
        Exit codes: 0 after a complete run, whatever the numbers; 1 when there is no result.")]
    Links(links::Options),
    /// Webhook deliveries of `dispatcher` against a loop that only signs and sends; latency, black holes, memory
    #[command(
        after_help = "Examples:\n  bench deliver\n  bench deliver --deliveries 20000 --pairs 1 --backlog 100000\n  \
        bench deliver --skip many,isolation,memory\n  \
        bench deliver --json | jq '.throughput[] | [.name, .ratio.median]'\n\n\
        Exit codes: 0 after a complete run, whatever the ratios; 1 when there is no result, also because a delivery \
        is missing or came twice."
    )]
    Deliver(deliver::Options),
    /// Counters, series and breakdowns of a link with many clicks, and what their rollups take
    #[command(
        after_help = "Examples:\n  bench queries\n  bench queries --clicks 1000000,10000000,100000000\n  \
        bench queries --json | jq '.[] | [.clicks, .questions[1].p99]'\n\n\
        A hundred million clicks took 35 minutes beside other work, and 12 GB of ClickHouse's disk.\n\
        Exit codes: 0 after a complete run, whatever the numbers; 1 when there is no result."
    )]
    Queries(queries::Options),
    /// Clicks to rows: `processor` against consuming alone, inserting alone, and ClickHouse's Kafka engine; freshness
    #[command(
        after_help = "Examples:\n  bench process\n  bench process --clicks 10000000 --pairs 3 --rates 1000\n  \
        bench process --clicks 20000 --pairs 1 --seconds 2\n  bench process --json | jq '.bars[]'\n\n\
        Exit codes: 0 after a complete run, whatever the ratios; 1 when there is no result, also because a click is \
        missing or a row twice."
    )]
    Process(process::Options),
    /// The log read again by `processor replay` beside live clicks, and `processor audit` of it
    #[command(after_help = "Examples:\n  bench replay\n  bench replay --clicks 100000 --rate 200\n  \
        bench replay --json | jq .freshness.p99_ms\n\n\
        Exit codes: 0 after a complete run, whatever the numbers; 1 when there is no result, also because a click is \
        missing or the audit finds a difference.")]
    Replay(process::replayed::Options),
    /// Receives deliveries; started by `deliver`
    #[command(hide = true)]
    Receive(deliver::receiver::Options),
    /// Serves the constant 302; started by `redirect`
    #[command(hide = true)]
    Constant(constant::Options),
    /// Serves constant JSON; started by `api`
    #[command(hide = true)]
    ConstantJson(api::constant::Options),
}

fn main() -> ExitCode {
    let end = match devstack::usage::parse::<Cli>().command {
        Command::Redirect(options) => {
            on(tokio::runtime::Builder::new_current_thread(), redirect::run(options))
        }
        Command::Deliver(options) => on(tokio::runtime::Builder::new_multi_thread(), deliver::run(options)),
        Command::Receive(options) => {
            on(tokio::runtime::Builder::new_current_thread(), deliver::receiver::run(options))
        }
        // The same runtime as the services have.
        Command::Constant(options) => on(tokio::runtime::Builder::new_multi_thread(), constant::run(options)),
        Command::Queries(options) => on(tokio::runtime::Builder::new_current_thread(), queries::run(options)),
        // A thread writes, others insert: the load is not to be what is measured.
        Command::Process(options) => on(tokio::runtime::Builder::new_multi_thread(), process::run(options)),
        Command::Replay(options) => {
            on(tokio::runtime::Builder::new_multi_thread(), process::replayed::run(options))
        }
        Command::Links(options) => on(tokio::runtime::Builder::new_current_thread(), links::run(options)),
        Command::Api(options) => on(tokio::runtime::Builder::new_current_thread(), api::run(options)),
        Command::ConstantJson(options) => {
            on(tokio::runtime::Builder::new_multi_thread(), api::constant::run(options))
        }
    };
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn on(
    mut runtime: tokio::runtime::Builder,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    runtime.enable_all().build().context("cannot start the runtime")?.block_on(work)
}
