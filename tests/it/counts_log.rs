//! Wrong committed offsets.

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};
use schemas::topic;
use tests::ANSWER;
use tests::clicks::{Ledger, Plan, write};
use tests::counted::{all_counted, is_exact};
use tests::engines::{Isolated, counting};
use tests::processor::Processor;

/// The processors' consumer group.
const GROUP: &str = "hopline-processor";

fn member(engines: &Isolated) -> BaseConsumer {
    let group = format!("{}{GROUP}", engines.topic_prefix);
    engines.kafka().set("group.id", group).set("enable.auto.commit", "false").create().unwrap()
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
    engines.delete_group(GROUP).await;
    assert!(committed(&engines).iter().all(Option::is_none));
    count_more(&engines, &mut ledger).await;
    assert_eq!(committed(&engines).into_iter().flatten().sum::<i64>(), 12_000);
}
