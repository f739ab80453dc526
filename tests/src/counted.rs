//! Compares the clicks that were written to topic `clicks` with the stored rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use chrono::NaiveDate;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use schemas::id::LinkId;
use schemas::topic;
use tokio::time::sleep;
use uuid::Uuid;

use crate::clicks::Ledger;
use crate::engines::Isolated;
use crate::log::{Record, records};
use crate::processor::audit;
use crate::{ANSWER, PATIENCE, eventually};

/// How long the number of rows may stay unchanged while clicks are missing.
const STANDSTILL: Duration = Duration::from_secs(120);

/// How often the table is queried.
const LOOK: Duration = Duration::from_millis(200);

/// The result of an exact count.
#[derive(Debug)]
pub struct Exact {
    /// Clicks, each with exactly one row.
    pub clicks: usize,
    /// Invalid records, each with a dead letter.
    pub dead_letters: usize,
    /// Sources of the rows.
    pub sources: usize,
}

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clicks, dead_letters, sources } = self;
        write!(
            f,
            "{clicks} clicks of {sources} partitions, each one row; {dead_letters} dead letters; rows + dead letters = \
             offsets"
        )
    }
}

/// Waits until there are as many rows as clicks in the ledger, and as many dead letters as invalid records.
///
/// # Panics
/// When rows are missing and their number stays unchanged, or dead letters are missing at the deadline.
pub async fn all_counted(engines: &Isolated, ledger: &Ledger) {
    let ids = format!("SELECT uniqExact(click_id) FROM {}", engines.clicks());
    let (mut seen, mut since) = (0, Instant::now());
    while seen < ledger.clicks.len() {
        let rows = count(engines, &ids).await;
        if rows > seen {
            (seen, since) = (rows, Instant::now());
        }
        assert!(since.elapsed() < STANDSTILL, "{seen} of {} clicks are counted", ledger.clicks.len());
        sleep(LOOK).await;
    }
    if ledger.poison.is_empty() {
        return;
    }
    eventually("every invalid record is a dead letter", async || match dead_letters(engines).len() {
        written if written >= ledger.poison.len() => Ok(()),
        written => Err(written),
    })
    .await;
}

/// Asserts that each click of the ledger is exactly one row and that there are no other rows, that counts by link and
/// day match, and that each invalid record is a dead letter.
///
/// Call it when no processor runs any more, because later changes would not be noticed.
///
/// # Panics
/// When the assertion fails.
pub async fn is_exact(engines: &Isolated, ledger: &Ledger) -> Exact {
    let sources = engines.clickhouse("SELECT DISTINCT src FROM clicks ORDER BY src").await;
    let mut seen = BTreeSet::new();
    let (mut twice, mut strangers) = (Vec::new(), Vec::new());
    for source in sources.lines() {
        let ids = format!("SELECT click_id FROM clicks WHERE src = {source} ORDER BY koff");
        for id in engines.clickhouse(&ids).await.lines() {
            let number = u128::from_str_radix(id, 16).unwrap();
            if !ledger.clicks.contains_key(&number) {
                strangers.push(id.to_owned());
            }
            if !seen.insert(number) {
                twice.push(id.to_owned());
            }
        }
    }
    let missing: Vec<&u128> = ledger.clicks.keys().filter(|id| !seen.contains(*id)).collect();
    assert!(
        missing.is_empty() && twice.is_empty() && strangers.is_empty(),
        "of {} clicks {} are missing and {} have two rows; {} rows belong to no click; such as {:?} {:?} {:?}",
        ledger.clicks.len(),
        missing.len(),
        twice.len(),
        strangers.len(),
        missing.first().map(|id| format!("{id:032x}")),
        twice.first(),
        strangers.first()
    );
    let positions = count(engines, "SELECT count() - uniqExact(src, koff) FROM clicks").await;
    assert_eq!(positions, 0, "positions of the log with two rows");
    assert_eq!(by_link_and_day(engines).await, ledger.by_link_and_day());

    let letters = dead_letters(engines);
    assert_eq!(letters, ledger.poison, "each invalid record is a dead letter");
    assert_eq!(offsets(engines), ledger.clicks.len() + letters.len(), "rows + dead letters = offsets");
    audit(engines).await;
    Exact { clicks: ledger.clicks.len(), dead_letters: letters.len(), sources: sources.lines().count() }
}

/// Returns the positions of the records that have a dead letter.
///
/// A dead letter may be written twice if the processor died before it recorded that.
fn dead_letters(engines: &Isolated) -> BTreeSet<(i32, i64)> {
    let position = |letter: &Record| {
        let [partition, offset] = ["partition", "offset"].map(|name| letter.header(name));
        (partition.parse().unwrap(), offset.parse().unwrap())
    };
    records(engines, topic::DEAD_LETTERS).iter().map(position).collect()
}

async fn by_link_and_day(engines: &Isolated) -> BTreeMap<(LinkId, NaiveDate), u64> {
    let sql = "SELECT link_id, toDate(occurred_at) AS day, count() FROM clicks GROUP BY link_id, day";
    let answer = engines.clickhouse(sql).await;
    let parsed = answer.lines().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let link = LinkId::from_uuid(fields[0].parse::<Uuid>().unwrap());
        ((link, fields[1].parse().unwrap()), fields[2].parse().unwrap())
    });
    parsed.collect()
}

/// The number of records of the topic of clicks.
fn offsets(engines: &Isolated) -> usize {
    let consumer: BaseConsumer = engines.kafka().set("group.id", "reader").create().unwrap();
    let name = engines.topic(topic::CLICKS);
    let metadata = consumer.fetch_metadata(Some(&name), ANSWER).unwrap();
    let partitions = metadata.topics()[0].partitions().iter();
    let ends = partitions.map(|partition| {
        let (start, end) = consumer.fetch_watermarks(&name, partition.id(), ANSWER).unwrap();
        assert_eq!(start, 0, "the log is complete");
        usize::try_from(end).unwrap()
    });
    ends.sum()
}

/// Returns the result of a query for one number.
///
/// # Panics
/// When ClickHouse rejects it, or the result is not a number.
pub async fn count(engines: &Isolated, sql: &str) -> usize {
    engines.clickhouse(sql).await.trim().parse().unwrap()
}

/// Waits until there are more rows of clicks than now.
///
/// # Panics
/// When none come in time.
pub async fn more_rows(engines: &Isolated) {
    const ROWS: &str = "SELECT count() FROM clicks";
    let (before, since) = (count(engines, ROWS).await, Instant::now());
    while count(engines, ROWS).await <= before {
        assert!(since.elapsed() < PATIENCE, "the number of rows stays {before}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the click ids of all rows.
///
/// # Panics
/// When a click has two rows.
pub async fn click_ids(engines: &Isolated) -> BTreeSet<String> {
    let rows = engines.clickhouse("SELECT click_id FROM clicks").await;
    let ids: BTreeSet<String> = rows.lines().map(str::to_owned).collect();
    assert_eq!(ids.len(), rows.lines().count(), "a click has two rows");
    ids
}
