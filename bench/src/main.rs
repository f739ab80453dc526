//! The `bench` program: comparisons of a hot path with a peer or a limit, both measured in one run.
//!
//! A rate alone depends on the machine. The ratio of two programs that take turns on one machine depends on it less.

mod api;
mod bar;
mod constant;
mod cpu;
mod deliver;
mod load;
mod process;
mod queries;
mod redirect;
mod scale;
mod server;
mod statistics;
mod terminal;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use serde::Serialize;
use tokio::runtime::Builder;

/// Compares hot paths with a peer or a limit, both measured in one run.
#[derive(Debug, Parser)]
#[command(
    name = "bench",
    version,
    after_help = "KAFKA_BROKERS, CLICKHOUSE_URL and DATABASE_URL name the engines. \
    A run removes its topics and databases.\n\
    Build the measured programs in the same profile: see bench/README.md\n\n\
    Exit codes: 0 after a complete run, whatever the ratios; 1 or 101 when there is no result, for example because a \
    click is missing; 64 for wrong usage."
)]
struct Cli {
    /// Print the result as one JSON value
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The redirect of `ingest`, with its clicks shipped to Kafka, against a constant 302
    Redirect(redirect::Options),
    /// List and create of `api` against bare statements, and the list against constant JSON
    Api(api::Options),
    /// Webhook deliveries of `dispatcher` against a loop that only signs and sends; latency
    Deliver(deliver::Options),
    /// Counters, series and breakdowns of a link with many clicks, against `SELECT 1`
    Queries(queries::Options),
    /// Clicks to rows: `processor` against consuming alone, inserting alone and ClickHouse's Kafka engine; freshness
    Process(process::Options),
    /// `processor replay` beside live clicks, and `processor audit`
    Replay(process::replay::Options),
    /// Several servers of each kind against one: processors, replicas and shards of ClickHouse, edges, dispatchers
    Scale(scale::Options),
    /// Serves a constant answer; started by `redirect` and `api`
    #[command(hide = true)]
    Constant(constant::Options),
}

fn main() -> ExitCode {
    let Cli { json, command } = devstack::usage::parse::<Cli>();
    // One thread for a closed load; the services' runtime for everything that serves or inserts.
    let (one, many) = (Builder::new_current_thread(), Builder::new_multi_thread());
    let result = match command {
        Command::Redirect(options) => {
            on(one, async { print(json, &redirect::run(options).await?, |it| it.text()) })
        }
        Command::Api(options) => on(one, async { print(json, &api::run(options).await?, |it| it.text()) }),
        Command::Queries(options) => {
            on(one, async { print(json, &queries::run(options).await?, |it| queries::text(it)) })
        }
        Command::Deliver(options) => {
            on(many, async { print(json, &deliver::run(options).await?, |it| it.text()) })
        }
        Command::Process(options) => {
            on(many, async { print(json, &process::run(options).await?, |it| it.text()) })
        }
        Command::Replay(options) => {
            on(many, async { print(json, &process::replay::run(options).await?, |it| it.text()) })
        }
        Command::Scale(options) => {
            on(many, async { print(json, &scale::run(options).await?, |it| it.text()) })
        }
        Command::Constant(options) => on(many, constant::run(options)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::report_progress(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn on(mut runtime: Builder, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    runtime.enable_all().build().context("cannot start the runtime")?.block_on(work)
}

fn print<T: Serialize>(json: bool, result: &T, text: impl Fn(&T) -> String) -> anyhow::Result<()> {
    terminal::say(&if json { serde_json::to_string(result)? } else { text(result) });
    Ok(())
}
