//! Counts the clicks on the topic after a run: a rate with missing clicks is no result.

use std::collections::HashSet;
use std::fmt;

use ::tests::engines::Isolated;
use ::tests::log::for_each_record;
use anyhow::{Context as _, ensure};
use schemas::message::{Class, Click, Message as _};
use schemas::topic::CLICKS;
use serde::Serialize;

/// The clicks of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Clicks {
    /// Answered redirects.
    answered: u64,
    /// Distinct clicks on the topic, equal to `answered`.
    on_topic: u64,
    /// Further records, each marked as a possible repeat; the processor drops them.
    repeats: u64,
    /// Distinct visitors.
    visitors: u64,
}

impl fmt::Display for Clicks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answered, on_topic, repeats, visitors } = self;
        write!(
            formatter,
            "{answered} answered, {on_topic} on the topic, {repeats} marked repeats, {visitors} visitors"
        )
    }
}

/// Reads the topic to its end and counts its clicks.
///
/// # Errors
/// When a click is missing, invented, repeated without a mark, or not from a browser.
pub(crate) fn count(engines: &Isolated, answered: u64) -> anyhow::Result<Clicks> {
    let mut tally = Tally::default();
    let mut unreadable = None;
    for_each_record(engines, CLICKS, |record| match Click::decode(&record.value) {
        Ok(click) => tally.add(click),
        Err(error) => unreadable = Some(error),
    });
    unreadable.map_or(Ok(()), Err).context("a record of the topic is not a click")?;
    tally.check(answered).with_context(|| format!("no result; look at topic {}", engines.topic(CLICKS)))
}

#[derive(Default)]
struct Tally {
    ids: HashSet<String>,
    visitors: HashSet<u64>,
    records: u64,
    marked: u64,
    humans: u64,
}

impl Tally {
    fn add(&mut self, click: Click) {
        self.records += 1;
        self.marked += u64::from(click.again);
        self.humans += u64::from(click.class == Class::Human);
        self.visitors.insert(click.visitor);
        self.ids.insert(click.click_id);
    }

    fn check(self, answered: u64) -> anyhow::Result<Clicks> {
        let on_topic = self.ids.len() as u64;
        ensure!(
            on_topic == answered,
            "{answered} redirects were answered, but {on_topic} clicks are on the topic"
        );
        let repeats = self.records - on_topic;
        ensure!(repeats <= self.marked, "{repeats} records are repeats, but only {} are marked", self.marked);
        let others = self.records - self.humans;
        ensure!(others == 0, "{others} clicks of browsers were not classified as human");
        Ok(Clicks { answered, on_topic, repeats, visitors: self.visitors.len() as u64 })
    }
}

#[cfg(test)]
mod tests {
    use schemas::id::{LinkId, WorkspaceId};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn click(id: &str, again: bool) -> Click {
        let message = json!({
            "v": 1, "click_id": id, "link_id": LinkId::from_uuid(Uuid::nil()),
            "workspace_id": WorkspaceId::from_uuid(Uuid::nil()), "slug": "s",
            "occurred_at": "2026-01-02T03:04:05.678Z", "class": "human", "visitor": "00000000000000ff", "again": again,
        });
        Click::decode(message.to_string().as_bytes()).unwrap()
    }

    fn check(clicks: &[(&str, bool)], answered: u64) -> anyhow::Result<Clicks> {
        let mut tally = Tally::default();
        clicks.iter().for_each(|(id, again)| tally.add(click(id, *again)));
        tally.check(answered)
    }

    #[test]
    fn a_missing_or_additional_click_is_an_error() {
        assert_eq!(check(&[("a", false), ("b", false)], 2).unwrap().on_topic, 2);
        assert!(check(&[("a", false)], 2).is_err());
        assert!(check(&[("a", false), ("b", false)], 1).is_err());
    }

    #[test]
    fn only_a_marked_record_may_be_a_repeat() {
        assert_eq!(check(&[("a", false), ("a", true)], 1).unwrap().repeats, 1);
        assert!(check(&[("a", false), ("a", false)], 1).is_err());
    }
}
