//! Clicks on several shards of ClickHouse.

use chrono::TimeDelta;
use devstack::Options;
use devstack::clickhouse_cluster::start_cluster;
use schemas::clickhouse::rollup::is_active;
use schemas::message::{Click, Message as _};
use service::clickhouse::Clickhouse;
use tests::engines::given_times_on_cluster;
use tests::eventually;

use crate::audit::assert_equal;
use crate::clicks::{Edge, again, click, wait_until_processed};
use crate::processor::{Processor, config, operate};
use crate::replay::{moment, two_days};
use crate::replicas::{on, on_each};
use crate::rollups::link;
use crate::upkeep::{all_closed, delete_link, eager};

/// The clicks that each partition gets.
const CLICKS: i64 = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_click_stays_on_the_shard_of_its_partition() {
    let cluster = start_cluster(2, 1, Options::throw_away).await.unwrap();
    let kafka = std::env::var("KAFKA_BROKERS").unwrap();
    let isolated = given_times_on_cluster(&kafka, &cluster, 4).await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    eventually("both shards answer", async || {
        let (_, readiness) = processor.readiness().await;
        if readiness["checks"]["clickhouse"]["ready"] == true { Ok(()) } else { Err(readiness) }
    })
    .await;
    for is_repeat in [false, true] {
        for partition in 0..4 {
            for number in 0..CLICKS {
                let mut click = click(&format!("{partition}-{number}"));
                click.link_id = link(number.unsigned_abs() % 2);
                let at = moment(two_days()[number as usize / 20], number % 20 * 60);
                // Repeats arrive in a partition of the other shard.
                if is_repeat && number % 7 == 0 {
                    let repeat = again(&Click { occurred_at: at, ..click });
                    let encoded = repeat.encode();
                    edge.write((partition + 1) % 4, &encoded, Some(at + TimeDelta::minutes(30))).await;
                } else if !is_repeat {
                    edge.send_at(partition, &click, at).await;
                }
            }
        }
        wait_until_processed(&isolated).await;
    }
    for partition in 0..4 {
        for number in 0..2 {
            edge.send(partition, &click(&format!("today-{partition}-{number}"))).await;
        }
    }
    wait_until_processed(&isolated).await;
    on_each(
        &isolated,
        "SELECT count(), uniqExact(src), min(src % 65536) FROM clicks",
        &["84\t2\t0", "84\t2\t1"],
    )
    .await;
    on_each(
        &isolated,
        "SELECT groupArray(shard) FROM (SELECT shard FROM sources ORDER BY src)",
        &["[1,2,1,2]"; 2],
    )
    .await;
    all_closed(&isolated).await;
    let report = assert_equal(&isolated).await;
    assert_eq!(report.classes["human"].rows, 168);
    on_each(&isolated, "SELECT sum(clicks) > 0 FROM counts WHERE unit = 'hour'", &["1"; 2]).await;

    // Rows of both shards are lost.
    for shard in 0..2 {
        let lost = "DELETE FROM clicks WHERE koff BETWEEN 15 AND 25 SETTINGS lightweight_deletes_sync = 2";
        on(&isolated, shard, lost).await;
        on(&isolated, shard, "ALTER TABLE slices UPDATE at = at - 7200 WHERE 1 SETTINGS mutations_sync = 2")
            .await;
    }
    let done = operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    let rebuilt = done["rebuilt"].as_array().unwrap();
    assert_eq!(rebuilt.iter().filter(|day| day["changed"] == true).count(), 2, "{done}");
    assert_eq!(assert_equal(&isolated).await.classes["human"].rows, 168);
    on_each(&isolated, "SELECT count() FROM clicks", &["84"; 2]).await;

    // The former rollups of these days are removed from both.
    let former = format!("SELECT count() FROM counts WHERE NOT ({})", is_active());
    on_each(&isolated, &former, &["0"; 2]).await;

    delete_link(&isolated, link(1)).await;
    on_each(&isolated, "SELECT count() FROM purges", &["1"; 2]).await;
    on_each(&isolated, "SELECT count() FROM clicks", &["44"; 2]).await;
    assert_eq!(assert_equal(&isolated).await.classes["human"].rows, 88);
    processor.stop().await;

    // The statement that reads the other shard has the user's password; ClickHouse's answers do not.
    let clickhouse = Clickhouse::new(&config(&isolated).clickhouse);
    let everywhere = clickhouse.everywhere().await.unwrap().of("clicks");
    let wrong = format!("SELECT missing FROM {everywhere} WHERE toDate('x') = 1");
    let answer = clickhouse.query_raw(&wrong).execute().await.unwrap_err().to_string();
    assert!(!everywhere.contains("HIDDEN") && answer.contains("'[HIDDEN]'"), "{answer}");
}
