//! Finds dead letters.

use std::sync::Arc;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use clap::Args;
use schemas::topic;

use super::letter::{Letter, Place};
use crate::Config;
use crate::operate::reading::{GROUP, Part, read};
use crate::pipeline::log::Log;

/// Selects the dead letters that match every given condition.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct Filter {
    /// Those that came from this topic, named without the deployment's prefix.
    #[arg(long)]
    pub(super) topic: Option<String>,
    /// Those whose reason contains this text.
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: Option<String>,
    /// Those written at or after this time, such as 2026-11-21T08:00:00Z.
    #[arg(long, value_name = "TIME")]
    pub(super) since: Option<DateTime<Utc>>,
    /// Those written before this time.
    #[arg(long, value_name = "TIME")]
    pub(super) until: Option<DateTime<Utc>>,
    /// The one at this place in the topic of dead letters.
    #[arg(long)]
    pub(super) place: Option<Place>,
}

impl Filter {
    pub(super) fn is_empty(&self) -> bool {
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

/// Calls `take` with chunks of matching dead letters until it returns false or the topic's current end is reached.
pub(super) async fn for_each(
    config: &Config,
    filter: &Filter,
    mut take: impl AsyncFnMut(Vec<Letter>) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let kafka = &config.kafka;
    let topic: Arc<str> = kafka.topic(topic::DEAD_LETTERS.name).into();
    let prefix = kafka.topic("");
    let log = Log::new(kafka, &topic, &kafka.topic(GROUP))?;
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
