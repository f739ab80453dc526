//! The operators' commands; they may run beside processors.

pub mod adopt_topic;
mod answer;
mod applied_recounts;
pub mod audit;
mod close_again;
pub mod dead_letters;
pub mod lag;
pub mod reading;
pub(crate) mod rebuild;
pub mod recount;
mod release_source;
pub mod replay;

use anyhow::Context as _;
use chrono::NaiveDate;
use clap::Subcommand;
use service::clickhouse::Clickhouse;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

pub use self::answer::Answer;
use crate::Config;

/// The exit code of an audit that found differences.
const UNEQUAL: u8 = 1;

/// The exit code of an audit that failed.
const UNKNOWN: u8 = 2;

/// The program's commands.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Counts everything again and compares the log, the raw rows and the rollups.
    ///
    /// It only reads, and processors may keep running. The exit code is 0 when everything is equal, 1 when something
    /// differs (each difference is named), and 2 when the audit failed.
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
    /// Lists, shows and resubmits records that could not be read.
    DeadLetters(dead_letters::DeadLetters),
    /// Reads a part of the log again, and rebuilds its days.
    ///
    /// Reports and live clicks continue meanwhile. Correct rows stay unchanged, lost rows come back, and rows of
    /// deleted links do not. Days that were closed at least an hour ago are rebuilt one after the other; later days get
    /// their missing rows. After a kill, run it again; `--from` may be the interrupted day.
    ///
    /// Examples: processor replay --from 2026-11-20T00:00:00Z --to 2026-11-21T00:00:00Z --dry-run;
    /// processor replay --offsets 3:1000-2000
    Replay(replay::Replay),
    /// Classifies stored clicks by the current rules: class, device type, browser, operating system.
    ///
    /// Reports and live clicks continue meanwhile. It covers the days that were closed at least an hour ago. Give the
    /// edges the new lists first, because edges classify live clicks. After a kill, run it again: it does the rest.
    ///
    /// Example: processor recount --dry-run
    Recount(recount::Recount),
    /// Computes the rollups of closed slices again, from their clicks.
    ///
    /// For rollups that do not match their clicks; `audit` names their slices. Commands that change clicks do this
    /// themselves.
    ///
    /// Example: processor close-again 2026-11-20
    CloseAgain {
        /// The slices, each a day by the broker's clock.
        #[arg(required = true, value_name = "DAY")]
        slices: Vec<NaiveDate>,
        /// Print the answer as one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// Continues with a topic of clicks that was wiped or replaced, and counts its clicks from its start.
    ///
    /// Counted clicks stay counted. It fails when the log is the one that the rows came from. Processors may keep
    /// running. After a kill, run it again.
    ///
    /// Example: processor adopt-topic --dry-run
    AdoptTopic(adopt_topic::AdoptTopic),
    /// Continues a source of clicks whose last rows were lost for ever with a replica of ClickHouse.
    ///
    /// Until then its partition is not counted further; the processor's log names the source. The lost clicks are
    /// counted again from Kafka. Run `api migrate --replace-replica` before it. Processors may keep running.
    ///
    /// Example: processor release-source --src 65536
    ReleaseSource(release_source::ReleaseSource),
}

/// Runs an operator's command.
///
/// # Errors
/// When the command fails; the message says why.
pub async fn operate(config: Config, command: Command) -> anyhow::Result<Answer> {
    let runtime = Handle::current();
    // On one thread, so that a command's future need not be `Send`.
    let work = spawn_blocking(move || runtime.block_on(dispatch(&config, command)));
    work.await.context("the command panicked")?
}

async fn dispatch(config: &Config, command: Command) -> anyhow::Result<Answer> {
    Clickhouse::new(&config.clickhouse).choose_working().await;
    // A day must not be replaced by less than it has.
    if matches!(command, Command::Replay(_) | Command::Recount(_) | Command::CloseAgain { .. }) {
        config.upkeep_store().sync().await.context("a replica of ClickHouse lacks rows of another one")?;
    }
    match command {
        Command::Audit { json } => match audit::audit(config).await {
            Ok(report) => {
                let code = if report.equal { 0 } else { UNEQUAL };
                Ok(Answer { code, ..Answer::new(&report, json)? })
            }
            // Returned as an error, this would exit with 1, which means that something differs.
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
        Command::ReleaseSource(command) => {
            Answer::new(&release_source::release_source(config, &command).await?, command.json)
        }
    }
}
