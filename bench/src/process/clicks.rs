//! Clicks of many visitors on many links, the same in each run except for their times.

use std::time::Duration;

use ::tests::engines::Isolated;
use anyhow::{Context as _, bail, ensure};
use chrono::Utc;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use schemas::click_id::TEXT_LEN;
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::{Class, Click, Message as _};
use schemas::topic;
use tokio::task::spawn_blocking;
use uuid::Uuid;

/// Links, of which the first ones have most of the clicks.
const LINKS: u64 = 1_000;

/// Workspaces that the links belong to.
const WORKSPACES: u64 = 10;

/// Visitors from whom the clicks are drawn.
const VISITORS: u64 = 200_000;

/// How long Kafka may take to confirm the last clicks.
const PATIENCE: Duration = Duration::from_secs(120);

const COUNTRIES: [&str; 12] = ["DE", "FR", "US", "BR", "IN", "JP", "GB", "ES", "IT", "PL", "NL", "KE"];
const BROWSERS: [&str; 5] = ["Chrome", "Safari", "Firefox", "Edge", "Samsung Internet"];
const SYSTEMS: [&str; 5] = ["Windows", "Android", "iOS", "Mac OS X", "Linux"];
const DEVICES: [&str; 3] = ["mobile", "desktop", "tablet"];
const SOURCES: [&str; 4] = ["newsletter", "search", "partner", "social"];

/// Returns a pseudo-random number (splitmix64).
fn random(seed: u64) -> u64 {
    let mut value = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Generates clicks by their numbers.
pub(super) struct Clicks {
    fixture: Click,
}

impl Clicks {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self { fixture: Click::decode(include_bytes!("../../../schemas/fixtures/click.v1.json"))? })
    }

    /// Returns the click of a number, with the current time.
    pub(super) fn click(&self, number: u64) -> Click {
        let draw = |what: u64, below: u64| random(number * 16 + what) % below;
        let one_of = |what: u64, of: &[&str]| Some(of[draw(what, of.len() as u64) as usize].to_owned());
        // The cube of an even distribution: half of the clicks are on an eighth of the links.
        let part = draw(1, 1 << 20) as f64 / f64::from(1 << 20);
        let link = (part.powi(3) * LINKS as f64) as u64;
        let id = |kind: u64, number: u64| {
            Uuid::from_u64_pair(0x0192_a000_0000_7000 | kind, random(kind << 40 | number) >> 2 | 1 << 63)
        };
        let campaign = draw(2, 2) == 0;
        let class = match draw(3, 20) {
            0 | 1 => Class::Bot,
            2 => Class::Preview,
            _ => Class::Human,
        };
        let browser = one_of(4, &BROWSERS);
        let user_agent = format!(
            "Mozilla/5.0 (Linux; Android {}; K) AppleWebKit/537.36 (KHTML, \
                like Gecko) {}/{}.0.0.0 Mobile Safari/537.36",
            10 + draw(5, 6),
            browser.as_deref().unwrap_or_default(),
            120 + draw(6, 20),
        );
        Click {
            click_id: click_id(number),
            link_id: LinkId::from_uuid(id(1, link)),
            workspace_id: WorkspaceId::from_uuid(id(2, link % WORKSPACES)),
            slug: format!("slug-{link}"),
            occurred_at: schemas::time::to_millis(Utc::now()),
            class,
            visitor: random(draw(7, VISITORS)),
            country: one_of(8, &COUNTRIES),
            device_type: one_of(9, &DEVICES),
            browser,
            os: one_of(10, &SYSTEMS),
            referrer: Some(format!("site-{}.example", draw(11, 300))),
            utm_source: one_of(12, &SOURCES).filter(|_| campaign),
            utm_medium: Some("email".to_owned()).filter(|_| campaign),
            utm_campaign: Some(format!("campaign-{}", draw(13, 40))).filter(|_| campaign),
            utm_term: None,
            utm_content: None,
            external_click_id: None,
            user_agent: Some(user_agent),
            purpose: None,
            again: false,
            ..self.fixture.clone()
        }
    }
}

/// Returns a text of the length and entropy of a signed click id.
fn click_id(number: u64) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    // Ten characters of 6 bits from each random number.
    let drawn = (0..).flat_map(|draw| {
        let bits = random(!number ^ (draw << 56));
        (0..10).map(move |place| char::from(ALPHABET[(bits >> (6 * place) & 63) as usize]))
    });
    drawn.take(TEXT_LEN).collect()
}

/// Returns a producer's configuration with the edge's settings, so that batches compress as they do there.
pub(super) fn producer_config(engines: &Isolated) -> ClientConfig {
    let mut config = engines.kafka();
    config
        .set("linger.ms", "20")
        .set("compression.codec", "zstd")
        .set("compression.level", "1")
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("queue.buffering.max.messages", "200000");
    config
}

/// Writes this number of clicks to all partitions of their topic in turns, and waits until Kafka has confirmed them.
///
/// With `days`, their broker times are spread evenly over that many days before today; the engines must keep given
/// times.
pub(crate) async fn write(engines: &Isolated, count: u64, days: Option<u32>) -> anyhow::Result<()> {
    let engines = engines.clone();
    spawn_blocking(move || {
        let midnight = Utc::now().date_naive().and_time(chrono::NaiveTime::MIN).and_utc().timestamp_millis();
        let clicks = Clicks::new()?;
        let producer: BaseProducer =
            producer_config(&engines).create().context("cannot create a producer")?;
        let topic = engines.topic(topic::CLICKS);
        let metadata = producer.client().fetch_metadata(Some(&topic), PATIENCE)?;
        let partitions = metadata.topics().iter().map(|topic| topic.partitions().len() as u64).sum::<u64>();
        for number in 0..count {
            let click = clicks.click(number);
            let value = click.encode();
            let partition = (number % partitions) as i32;
            let mut record = BaseRecord::to(&topic)
                .partition(partition)
                .key(click.click_id.as_str())
                .payload(value.as_slice());
            if let Some(days) = days {
                let span = i64::from(days) * 86_400_000;
                record =
                    record.timestamp(midnight - span + (number as f64 / count as f64 * span as f64) as i64);
            }
            loop {
                match producer.send(record) {
                    Ok(()) => break,
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                        record = back;
                        producer.poll(Duration::from_millis(10));
                    }
                    Err((error, _)) => bail!("cannot write a click: {error}"),
                }
            }
            if number % 1_000 == 0 {
                producer.poll(Duration::ZERO);
            }
        }
        producer.flush(PATIENCE).context("Kafka did not confirm the clicks")?;
        ensure!(producer.in_flight_count() == 0, "Kafka did not confirm all clicks");
        Ok(())
    })
    .await?
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn clicks_differ_in_their_ids_and_share_links_and_visitors() {
        let clicks = Clicks::new().unwrap();
        let drawn: Vec<Click> = (0..5_000).map(|number| clicks.click(number)).collect();
        let ids: BTreeSet<&str> = drawn.iter().map(|click| click.click_id.as_str()).collect();
        assert_eq!(ids.len(), drawn.len());
        assert!(ids.iter().all(|id| id.len() == TEXT_LEN));
        let links: BTreeSet<LinkId> = drawn.iter().map(|click| click.link_id).collect();
        assert!((100..=LINKS as usize).contains(&links.len()), "{}", links.len());
        let workspaces: BTreeSet<WorkspaceId> = drawn.iter().map(|click| click.workspace_id).collect();
        assert_eq!(workspaces.len(), WORKSPACES as usize);
    }
}
