//! What operators do from the command line, beside processors that run.

pub mod adopt_topic;
pub mod audit;
mod close_again;
pub mod dead_letters;
pub mod lag;
pub mod reading;
pub(crate) mod rebuild;
pub mod recount;
pub mod replay;

use std::fmt;

use anyhow::Context as _;
use chrono::NaiveDate;
use clap::Subcommand;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use crate::Config;

/// The exit code of a command that found what must not be.
const UNEQUAL: u8 = 1;

/// The exit code of an audit that could not look.
const UNKNOWN: u8 = 2;

/// What the program does instead of consuming.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Counts everything again and says whether it is equal: the log, the raw rows, the rollups.
    ///
    /// It only reads, and processors may go on meanwhile. The exit code is 0 when everything is equal, 1 when
    /// something is not (each difference is named), and 2 when it could not look.
    ///
    /// Example: processor audit --json | jq .differences
    Audit {
        /// Print the answer as one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Shows how far each partition is counted, in records and in time.
    ///
    /// Example: processor lag
    Lag {
        /// Print the answer as one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists messages that nobody could read, shows one of them, sends them again.
    DeadLetters(dead_letters::DeadLetters),
    /// Reads a part of the log again, and makes the days of it again.
    ///
    /// Reports and live clicks go on meanwhile. What is counted right stays as it is, what was lost comes back, and
    /// deleted links do not. Days that were closed an hour ago or longer are made again one after the other; to later
    /// ones, what is missing is added. Killed, it is started again, perhaps from the last day on that it was at.
    ///
    /// Examples: processor replay --from 2026-11-20T00:00:00Z --to 2026-11-21T00:00:00Z --dry-run;
    /// processor replay --offsets 3:1000-2000
    Replay(replay::Replay),
    /// Reads stored clicks by the present rules of agents: class, kind of device, browser, operating system.
    ///
    /// Reports and live clicks go on meanwhile. It is of the days that were closed an hour ago or longer. Give the edges
    /// the new lists first: live clicks say what the edges read. Killed, it is started again, and does what is left.
    ///
    /// Example: processor recount --dry-run
    Recount(recount::Recount),
    /// Computes the rollups of closed slices again, from their clicks.
    ///
    /// For rollups that are not what their clicks say, which `audit` names by the slice. Whatever changes clicks does this
    /// by itself.
    ///
    /// Example: processor close-again 2026-11-20
    CloseAgain {
        /// The slices, each a day of the broker.
        #[arg(required = true, value_name = "DAY")]
        slices: Vec<NaiveDate>,
        /// Print the answer as one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Goes on with a topic of clicks that was wiped or replaced: its clicks are counted from its start.
    ///
    /// What is counted stays counted. It is refused when the log is the one that the rows came from. Processors may run
    /// or not; killed, it is started again.
    ///
    /// Example: processor adopt-topic --dry-run
    AdoptTopic(adopt_topic::AdoptTopic),
}

/// What a command has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// For standard output.
    pub text: String,
    /// The exit code.
    pub code: u8,
}

impl Answer {
    fn new<T: Serialize + fmt::Display>(value: &T, json: bool) -> anyhow::Result<Self> {
        let text = if json { serde_json::to_string(value)? } else { value.to_string() };
        Ok(Self { text, code: 0 })
    }
}

/// Does what an operator has asked for.
///
/// # Errors
/// When it could not be done; the message says why.
pub async fn operate(config: Config, command: Command) -> anyhow::Result<Answer> {
    let runtime = Handle::current();
    // A thread of its own: a command is one piece of work, and what it borrows never changes threads.
    let work = spawn_blocking(move || runtime.block_on(perform(&config, command)));
    work.await.context("the command panicked")?
}

async fn perform(config: &Config, command: Command) -> anyhow::Result<Answer> {
    match command {
        Command::Audit { json } => match audit::audit(config).await {
            Ok(report) => {
                let code = if report.equal { 0 } else { UNEQUAL };
                Ok(Answer { code, ..Answer::new(&report, json)? })
            }
            // An error ends a program with 1, which would say that something is unequal.
            Err(error) => {
                tracing::error!("cannot audit: {error:#}");
                Ok(Answer { text: String::new(), code: UNKNOWN })
            }
        },
        Command::Lag { json } => Answer::new(&lag::lag(config).await?, json),
        Command::DeadLetters(command) => dead_letters::run(config, command).await,
        Command::Replay(command) => Answer::new(&replay::replay(config, &command).await?, command.json),
        Command::Recount(command) => Answer::new(&recount::recount(config, &command).await?, command.json),
        Command::CloseAgain { slices, json } => {
            Answer::new(&close_again::close_again(config, &slices).await?, json)
        }
        Command::AdoptTopic(command) => {
            Answer::new(&adopt_topic::adopt_topic(config, &command).await?, command.json)
        }
    }
}
