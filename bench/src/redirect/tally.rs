//! What is on the topic in the end: a fast edge that loses clicks is no result.

use std::{collections::HashSet, fmt};

use ::tests::{engines::Isolated, log::for_each_record};
use anyhow::{Context as _, ensure};
use schemas::{
    message::{Class, Click, Message as _},
    topic::CLICKS,
};
use serde::Serialize;

/// The clicks of a run.
#[derive(Debug, Default, Serialize)]
pub(super) struct Clicks {
    /// Redirects that were answered.
    answered: u64,
    /// Distinct clicks on the topic: as many, or there is no result.
    on_topic: u64,
    /// Records above that, each marked as a possible repeat; the processor drops them.
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

/// Reads the topic to its end.
///
/// # Errors
/// When it does not hold exactly the answered clicks, or other clicks than browsers'.
pub(super) fn count(engines: &Isolated, answered: u64) -> anyhow::Result<Clicks> {
    let mut tally = Tally::default();
    let mut unreadable = None;
    for_each_record(engines, CLICKS, |record| match Click::decode(&record.value) {
        Ok(click) => tally.add(click),
        Err(error) => unreadable = Some(error),
    });
    unreadable.map_or(Ok(()), Err).context("a record of the topic is no click")?;
    tally.judge(answered).with_context(|| format!("no result; look at topic {}", engines.topic(CLICKS)))
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

    fn judge(self, answered: u64) -> anyhow::Result<Clicks> {
        let on_topic = self.ids.len() as u64;
        ensure!(
            on_topic == answered,
            "{answered} redirects were answered, but {on_topic} clicks are on the topic"
        );
        let repeats = self.records - on_topic;
        ensure!(repeats <= self.marked, "{repeats} records are repeats, but only {} are marked", self.marked);
        let others = self.records - self.humans;
        ensure!(others == 0, "{others} clicks of browsers were not taken for a human's");
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

    fn judge(clicks: &[(&str, bool)], answered: u64) -> anyhow::Result<Clicks> {
        let mut tally = Tally::default();
        clicks.iter().for_each(|(id, again)| tally.add(click(id, *again)));
        tally.judge(answered)
    }

    #[test]
    fn a_missing_click_and_one_too_many_are_no_result() {
        assert_eq!(judge(&[("a", false), ("b", false)], 2).unwrap().on_topic, 2);
        assert!(judge(&[("a", false)], 2).is_err());
        assert!(judge(&[("a", false), ("b", false)], 1).is_err());
    }

    #[test]
    fn only_a_marked_record_may_be_a_repeat() {
        assert_eq!(judge(&[("a", false), ("a", true)], 1).unwrap().repeats, 1);
        assert!(judge(&[("a", false), ("a", false)], 1).is_err());
    }
}
