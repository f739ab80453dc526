//! Writes clicks to their topic as edges do, and records those that Kafka confirmed: the oracle for the counts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use chrono::{NaiveDate, Utc};
use parking_lot::Mutex;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use rdkafka::{ClientContext, Message as _};
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::{Class, Click, Message as _};
use schemas::topic;
use uuid::Uuid;

use crate::engines::Isolated;
use crate::{PATIENCE, eventually, eventually_within};

/// How often the writer sends due clicks.
const TICK: Duration = Duration::from_millis(2);

/// The clicks to write.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Clicks per second.
    pub rate: u32,
    /// Links that are clicked.
    pub links: u16,
    /// The percentage of clicks on the first link; the others are spread over all links.
    pub hot_percent: u8,
    /// One of this many records is invalid; 0 for none.
    pub poison_every: u64,
}

impl Plan {
    /// Clicks on 50 links.
    pub fn at(rate: u32) -> Self {
        Self { rate, links: 50, hot_percent: 0, poison_every: 0 }
    }
}

/// The id of a link, by its number.
pub fn link(number: u16) -> LinkId {
    LinkId::from_uuid(Uuid::from_u128(0x7000_0000_0000 << 64 | u128::from(number)))
}

/// The workspace of all clicks.
pub fn workspace() -> WorkspaceId {
    WorkspaceId::from_uuid(Uuid::from_u128(0x7000_0000_0001 << 64))
}

/// The records that Kafka has confirmed.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The link and the counted day of each click, by its id.
    pub clicks: HashMap<u128, (u16, NaiveDate)>,
    /// Partition and offset of each invalid record.
    pub poison: BTreeSet<(i32, i64)>,
    failures: u64,
}

impl Ledger {
    /// Clicks by link and day.
    pub fn by_link_and_day(&self) -> BTreeMap<(LinkId, NaiveDate), u64> {
        let mut counts = BTreeMap::new();
        for (number, day) in self.clicks.values() {
            *counts.entry((link(*number), *day)).or_default() += 1;
        }
        counts
    }
}

/// The content of a record: `None` for an invalid one.
type Record = Box<Option<(u128, u16, NaiveDate)>>;

#[derive(Debug, Clone, Default)]
struct Confirmed {
    ledger: Arc<Mutex<Ledger>>,
    count: Arc<AtomicU64>,
}

impl ClientContext for Confirmed {}

impl ProducerContext for Confirmed {
    type DeliveryOpaque = Record;

    fn delivery(&self, result: &DeliveryResult<'_>, record: Record) {
        let mut ledger = self.ledger.lock();
        match (result, *record) {
            (Ok(_), Some((id, link, day))) => {
                ledger.clicks.insert(id, (link, day));
            }
            (Ok(message), None) => {
                ledger.poison.insert((message.partition(), message.offset()));
            }
            (Err(_), _) => ledger.failures += 1,
        }
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A thread that writes clicks until it is stopped.
#[derive(Debug)]
pub struct Clicks {
    confirmed: Confirmed,
    stop: Arc<AtomicBool>,
    writer: JoinHandle<()>,
}

impl Clicks {
    /// Starts writing.
    pub fn start(engines: &Isolated, plan: Plan) -> Self {
        Self::start_until(engines, plan, u64::MAX)
    }

    fn start_until(engines: &Isolated, plan: Plan, count: u64) -> Self {
        let (confirmed, stop) = (Confirmed::default(), Arc::new(AtomicBool::new(false)));
        let producer: BaseProducer<Confirmed> = engines
            .kafka()
            .set("linger.ms", "20")
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", "0")
            // Notices added partitions soon.
            .set("topic.metadata.refresh.interval.ms", "1000")
            .create_with_context(confirmed.clone())
            .unwrap();
        let writer = Writer { producer, topic: engines.topic(topic::CLICKS), plan };
        let stopped = Arc::clone(&stop);
        let writer = thread::spawn(move || writer.run(count, &stopped));
        Self { confirmed, stop, writer }
    }

    /// The number of records that Kafka has confirmed.
    pub fn confirmed(&self) -> u64 {
        self.confirmed.count.load(Ordering::Relaxed)
    }

    /// Waits until Kafka has confirmed this many more.
    ///
    /// # Panics
    /// When it does not happen in time.
    pub async fn more(&self, more: u64) {
        let wanted = self.confirmed() + more;
        eventually("clicks are confirmed", async || {
            if self.confirmed() >= wanted { Ok(()) } else { Err(self.confirmed()) }
        })
        .await;
    }

    /// Stops writing and waits until Kafka has confirmed every record.
    ///
    /// # Panics
    /// When Kafka does not confirm a record.
    pub async fn stop(self) -> Ledger {
        self.stop.store(true, Ordering::Relaxed);
        let Self { confirmed, writer, .. } = self;
        tokio::task::spawn_blocking(move || writer.join()).await.unwrap().unwrap();
        let ledger = std::mem::take(&mut *confirmed.ledger.lock());
        assert_eq!(ledger.failures, 0, "Kafka rejected clicks");
        ledger
    }
}

/// Writes this many clicks as fast as Kafka accepts them, and returns their ledger.
///
/// # Panics
/// As [`Clicks::stop`].
pub async fn write(engines: &Isolated, plan: Plan, count: u64) -> Ledger {
    let clicks = Clicks::start_until(engines, plan, count);
    eventually_within("all clicks are confirmed", 4 * PATIENCE, async || {
        if clicks.confirmed() >= count { Ok(()) } else { Err(clicks.confirmed()) }
    })
    .await;
    clicks.stop().await
}

struct Writer {
    producer: BaseProducer<Confirmed>,
    topic: String,
    plan: Plan,
}

impl Writer {
    fn run(self, count: u64, stop: &AtomicBool) {
        let fixture = Click::decode(include_bytes!("../../schemas/fixtures/click.v1.json")).unwrap();
        let started = Instant::now();
        let mut number = 0;
        while number < count && !stop.load(Ordering::Relaxed) {
            let due = (started.elapsed().as_secs_f64() * f64::from(self.plan.rate)) as u64;
            while number < due.min(count) && self.send(&fixture, number) {
                number += 1;
            }
            self.producer.poll(TICK);
        }
        self.producer.flush(PATIENCE).unwrap();
    }

    /// Sends a click by its number; false while the queue is full.
    fn send(&self, fixture: &Click, number: u64) -> bool {
        let Plan { links, hot_percent, poison_every, .. } = self.plan;
        let id = Uuid::now_v7().as_u128();
        let dice = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
        let is_hot = dice % 100 < u32::from(hot_percent);
        let link_number = if is_hot { 0 } else { (dice / 100 % u32::from(links)) as u16 };
        let click = Click {
            click_id: format!("{id:032x}"),
            link_id: link(link_number),
            workspace_id: workspace(),
            occurred_at: schemas::time::to_millis(Utc::now()),
            class: Class::Human,
            visitor: number % 5_000,
            again: false,
            ..fixture.clone()
        };
        let mut value = click.encode();
        let is_poison = poison_every > 0 && number % poison_every == poison_every - 1;
        if is_poison {
            value = poison(&value, number / poison_every);
        }
        let record = (!is_poison).then_some((id, link_number, click.occurred_at.date_naive()));
        let record =
            BaseRecord::with_opaque_to(&self.topic, Box::new(record)).key(&click.click_id).payload(&value);
        match self.producer.send(record) {
            Ok(()) => true,
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => false,
            Err((error, _)) => panic!("cannot write a click: {error}"),
        }
    }
}

/// Makes a click invalid, in one of several ways.
fn poison(value: &[u8], number: u64) -> Vec<u8> {
    match number % 3 {
        0 => value[..value.len() / 2].to_vec(),
        1 => String::from_utf8_lossy(value).replacen("\"v\":1", "\"v\":7", 1).into_bytes(),
        _ => vec![0xff; 40],
    }
}
