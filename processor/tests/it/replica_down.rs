//! Replays and purges while a replica is down.

use devstack::Options;
use devstack::clickhouse_cluster::start_cluster;
use schemas::clickhouse::rollup::is_active;
use tests::engines::given_times_on_cluster;
use tests::eventually;

use crate::audit::assert_equal;
use crate::clicks::{Edge, click, wait_until_processed};
use crate::processor::{Processor, operate};
use crate::replay::{moment, two_days};
use crate::replicas::{on, on_each};
use crate::rollups::link;
use crate::upkeep::{all_closed, delete_link, eager};

/// The clicks of each of two days.
const CLICKS: i64 = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_down_gets_replays_and_purges() {
    let cluster = start_cluster(1, 2, Options::throw_away).await.unwrap();
    let kafka = std::env::var("KAFKA_BROKERS").unwrap();
    let isolated = given_times_on_cluster(&kafka, &cluster, 1).await;
    let edge = Edge::new(&isolated);
    let processor = Processor::start_with(eager(&isolated)).await;
    for number in 0..2 * CLICKS {
        let mut click = click(&number.to_string());
        click.link_id = link(number.unsigned_abs() % 2);
        let at = moment(two_days()[usize::from(number >= CLICKS)], number % CLICKS);
        edge.send_at(0, &click, at).await;
    }
    edge.send(0, &click("today")).await;
    wait_until_processed(&isolated).await;
    all_closed(&isolated).await;
    let lost_rows = "DELETE FROM clicks WHERE koff BETWEEN 30 AND 50 SETTINGS lightweight_deletes_sync = 2";
    for lost in [lost_rows, "ALTER TABLE slices UPDATE at = at - 7200 WHERE 1 SETTINGS mutations_sync = 2"] {
        isolated.clickhouse(lost).await;
    }
    on_each(&isolated, "SELECT count() FROM clicks", &["60"; 2]).await;

    let second = &cluster.shards[0][1];
    second.kill().await;
    let refused = operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap_err();
    assert_eq!(format!("{refused:#}").matches("some replicas are inactive").count(), 1, "{refused:#}");
    // The first replica may have replaced the day already; the second one does so after its start.
    second.start().await.unwrap();
    operate(&isolated, &["replay", "--from", "earliest"]).await.unwrap();
    on_each(&isolated, "SELECT count() FROM clicks", &["81"; 2]).await;

    // Before it replaces a day, a replay waits for a replica that is behind, also beyond the timeout of one request.
    isolated.clickhouse(lost_rows).await;
    on(&isolated, 1, "SYSTEM STOP FETCHES clicks").await;
    edge.send(0, &click("behind")).await;
    on_each(&isolated, "SELECT count() FROM clicks", &["61", "60"]).await;
    let commands = ["replay", "--from", "earliest"];
    let timeouts = "SELECT sum(value) FROM system.errors WHERE name = 'TIMEOUT_EXCEEDED'";
    let timed_out = async || -> u64 { on(&isolated, 1, timeouts).await.parse().unwrap() };
    let before = timed_out().await;
    let resume_fetches = async {
        eventually("two requests to the replica timed out", async || match timed_out().await - before {
            count @ ..2 => Err(count),
            _ => Ok(()),
        })
        .await;
        on(&isolated, 1, "SYSTEM START FETCHES clicks").await;
    };
    let (done, ()) = tokio::join!(operate(&isolated, &commands), resume_fetches);
    done.unwrap();
    on_each(&isolated, "SELECT count() FROM clicks", &["82"; 2]).await;

    second.kill().await;
    delete_link(&isolated, link(1)).await;
    on_each(&isolated, "SELECT count() FROM clicks", &["42"]).await;
    // New clicks are still counted.
    edge.send(0, &click("later")).await;
    on_each(&isolated, "SELECT count() FROM clicks", &["43"]).await;
    second.start().await.unwrap();
    on_each(&isolated, "SELECT count() FROM clicks", &["43"; 2]).await;
    on_each(&isolated, "SELECT count() FROM purges", &["1"; 2]).await;
    let former = format!("SELECT count() FROM counts WHERE NOT ({})", is_active());
    on_each(&isolated, &former, &["0"; 2]).await;
    assert_eq!(assert_equal(&isolated).await.classes["human"].rows, 43);
    processor.stop().await;
}
