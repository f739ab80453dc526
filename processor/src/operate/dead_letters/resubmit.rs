//! Sends dead letters to the topics that they came from.

use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::try_join_all;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use schemas::message::{Click, Conversion, DecodeError, LinkEvent, Message as _, mark_again};
use schemas::topic;
use serde::Serialize;
use service::kafka::Context;

use super::filter::{Filter, for_each};
use super::letter::{Letter, Place};
use crate::Config;

/// How long Kafka may take for one record.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What was sent, or would be sent in a dry run.
#[derive(Debug, Default, Serialize)]
pub(super) struct Outcome {
    dry_run: bool,
    /// Sent to their topics.
    sent: u64,
    /// Not sent: this build cannot read them either.
    unreadable: u64,
    /// Not sent: they came from a topic whose messages must not be sent again.
    refused: u64,
    /// Not sent: another dead letter of the same message was sent.
    repeated: u64,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dry_run, sent, unreadable, refused, repeated } = self;
        let sent_or_not = if *dry_run { "would be sent" } else { "sent" };
        writeln!(f, "{sent} {sent_or_not}")?;
        writeln!(f, "{unreadable} not sent because this build cannot read them")?;
        writeln!(f, "{refused} not sent because messages of their topic are not sent again")?;
        writeln!(f, "{repeated} not sent because another dead letter of the same message was sent")
    }
}

/// Why a letter is not sent.
#[derive(Debug)]
enum SkipReason {
    Unreadable(DecodeError),
    Refused,
}

/// Sends the matching letters. After an interruption it can be run again: a click that is sent twice counts once.
pub(super) async fn resubmit(config: &Config, filter: &Filter, dry_run: bool) -> anyhow::Result<Outcome> {
    let producer: FutureProducer<Context> = config
        .kafka
        .client_config("processor-resubmit")
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .create_with_context(Context::default())
        .context("cannot create a Kafka producer")?;
    let prefix = config.kafka.topic("");
    let mut outcome = Outcome { dry_run, ..Outcome::default() };
    // Several readers of a topic each write a dead letter for the same message.
    let mut identities = HashSet::new();
    for_each(config, filter, async |letters| {
        let mut sending = Vec::new();
        for letter in letters {
            match bytes_to_send(&letter, &prefix) {
                Err(SkipReason::Refused) => outcome.refused += 1,
                Err(SkipReason::Unreadable(error)) => {
                    outcome.unreadable += 1;
                    tracing::debug!(place = %letter.place, "did not send dead letter {}: {error}", letter.place);
                }
                Ok(_) if !identities.insert(Identity::of(&letter)) => outcome.repeated += 1,
                Ok(bytes) => {
                    outcome.sent += 1;
                    if !dry_run {
                        sending.push(send(&producer, letter, bytes));
                    }
                }
            }
        }
        try_join_all(sending).await?;
        tracing::info!(sent = outcome.sent, dry_run, "resubmitted {} dead letters so far", outcome.sent);
        Ok(true)
    })
    .await?;
    Ok(outcome)
}

/// Identifies the message of a dead letter.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Identity {
    topic: String,
    /// The place of the message; if unknown, the place of the letter, which then counts as a separate message.
    place: Result<Place, Place>,
    /// A replaced topic had other bytes at the same place.
    payload: u64,
}

impl Identity {
    fn of(letter: &Letter) -> Self {
        let mut payload = DefaultHasher::new();
        letter.payload.hash(&mut payload);
        Self {
            topic: letter.topic.clone(),
            place: letter.source.ok_or(letter.place),
            payload: payload.finish(),
        }
    }
}

async fn send(producer: &FutureProducer<Context>, letter: Letter, bytes: Vec<u8>) -> anyhow::Result<()> {
    let mut record = FutureRecord::to(&letter.topic).payload(&bytes);
    let place = letter.place.to_string();
    record = match (&letter.key, letter.source) {
        (Some(key), _) => record.key(&key[..]),
        // The key selects the partition: sent again, it reaches the same one, which recognizes the repeat.
        (None, None) => record.key(place.as_bytes()),
        (None, Some(_)) => record,
    };
    if let Some(source) = letter.source {
        record = record.partition(source.partition);
    }
    let delivered = producer.send(record, Timeout::After(TIMEOUT)).await;
    delivered
        .map_err(|(error, _)| error)
        .with_context(|| format!("Kafka did not accept dead letter {}", letter.place))?;
    Ok(())
}

/// Returns the bytes to send; a click is marked as a possible repeat.
fn bytes_to_send(letter: &Letter, prefix: &str) -> Result<Vec<u8>, SkipReason> {
    let bytes = letter.payload.as_deref().unwrap_or_default();
    let known = |topic: topic::Topic| letter.topic.strip_prefix(prefix) == Some(topic.name);
    let decoded = if known(topic::CLICKS) {
        return Click::decode(bytes).map(|_| mark_again(bytes).into_owned()).map_err(SkipReason::Unreadable);
    } else if known(topic::CONVERSIONS) {
        Conversion::decode(bytes).map(drop)
    } else if known(topic::LINK_EVENTS) {
        LinkEvent::decode(bytes).map(drop)
    } else {
        // The topic of links is compacted: an old value would replace the current one.
        return Err(SkipReason::Refused);
    };
    decoded.map(|()| bytes.to_vec()).map_err(SkipReason::Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLICK: &str = include_str!("../../../../schemas/fixtures/click.v1.bare.json");

    fn letter(topic: &str, payload: &str) -> Letter {
        Letter {
            place: "0/1".parse().unwrap(),
            written_at: None,
            topic: topic.to_owned(),
            source: "3/4".parse().ok(),
            reason: String::new(),
            schema: String::new(),
            key: None,
            payload_bytes: payload.len(),
            payload: Some(payload.as_bytes().to_vec()),
        }
    }

    #[test]
    fn a_click_is_marked_and_keeps_unknown_fields() {
        let more = CLICK.replacen('{', "{\"added_later\":[1],", 1);
        let sent = bytes_to_send(&letter("dev.clicks", &more), "dev.").unwrap();
        assert!(Click::decode(&sent).unwrap().again);
        assert!(String::from_utf8(sent).unwrap().contains("\"added_later\":[1]"));
    }

    #[test]
    fn letters_of_one_message_share_its_source() {
        let one = letter("clicks", CLICK);
        let same = Letter { place: "0/9".parse().unwrap(), ..one.clone() };
        assert_eq!(Identity::of(&one), Identity::of(&same));
        let elsewhere = Letter { source: "3/5".parse().ok(), ..one.clone() };
        let after_a_wipe = letter("clicks", "{\"v\":1}");
        let lost = Letter { source: None, ..one.clone() };
        let also_lost = Letter { source: None, place: same.place, ..one.clone() };
        let identities: HashSet<Identity> =
            [&one, &elsewhere, &after_a_wipe, &lost, &also_lost].map(Identity::of).into();
        assert_eq!(identities.len(), 5);
    }

    #[test]
    fn unreadable_and_unrepeatable_letters_are_not_sent() {
        let unreadable = bytes_to_send(&letter("clicks", "{"), "");
        assert!(matches!(unreadable, Err(SkipReason::Unreadable(_))), "{unreadable:?}");
        for topic in ["links", "dev.clicks", "clicks2", ""] {
            let refused = bytes_to_send(&letter(topic, CLICK), "");
            assert!(matches!(refused, Err(SkipReason::Refused)), "{topic}: {refused:?}");
        }
        let conversion = include_str!("../../../../schemas/fixtures/conversion.v1.json").trim_end();
        assert_eq!(bytes_to_send(&letter("conversions", conversion), "").unwrap(), conversion.as_bytes());
    }
}
