//! Committed offsets that are wrong, and invalid records.

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};
use schemas::topic;
use tests::clicks::{Ledger, Plan, write};
use tests::counted::{all_counted, is_exact};
use tests::engines::{Isolated, counting};
use tests::processor::Processor;
use tests::{ANSWER, eventually};

/// The processors' consumer group.
fn group(engines: &Isolated) -> String {
    format!("{}hopline-processor", engines.topic_prefix)
}

fn member(engines: &Isolated) -> BaseConsumer {
    engines.kafka().set("group.id", group(engines)).set("enable.auto.commit", "false").create().unwrap()
}

/// Returns the group's committed offsets; `None` for a partition without one.
fn committed(engines: &Isolated) -> Vec<Option<i64>> {
    let mut asked = TopicPartitionList::new();
    let topic = engines.topic(topic::CLICKS);
    asked.add_partition_range(&topic, 0, topic::CLICKS.partitions - 1);
    let answer = member(engines).committed_offsets(asked, ANSWER).unwrap();
    let offset = |offset| match offset {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    };
    answer.elements().iter().map(|element| offset(element.offset())).collect()
}

/// Sets every committed offset to the result of `place`, for a group without members.
fn commit(engines: &Isolated, place: impl Fn(i64) -> i64) {
    let topic = engines.topic(topic::CLICKS);
    let mut offsets = TopicPartitionList::new();
    for (partition, offset) in (0..).zip(committed(engines)) {
        let offset = Offset::Offset(place(offset.unwrap()));
        offsets.add_partition_offset(&topic, partition, offset).unwrap();
    }
    member(engines).commit(&offsets, CommitMode::Sync).unwrap();
}

/// Deletes the group, as Kafka does when it was inactive for longer than offsets are kept.
async fn forget(engines: &Isolated) {
    let admin: AdminClient<DefaultClientContext> = engines.kafka().create().unwrap();
    eventually("the group is forgotten", async || {
        let results = admin.delete_groups(&[&group(engines)], &AdminOptions::new()).await.unwrap();
        results.into_iter().next().unwrap()
    })
    .await;
    assert!(committed(engines).iter().all(Option::is_none));
}

/// Lets a processor count 3,000 more clicks.
async fn count_more(engines: &Isolated, ledger: &mut Ledger) {
    let more = write(engines, Plan::at(20_000), 3_000).await;
    ledger.clicks.extend(more.clicks);
    let processor = Processor::start(engines).await;
    all_counted(engines, ledger).await;
    processor.stop().await;
    is_exact(engines, ledger).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_or_deleted_offsets_change_no_count() {
    let engines = counting().await;
    let mut ledger = Ledger::default();
    count_more(&engines, &mut ledger).await;
    assert_eq!(committed(&engines).into_iter().flatten().sum::<i64>(), 3_000);

    commit(&engines, |offset| offset / 2);
    count_more(&engines, &mut ledger).await;
    commit(&engines, |_| 0);
    assert_eq!(committed(&engines), [Some(0); 6]);
    count_more(&engines, &mut ledger).await;
    forget(&engines).await;
    count_more(&engines, &mut ledger).await;
    assert_eq!(committed(&engines).into_iter().flatten().sum::<i64>(), 12_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_invalid_record_in_a_thousand_becomes_a_dead_letter() {
    let engines = counting().await;
    let plan = Plan { poison_every: 1_000, ..Plan::at(20_000) };
    let ledger = write(&engines, plan, 30_000).await;
    assert_eq!((ledger.clicks.len(), ledger.poison.len()), (29_970, 30));
    let processor = Processor::start(&engines).await;
    all_counted(&engines, &ledger).await;
    eventually("every dead letter is counted", async || {
        let letters = processor.metric("hopline_processor_dead_letters_total").await;
        if letters >= 30.0 { Ok(()) } else { Err(letters) }
    })
    .await;
    processor.stop().await;
    // Once each, because no processor was killed between a dead letter and its commit.
    assert_eq!(tests::log::records(&engines, topic::DEAD_LETTERS).len(), 30);
    let exact = is_exact(&engines, &ledger).await;
    assert_eq!(exact.dead_letters, 30);
}
