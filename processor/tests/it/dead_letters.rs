//! Messages that are no clicks.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Headers as _;
use rdkafka::{Message as _, Offset, TopicPartitionList};
use schemas::message::Message as _;
use schemas::topic;
use tests::engines::{Isolated, isolated};
use tests::eventually;

use crate::clicks::{Edge, SOON, click, counted_exactly};
use crate::processor::Processor;

/// Key, value and headers of a dead letter, as text.
type Letter = (String, String, BTreeMap<String, String>);

/// Reads the first `count` dead letters.
async fn letters(isolated: &Isolated, count: usize) -> Vec<Letter> {
    let consumer: BaseConsumer =
        isolated.kafka().set("group.id", "reader").set("enable.auto.commit", "false").create().unwrap();
    let mut start = TopicPartitionList::new();
    start.add_partition_offset(&isolated.topic(topic::DEAD_LETTERS), 0, Offset::Beginning).unwrap();
    consumer.assign(&start).unwrap();
    let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
    let mut letters = Vec::new();
    eventually("dead letters", SOON, async || {
        while let Some(Ok(message)) = consumer.poll(Duration::from_millis(50)) {
            let headers = message.headers().unwrap().iter();
            let headers = headers.map(|header| (header.key.to_owned(), text(header.value))).collect();
            letters.push((text(message.key()), text(message.payload()), headers));
        }
        if letters.len() >= count { Ok(()) } else { Err(letters.len()) }
    })
    .await;
    letters
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_click_becomes_a_dead_letter_and_the_rest_is_counted() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let later = String::from_utf8(click("later").encode()).unwrap().replacen("\"v\":1", "\"v\":2", 1);
    edge.send(1, &click("before")).await;
    let malformed = edge.write(1, b"{\"v\":1, oops", None).await.offset;
    edge.send(1, &click("between")).await;
    let unknown = edge.write(1, later.as_bytes(), None).await.offset;
    edge.send(1, &click("after")).await;

    let processor = Processor::start(&isolated).await;
    counted_exactly(&isolated, 3).await;
    let mut letters = letters(&isolated, 2).await;
    letters.sort();
    assert_eq!(letters.len(), 2);
    let clicks = isolated.topic(topic::CLICKS);
    for ((key, value, headers), (offset, bytes, reason)) in letters.into_iter().zip([
        (malformed, "{\"v\":1, oops", "malformed message: "),
        (unknown, later.as_str(), "unknown message version 2"),
    ]) {
        assert_eq!(key, format!("{clicks}/1/{offset}"));
        assert_eq!(value, bytes);
        assert_eq!(headers["topic"], clicks);
        assert_eq!(headers["partition"], "1");
        assert_eq!(headers["offset"], offset.to_string());
        assert_eq!(headers["schema"], "click.v1");
        assert_eq!(headers["key"], "key");
        assert!(headers["reason"].starts_with(reason), "{headers:?}");
    }
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_at_the_end_is_not_written_again_after_a_restart() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    edge.send(0, &click("before")).await;
    edge.write(0, b"first", None).await;
    let processor = Processor::start(&isolated).await;
    counted_exactly(&isolated, 1).await;
    letters(&isolated, 1).await;
    processor.stop().await;

    let processor = Processor::start(&isolated).await;
    edge.write(0, b"second", None).await;
    let letters = letters(&isolated, 2).await;
    let values: Vec<&str> = letters.iter().map(|(_, value, _)| value.as_str()).collect();
    assert_eq!(values, ["first", "second"]);
    processor.stop().await;
}
