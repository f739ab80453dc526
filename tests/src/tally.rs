//! Compares the clicks that were answered with the records of topic `clicks`.

use std::collections::HashMap;
use std::fmt;

use schemas::message::{Click, Message as _};
use schemas::topic::CLICKS;

use crate::engines::Isolated;
use crate::load::Log;
use crate::log::for_each_record;

/// A topic, compared with a log of answered clicks.
#[derive(Debug)]
pub struct Tally {
    /// Clicks that were answered.
    pub answered: usize,
    /// Distinct clicks on the topic.
    pub on_topic: usize,
    /// Answered clicks that are not on the topic.
    pub missing: Vec<Box<str>>,
    /// Records beyond the first of each click.
    pub repeats: usize,
    /// Clicks with more than one record that is not marked as a possible repeat.
    pub counted_twice: Vec<Box<str>>,
    /// Clicks on the topic that were not answered.
    pub strangers: usize,
    /// Clicks without an answer, the maximum of `strangers`.
    unanswered: u64,
    /// Clicks that were answered and not stored.
    dropped: u64,
}

/// The records of one click.
#[derive(Debug, Default)]
struct Seen {
    unmarked: usize,
    marked: usize,
    answered: bool,
}

impl Tally {
    /// Reads the topic to its end and compares.
    ///
    /// # Panics
    /// When Kafka is unreachable, a record is not a click, or an id was answered twice.
    pub fn of(engines: &Isolated, log: &Log) -> Self {
        let mut seen: HashMap<Box<str>, Seen> = HashMap::new();
        for_each_record(engines, CLICKS, |record| {
            let click = Click::decode(&record.value).unwrap();
            seen.entry(click.click_id.into()).or_default().count(click.again);
        });
        Self::compare(seen, log)
    }

    fn compare(mut seen: HashMap<Box<str>, Seen>, log: &Log) -> Self {
        let mut missing = Vec::new();
        for answer in &log.answers {
            match seen.get_mut(&answer.click_id) {
                Some(seen) => {
                    assert!(!seen.answered, "{} was answered twice", answer.click_id);
                    seen.answered = true;
                }
                None => missing.push(answer.click_id.clone()),
            }
        }
        let twice = seen.iter().filter(|(_, seen)| seen.unmarked > 1);
        Self {
            answered: log.answers.len(),
            on_topic: seen.len(),
            missing,
            repeats: seen.values().map(|seen| seen.unmarked + seen.marked - 1).sum(),
            counted_twice: twice.map(|(id, _)| id.clone()).collect(),
            strangers: seen.values().filter(|seen| !seen.answered).count(),
            unanswered: log.unanswered,
            dropped: log.dropped,
        }
    }

    /// Asserts that every answered click is on the topic, and none would be counted twice.
    ///
    /// # Panics
    /// When the assertion fails.
    pub fn is_exact(&self) {
        assert!(self.answered > 0, "nothing was answered");
        assert!(self.missing.is_empty(), "{self}; such as {}", self.missing[0]);
        assert_eq!(self.dropped, 0, "{self}");
        self.has_no_more();
    }

    /// Asserts that no click would be counted twice, and none is on the topic without a request.
    ///
    /// # Panics
    /// When the assertion fails.
    pub fn has_no_more(&self) {
        assert!(self.counted_twice.is_empty(), "{self}; such as {}", self.counted_twice[0]);
        assert!(self.strangers as u64 <= self.unanswered, "{self}");
    }
}

impl Seen {
    fn count(&mut self, again: bool) {
        *(if again { &mut self.marked } else { &mut self.unmarked }) += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answered, on_topic, missing, repeats, counted_twice, strangers, unanswered, dropped } =
            self;
        let (missing, counted_twice) = (missing.len(), counted_twice.len());
        write!(
            f,
            "{answered} clicks answered, {dropped} dropped, {on_topic} on the topic, {missing} missing, \
             {counted_twice} unmarked more than once, {repeats} repeats; {unanswered} without an answer, {strangers} \
             of them on the topic"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::load::Answer;

    /// Compares the records of a topic, as ids and marks, with answered clicks.
    fn tally(topic: &[(&str, bool)], answered: &[&str], unanswered: u64) -> Tally {
        let mut seen: HashMap<Box<str>, Seen> = HashMap::new();
        for (id, again) in topic {
            seen.entry((*id).into()).or_default().count(*again);
        }
        let answer =
            |id: &&str| Answer { click_id: (*id).into(), due: Instant::now(), latency: Duration::ZERO };
        let log = Log { answers: answered.iter().map(answer).collect(), unanswered, ..Log::default() };
        Tally::compare(seen, &log)
    }

    fn is_exact(tally: &Tally) -> bool {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tally.is_exact())).is_ok()
    }

    #[test]
    fn repeats_are_fine_when_they_are_marked() {
        let tally = tally(&[("a", false), ("a", true), ("a", true), ("b", true)], &["a", "b"], 0);
        assert!(is_exact(&tally));
        assert_eq!((tally.on_topic, tally.repeats), (2, 2));
    }

    #[test]
    fn missing_and_doubled_clicks_are_detected() {
        assert!(!is_exact(&tally(&[("a", false)], &["a", "b"], 0)));
        assert!(!is_exact(&tally(&[("a", false), ("a", false)], &["a"], 0)));
        assert!(!is_exact(&tally(&[], &[], 0)));
    }

    #[test]
    fn only_unanswered_clicks_may_be_strangers() {
        assert!(is_exact(&tally(&[("a", false), ("b", false)], &["a"], 1)));
        assert!(!is_exact(&tally(&[("a", false), ("b", false)], &["a"], 0)));
    }
}
