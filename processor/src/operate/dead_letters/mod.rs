//! `processor dead-letters`: lists, shows and resubmits records that could not be read.

mod letter;
mod resubmit;

use std::fmt;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use schemas::topic;
use serde::Serialize;

use self::letter::{Letter, Place};
use super::Answer;
use super::reading::{Part, read};
use crate::Config;
use crate::pipeline::log::Log;

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

/// Selects the dead letters that match every given condition.
#[derive(Debug, Clone, Default, Args)]
struct Filter {
    /// Those that came from this topic, named without the deployment's prefix.
    #[arg(long)]
    topic: Option<String>,
    /// Those whose reason contains this text.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Those written at or after this time, such as 2026-11-21T08:00:00Z.
    #[arg(long, value_name = "TIME")]
    since: Option<DateTime<Utc>>,
    /// Those written before this time.
    #[arg(long, value_name = "TIME")]
    until: Option<DateTime<Utc>>,
    /// The one at this place in the topic of dead letters.
    #[arg(long)]
    place: Option<Place>,
}

impl Filter {
    fn is_empty(&self) -> bool {
        let Self { topic, reason, since, until, place } = self;
        topic.is_none() && reason.is_none() && since.is_none() && until.is_none() && place.is_none()
    }

    /// Returns whether a letter matches; `prefix` is the deployment's.
    fn matches(&self, letter: &Letter, prefix: &str) -> bool {
        let Self { topic, reason, since, until, place } = self;
        topic.as_ref().is_none_or(|topic| letter.topic.strip_prefix(prefix) == Some(topic))
            && reason.as_ref().is_none_or(|reason| letter.reason.contains(reason))
            && since.is_none_or(|since| letter.written_at.is_some_and(|at| at >= since))
            && until.is_none_or(|until| letter.written_at.is_some_and(|at| at < until))
            && place.is_none_or(|place| letter.place == place)
    }
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

/// Calls `take` with chunks of matching dead letters until it returns false or the topic's current end is reached.
async fn for_each(
    config: &Config,
    filter: &Filter,
    mut take: impl AsyncFnMut(Vec<Letter>) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let kafka = &config.kafka;
    let topic: Arc<str> = kafka.topic(topic::DEAD_LETTERS.name).into();
    let prefix = kafka.topic("");
    let log = Log::new(kafka, &topic, "hopline-reader")?;
    for partition in 0..log.partitions().await.context("cannot ask Kafka for the dead letters")? {
        let extent = log.extent(partition).await.context("cannot ask Kafka for the dead letters")?;
        let mut offsets = extent.start..extent.end;
        if let Some(place) = filter.place {
            let is_here = place.partition == partition && offsets.contains(&place.offset);
            offsets = if is_here { place.offset..place.offset + 1 } else { 0..0 };
        }
        let (filter, prefix) = (filter.clone(), prefix.clone());
        let mut log = read(kafka, Part { topic: Arc::clone(&topic), partition, offsets }, move |message| {
            Some(Letter::read(message)).filter(|letter| filter.matches(letter, &prefix))
        });
        while let Some(chunk) = log.recv().await {
            let letters: Vec<Letter> = chunk?.into_iter().flatten().collect();
            if !letters.is_empty() && !take(letters).await? {
                return Ok(());
            }
        }
    }
    Ok(())
}
