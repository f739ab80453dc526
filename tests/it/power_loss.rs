//! The machine of a small deployment loses power: Kafka's log and the edge's record of confirmed clicks lose their
//! unsynced ends.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use chrono::Utc;
use schemas::topic::CLICKS;
use tests::counted::click_ids;
use tests::edge::Edge;
use tests::engines::counting_on;
use tests::faults::{own_kafka_and_folder, progress};
use tests::load::{Answer, Load};
use tests::processor::{self, Processor};
use tests::{eventually, links};

/// How much of the log the power loss removes. The broker syncs its log each second, and the edge keeps confirmed
/// clicks for 2 s.
const LOST: Duration = Duration::from_millis(1_500);

/// Removes a partition's records since a time from its log, and returns their number.
///
/// The format is Kafka's record batch, version 2: the length of what follows is at byte 8, the last offset within the
/// batch at 23, the time of its newest record at 35.
fn cut_since(partition: &Path, millis: i64) -> u64 {
    let mut lost = 0;
    for entry in fs::read_dir(partition).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let number = |at: usize| i32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut at, mut end) = (0, None);
        while at < bytes.len() {
            if i64::from_be_bytes(bytes[at + 35..at + 43].try_into().unwrap()) >= millis {
                end.get_or_insert(at);
                lost += u64::try_from(number(at + 23)).unwrap() + 1;
            }
            at += 12 + usize::try_from(number(at + 8)).unwrap();
        }
        if let Some(end) = end {
            File::options().write(true).open(&path).unwrap().set_len(end as u64).unwrap();
        }
    }
    lost
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answered_click_is_one_row_after_a_power_loss() {
    let (kafka, folder) = own_kafka_and_folder().await;
    let engines =
        counting_on(kafka.url(), &std::env::var("CLICKHOUSE_URL").unwrap(), CLICKS.partitions).await;
    let slugs = links::publish(&engines, 20);
    let edge = Edge::start(&engines, &[]).await;
    edge.knows(&slugs[19]).await;
    let processor = Processor::start(&engines).await;
    let segments = || -> HashSet<String> {
        let names = fs::read_dir(edge.spool()).unwrap().map(|entry| entry.unwrap().file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".clicks"))
            .collect()
    };
    let load = Load::start(edge.address, &slugs, 4, Some(300));
    load.answers(1).await;
    let first = segments();
    assert!(!first.is_empty());
    // The edge deletes the segments that Kafka has confirmed.
    eventually("the first segments are deleted", async || {
        let now = segments();
        if first.is_disjoint(&now) { Ok(()) } else { Err(now) }
    })
    .await;

    let mut lost = 0;
    for attempt in 0..5 {
        if attempt > 0 {
            // The cut removed nothing, because a stalled machine had sent nothing just before. Try again.
            kafka.start().await.unwrap();
            edge.server.start().await.unwrap();
            processor.server.start().await.unwrap();
        }
        load.answers(600).await;
        // The edge is killed first: it has kept the clicks that are cut now, and must not delete them.
        edge.server.kill().await;
        let since = Utc::now().timestamp_millis() - i64::try_from(LOST.as_millis()).unwrap();
        tokio::join!(kafka.kill(), processor.server.kill());
        for number in 0..CLICKS.partitions {
            lost += cut_since(&folder.join(format!("{}-{number}", engines.topic(CLICKS))), since);
        }
        if lost > 0 {
            break;
        }
    }
    assert!(lost > 0, "nothing was lost");
    let log = load.stop().await;
    assert_eq!(log.dropped, 0, "the spool took every click");
    progress(&format!("{} clicks answered, {lost} of Kafka's records lost", log.answers.len()));
    // The edge does not sync its record of confirmed clicks.
    for entry in fs::read_dir(edge.spool()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "confirmed") {
            fs::remove_file(path).unwrap();
        }
    }

    kafka.start().await.unwrap();
    edge.server.start().await.unwrap();
    processor.server.start().await.unwrap();
    edge.ships_everything().await;
    let answered: HashSet<&str> = log.answers.iter().map(|Answer { click_id, .. }| &**click_id).collect();
    // Including unanswered clicks and repeats.
    eventually("everything is counted", async || {
        let output = processor::command(&engines, &["lag", "--json"]).output().await.unwrap();
        // Kafka may still be moving the group's coordinator.
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let lag: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        if lag["offsets"] == 0 { Ok(()) } else { Err(lag.to_string()) }
    })
    .await;
    let counted = eventually("every answered click is a row", async || {
        let rows = click_ids(&engines).await;
        let missing = answered.iter().filter(|id| !rows.contains(**id)).count();
        if missing == 0 { Ok(rows) } else { Err(missing) }
    })
    .await;
    processor.stop().await;
    processor::audit(&engines).await;
    let rows = click_ids(&engines).await;
    assert_eq!(rows.len(), counted.len());
    let strangers = (rows.len() - answered.len()) as u64;
    assert!(
        strangers <= log.unanswered,
        "{strangers} rows of unanswered clicks, at most {} expected",
        log.unanswered
    );
    edge.stop().await;
}
