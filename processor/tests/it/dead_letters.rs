//! Records that are not valid clicks.

use schemas::message::Message as _;
use schemas::topic;
use tests::engines::{Isolated, isolated};
use tests::log::{Record, records};
use tests::{PATIENCE, eventually, metric};

use crate::audit::assert_equal;
use crate::clicks::{Edge, click, counted, counted_exactly};
use crate::processor::{Processor, operate};

/// Waits until there are `count` dead letters, and returns them.
async fn letters(isolated: &Isolated, count: usize) -> Vec<Record> {
    eventually("dead letters", async || match records(isolated, topic::DEAD_LETTERS) {
        letters if letters.len() >= count => Ok(letters),
        letters => Err(letters.len()),
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_records_become_dead_letters() {
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
    letters.sort_by_key(|letter| letter.key.clone());
    assert_eq!(letters.len(), 2);
    let clicks = isolated.topic(topic::CLICKS);
    for (letter, (offset, bytes, reason)) in letters.iter().zip([
        (malformed, "{\"v\":1, oops", "malformed message: "),
        (unknown, later.as_str(), "unknown message version 2"),
    ]) {
        assert_eq!(letter.key, format!("{clicks}/1/{offset}"));
        assert_eq!(letter.value, bytes.as_bytes());
        assert_eq!(letter.header("topic"), clicks);
        assert_eq!(letter.header("partition"), "1");
        assert_eq!(letter.header("offset"), offset.to_string());
        assert_eq!(letter.header("schema"), "click.v1");
        assert_eq!(letter.header("key"), "key");
        assert!(letter.header("reason").starts_with(reason), "{letter:?}");
    }
    eventually("both are in the metric", async || {
        match metric(&processor.operations, "hopline_processor_dead_letters_total").await {
            2.0 => Ok(()),
            other => Err(other),
        }
    })
    .await;
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
    let values: Vec<&[u8]> = letters.iter().map(|letter| letter.value.as_slice()).collect();
    assert_eq!(values, [&b"first"[..], b"second"]);
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_listed_and_shown_by_filter() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start(&isolated).await;
    let malformed = edge.write(1, b"{\"v\":1, \xff", None).await.offset;
    edge.write(2, b"{\"v\":7}", None).await;
    edge.write(2, b"{\"v\":7}", None).await;
    letters(&isolated, 3).await;
    let list = async |filter: &[&str]| {
        let list = operate(&isolated, &[&["dead-letters", "list"], filter].concat()).await.unwrap();
        (list["letters"].as_array().unwrap().clone(), list["more"] == true)
    };
    let (all, more) = list(&[]).await;
    assert_eq!((all.len(), more), (3, false));
    assert_eq!(list(&["--limit", "2"]).await.0.len(), 2);
    assert!(list(&["--limit", "2"]).await.1);
    assert_eq!(list(&["--reason", "unknown message version 7"]).await.0.len(), 2);
    assert_eq!(list(&["--topic", "clicks", "--since", "2026-01-01T00:00:00Z"]).await.0.len(), 3);
    assert_eq!(list(&["--topic", "conversions"]).await.0.len(), 0);
    assert_eq!(list(&["--until", "2026-01-01T00:00:00Z"]).await.0.len(), 0);

    let (found, _) = list(&["--reason", "malformed"]).await;
    assert_eq!(found[0]["source"], format!("1/{malformed}"));
    assert_eq!(found[0]["topic"], isolated.topic(topic::CLICKS));
    assert!(found[0].get("payload").is_none());
    let place = found[0]["place"].as_str().unwrap();
    let shown = operate(&isolated, &["dead-letters", "show", place]).await.unwrap();
    assert_eq!(shown["payload"], "{\"v\":1, \\xff");
    assert_eq!(shown["key"], "key");
    let missing = operate(&isolated, &["dead-letters", "show", "0/99"]).await.unwrap_err();
    assert!(missing.to_string().contains("no dead letter at 0/99"), "{missing}");
    processor.stop().await;
}

/// Writes a click to the topic of dead letters like a build that cannot decode it; without a source, like a foreign
/// program.
async fn write_dead_letter(isolated: &Isolated, source: Option<(i32, i64)>, payload: &[u8]) {
    let producer: rdkafka::producer::FutureProducer = isolated.kafka().create().unwrap();
    let (topic, clicks) = (isolated.topic(topic::DEAD_LETTERS), isolated.topic(topic::CLICKS));
    let mut headers = rdkafka::message::OwnedHeaders::new();
    headers = headers.insert(rdkafka::message::Header { key: "topic", value: Some(&clicks) });
    let mut key = String::from("unknown");
    if let Some((partition, offset)) = source {
        let (partition, offset) = (partition.to_string(), offset.to_string());
        for (key, value) in [("partition", &partition), ("offset", &offset)] {
            headers = headers.insert(rdkafka::message::Header { key, value: Some(value) });
        }
        key = format!("{clicks}/{partition}/{offset}");
    }
    let record = rdkafka::producer::FutureRecord::to(&topic).key(&key).payload(payload).headers(headers);
    producer.send(record, rdkafka::util::Timeout::After(PATIENCE)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_resubmitted_twice_counts_once() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start(&isolated).await;
    edge.send(1, &click("before")).await;
    let unreadable = edge.write(1, b"{", None).await.offset;
    // A click that an upgrade made readable. Two processors wrote its dead letter, one of them twice after a kill.
    let late = click("late");
    for _ in 0..3 {
        write_dead_letter(&isolated, Some((3, 17)), &late.encode()).await;
    }
    letters(&isolated, 4).await;

    let resubmit = async |more: &[&str]| {
        let command = [&["dead-letters", "resubmit"], more].concat();
        let outcome = operate(&isolated, &command).await.unwrap();
        ["sent", "repeated", "unreadable", "refused"].map(|part| outcome[part].as_u64().unwrap())
    };
    let records = || tests::log::records(&isolated, topic::CLICKS).len();
    let refused = operate(&isolated, &["dead-letters", "resubmit"]).await.unwrap_err();
    assert!(refused.to_string().contains("--all"), "{refused}");
    assert_eq!(resubmit(&["--all", "--dry-run"]).await, [1, 2, 1, 0]);
    assert_eq!(records(), 2);
    assert_eq!(resubmit(&["--topic", "clicks"]).await, [1, 2, 1, 0]);
    assert_eq!(records(), 3);
    counted(&isolated, "SELECT count() FROM clicks WHERE click_id = 'late' AND src % 65536 = 3 AND again", 1)
        .await;
    assert_eq!(resubmit(&["--all"]).await, [1, 2, 1, 0]);
    edge.send(3, &click("behind")).await;
    counted_exactly(&isolated, 3).await;
    processor.stop().await;
    let report = assert_equal(&isolated).await;
    assert_eq!(report.sources[3].repeats, 1);
    assert_eq!((report.sources[1].dead_letters, unreadable), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_without_a_source_are_all_sent() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start(&isolated).await;
    for name in ["one", "other", "third"] {
        write_dead_letter(&isolated, None, &click(name).encode()).await;
    }
    letters(&isolated, 3).await;
    for round in 1..=2 {
        let outcome = operate(&isolated, &["dead-letters", "resubmit", "--all"]).await.unwrap();
        assert_eq!((&outcome["sent"], &outcome["repeated"]), (&3.into(), &0.into()), "{outcome}");
        assert_eq!(tests::log::records(&isolated, topic::CLICKS).len(), 3 * round);
    }
    edge.send_many("behind", 6).await;
    counted_exactly(&isolated, 9).await;
    processor.stop().await;
    let report = assert_equal(&isolated).await;
    assert_eq!(report.sources.iter().map(|source| source.repeats).sum::<u64>(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_is_the_number_of_uncounted_records() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    edge.send_many("click", 30).await;
    let lag = operate(&isolated, &["lag"]).await.unwrap();
    assert_eq!((&lag["offsets"], &lag["seconds"]), (&30.into(), &serde_json::Value::Null));
    assert_eq!(lag["partitions"][2]["end"], 5);
    let processor = Processor::start(&isolated).await;
    eventually("nothing is left to count", async || {
        let lag = operate(&isolated, &["lag"]).await.unwrap();
        let is_near = lag["seconds"].as_f64().is_some_and(|seconds| seconds < 5.0);
        if lag["offsets"] == 0 && is_near && lag["partitions"][2]["committed"] == 5 {
            Ok(())
        } else {
            Err(lag)
        }
    })
    .await;
    let lag = operate(&isolated, &["lag"]).await.unwrap();
    assert_eq!(lag["partitions"][2]["last_row"], 4);
    processor.stop().await;
}
