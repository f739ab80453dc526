//! `processor dead-letters`: lists, shows and resubmits records that could not be read.

mod filter;
mod letter;
mod resubmit;

use std::fmt;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;

use self::filter::{Filter, for_each};
use self::letter::{Letter, Place};
use super::Answer;
use crate::Config;

/// Lists, shows and resubmits dead letters.
#[derive(Debug, Clone, Args)]
pub struct DeadLetters {
    #[command(subcommand)]
    command: Command,

    /// Print the answer as JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Clone, Subcommand)]
enum Command {
    /// Lists dead letters, the oldest first.
    ///
    /// Example: processor dead-letters list --topic clicks --reason "unknown message version"
    List {
        #[command(flatten)]
        filter: Filter,
        /// Maximum number of dead letters.
        #[arg(long, value_name = "COUNT", default_value = "1000")]
        limit: usize,
    },
    /// Shows one dead letter with its bytes.
    ///
    /// Example: processor dead-letters show 0/17
    Show {
        /// Its place in the topic of dead letters, as `list` shows it.
        place: Place,
    },
    /// Sends dead letters to the topics and partitions that they came from.
    ///
    /// Only records that this build can read are sent. Clicks are marked as possible repeats, so each counts once
    /// however often it is sent.
    ///
    /// Example: processor dead-letters resubmit --topic clicks --reason "unknown message version" --dry-run
    Resubmit {
        #[command(flatten)]
        filter: Filter,
        /// Send every dead letter; required when there is no filter.
        #[arg(long)]
        all: bool,
        /// Print what would be sent, and send nothing.
        #[arg(long)]
        dry_run: bool,
    },
}

/// Some dead letters, without their bytes.
#[derive(Debug, Serialize)]
struct List {
    letters: Vec<Letter>,
    /// Whether there are more.
    more: bool,
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in &self.letters {
            writeln!(f, "{letter}")?;
        }
        let more = if self.more { ", and there are more" } else { "" };
        writeln!(f, "{} dead letters{more}", self.letters.len())
    }
}

/// Runs the command.
///
/// # Errors
/// When Kafka does not answer, or there is no such letter.
pub async fn run(config: &Config, DeadLetters { command, json }: DeadLetters) -> anyhow::Result<Answer> {
    match command {
        Command::List { filter, limit } => {
            let mut list = List { letters: Vec::new(), more: false };
            for_each(config, &filter, async |letters| {
                let remaining = limit - list.letters.len();
                list.more |= letters.len() > remaining;
                list.letters.extend(letters.into_iter().take(remaining).map(Letter::without_payload));
                Ok(!list.more)
            })
            .await?;
            Answer::new(&list, json)
        }
        Command::Show { place } => {
            let filter = Filter { place: Some(place), ..Filter::default() };
            let mut found = None;
            for_each(config, &filter, async |letters| {
                found = letters.into_iter().next();
                Ok(found.is_none())
            })
            .await?;
            match found {
                Some(letter) => Answer::new(&letter, json),
                None => bail!("there is no dead letter at {place}"),
            }
        }
        Command::Resubmit { filter, all, dry_run } => {
            if filter.is_empty() && !all {
                bail!("no filter is given: choose the dead letters to send, or use --all");
            }
            Answer::new(&resubmit::resubmit(config, &filter, dry_run).await?, json)
        }
    }
}
