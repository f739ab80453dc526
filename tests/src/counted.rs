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

use crate::ANSWER;
use crate::clicks::Ledger;
use crate::engines::Isolated;
use crate::log::records;
use crate::processor::audit;

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
    /// Inserts that stored a part, as far as ClickHouse's part log has them.
    pub sources: usize,
}

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clicks, dead_letters, sources } = self;
        write!(
            f,
            "{clicks} clicks of {sources} partitions are {clicks} rows, each once; {dead_letters} dead letters; rows + \
             dead letters = offsets"
        )
    }
}

/// Waits until there are as many rows as clicks in the ledger.
///
/// # Panics
/// When rows are missing and their number stays unchanged.
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
}

/// Asserts that each click of the ledger is exactly one row and that there are no other rows, that counts by link and
/// day match, and that each invalid record is a dead letter.
///
/// Call it when no processor runs any more, because later changes would not be noticed.
///
/// # Panics
/// When the assertion fails.
pub async fn is_exact(engines: &Isolated, ledger: &Ledger) -> Exact {
    let sources: Vec<u32> = lines(engines, "SELECT DISTINCT src FROM clicks ORDER BY src").await;
    let mut seen = BTreeSet::new();
    let (mut twice, mut strangers) = (Vec::new(), Vec::new());
    for source in &sources {
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
        "of {} clicks {} are missing and {} are rows twice; {} rows are of no click; such as {:?} {:?} {:?}",
        ledger.clicks.len(),
        missing.len(),
        twice.len(),
        strangers.len(),
        missing.first().map(|id| format!("{id:032x}")),
        twice.first(),
        strangers.first()
    );
    let positions = count(engines, "SELECT count() - uniqExact(src, koff) FROM clicks").await;
    assert_eq!(positions, 0, "positions of the log that are rows twice");
    assert_eq!(by_link_and_day(engines).await, ledger.by_link_and_day());

    // A dead letter may be written twice if the processor died before it recorded that.
    let letters: BTreeSet<(i32, i64)> = records(engines, topic::DEAD_LETTERS)
        .iter()
        .map(|letter| {
            let number = |name: &str| {
                let (_, value) = letter.headers.iter().find(|(header, _)| header == name).unwrap();
                String::from_utf8_lossy(value).parse::<i64>().unwrap()
            };
            (number("partition") as i32, number("offset"))
        })
        .collect();
    assert_eq!(letters, ledger.poison, "dead letters are those records that are no clicks");
    assert_eq!(offsets(engines), ledger.clicks.len() + letters.len(), "rows + dead letters = offsets");
    audit(engines).await;
    Exact { clicks: ledger.clicks.len(), dead_letters: letters.len(), sources: sources.len() }
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
        assert_eq!(start, 0, "nothing has left the log");
        usize::try_from(end).unwrap()
    });
    ends.sum()
}

/// Returns the result of a query for one number.
pub(crate) async fn count(engines: &Isolated, sql: &str) -> usize {
    engines.clickhouse(sql).await.trim().parse().unwrap()
}

async fn lines(engines: &Isolated, sql: &str) -> Vec<u32> {
    engines.clickhouse(sql).await.lines().map(|line| line.parse().unwrap()).collect()
}
