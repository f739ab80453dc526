//! Writes clicks to the topic and counts their rows.

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use processor::operate::lag::lag;
use rdkafka::producer::future_producer::Delivery;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::util::Timeout;
use schemas::message::{Click, Message as _};
use schemas::topic;
use tests::engines::Isolated;
use tests::{PATIENCE, eventually};

use crate::processor::config;

/// Writes to the topic of clicks.
pub(crate) struct Edge<'a> {
    isolated: &'a Isolated,
    producer: FutureProducer,
}

/// A person's click with this id, answered now.
pub(crate) fn click(id: &str) -> Click {
    let mut click = Click::decode(include_bytes!("../../../schemas/fixtures/click.v1.json")).unwrap();
    click.click_id = id.to_owned();
    click.occurred_at = schemas::time::to_millis(Utc::now());
    click.again = false;
    click
}

/// The same click, marked as a possible repeat.
pub(crate) fn again(click: &Click) -> Click {
    Click { again: true, ..click.clone() }
}

impl<'a> Edge<'a> {
    /// Connects to the test's Kafka.
    pub(crate) fn new(isolated: &'a Isolated) -> Self {
        let producer = isolated.kafka().set("linger.ms", "2").create().unwrap();
        Self { isolated, producer }
    }

    /// Writes a value to a partition and returns its offset.
    pub(crate) async fn write(&self, partition: i32, value: &[u8], time: Option<DateTime<Utc>>) -> Delivery {
        let topic = self.isolated.topic(topic::CLICKS);
        let mut record = FutureRecord::to(&topic).partition(partition).key("key").payload(value);
        record.timestamp = time.map(|time| time.timestamp_millis());
        self.producer.send(record, Timeout::After(PATIENCE)).await.unwrap()
    }

    /// Writes a click to a partition and returns its offset.
    pub(crate) async fn send(&self, partition: i32, click: &Click) -> i64 {
        self.write(partition, &click.encode(), None).await.offset
    }

    /// Writes a click to a partition with this broker time; the topic must accept the producer's times.
    pub(crate) async fn send_at(&self, partition: i32, click: &Click, time: DateTime<Utc>) {
        let click = Click { occurred_at: time, ..click.clone() };
        self.write(partition, &click.encode(), Some(time)).await;
    }

    /// Writes clicks with the ids `<name>-<number>`, spread over all partitions.
    pub(crate) async fn send_many(&self, name: &str, count: usize) {
        join_all((0..count).map(|number| async move {
            let partition = number as i32 % topic::CLICKS.partitions;
            self.send(partition, &click(&format!("{name}-{number}"))).await;
        }))
        .await;
    }
}

/// Waits until a query returns this value.
pub(crate) async fn counted(isolated: &Isolated, query: &str, expected: impl ToString) {
    let expected = expected.to_string();
    eventually(query, async || {
        let found = isolated.clickhouse(query).await.trim().to_owned();
        if found == expected { Ok(()) } else { Err(found) }
    })
    .await;
}

/// Returns the current time in SQL, to wait for rows that are written from now on.
pub(crate) fn present() -> String {
    format!("fromUnixTimestamp64Milli({}, 'UTC')", Utc::now().timestamp_millis())
}

/// Waits until this many clicks are stored, and checks that no click and no position is stored twice.
pub(crate) async fn counted_exactly(isolated: &Isolated, clicks: usize) {
    counted(isolated, "SELECT uniqExact(click_id) FROM clicks", clicks).await;
    let rows = "SELECT count(), uniqExact(click_id), uniqExact(src, koff) FROM clicks";
    assert_eq!(isolated.clickhouse(rows).await.trim(), format!("{clicks}\t{clicks}\t{clicks}"));
}

/// Waits until the group has committed every record, including repeats and dead letters.
pub(crate) async fn wait_until_processed(isolated: &Isolated) {
    eventually("every record is processed", async || {
        match lag(&config(isolated)).await {
            Ok(lags) if lags.offsets == 0 => Ok(()),
            Ok(lags) => Err(format!("{lags:?}")),
            // Kafka may still be moving the group's coordinator.
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await;
}
