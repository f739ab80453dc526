//! Clicks that were sent again.

use chrono::{TimeDelta, Utc};
use schemas::message::{Click, Message as _};
use tests::engines::{isolated, isolated_with_given_times};

use crate::clicks::{Edge, again, click, counted, counted_exactly};
use crate::processor::Processor;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_counts_once_and_a_lost_first_copy_is_replaced() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let arrived = click("arrived");
    edge.send(0, &arrived).await;
    let processor = Processor::start(&isolated).await;
    counted_exactly(&isolated, 1).await;

    edge.send(0, &again(&arrived)).await;
    edge.send(0, &again(&click("lost"))).await;
    // The last record of the partition: when it is a row, all others are processed.
    edge.send(0, &click("last")).await;
    counted(&isolated, "SELECT count() FROM clicks WHERE click_id = 'last'", 1).await;
    counted_exactly(&isolated, 3).await;
    assert_eq!(isolated.clickhouse("SELECT click_id FROM clicks WHERE again").await.trim(), "lost");
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_is_found_when_the_edge_clock_runs_ahead() {
    for ahead in [TimeDelta::minutes(5), TimeDelta::hours(25), TimeDelta::days(400)] {
        let isolated = isolated().await;
        let edge = Edge::new(&isolated);
        let mut early = click("from-the-future");
        early.occurred_at += ahead;
        edge.send(0, &early).await;
        let processor = Processor::start(&isolated).await;
        counted_exactly(&isolated, 1).await;
        let times = isolated.clickhouse("SELECT occurred_at = broker_ts FROM clicks").await;
        assert_eq!(times.trim(), "1", "the row has the broker's time, the message has another");

        edge.send(0, &again(&early)).await;
        edge.send(0, &click("last")).await;
        counted(&isolated, "SELECT count() FROM clicks WHERE click_id = 'last'", 1).await;
        counted_exactly(&isolated, 2).await;
        processor.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_is_found_after_the_edge_clock_is_corrected() {
    let isolated = isolated_with_given_times().await;
    let edge = Edge::new(&isolated);
    let first = Utc::now() - TimeDelta::days(9);
    let early = Click { occurred_at: first + TimeDelta::hours(25), ..click("from-the-future") };
    edge.write(0, &early.encode(), Some(first)).await;
    edge.write(0, &again(&early).encode(), Some(first + TimeDelta::days(8))).await;
    edge.send(0, &click("last")).await;
    let processor = Processor::start(&isolated).await;
    counted(&isolated, "SELECT count() FROM clicks WHERE click_id = 'last'", 1).await;
    counted_exactly(&isolated, 2).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_first_copy_is_dropped_after_a_restart() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let (one, two) = (click("one"), click("two"));
    edge.send(0, &again(&one)).await;
    edge.send(0, &again(&two)).await;
    let processor = Processor::start(&isolated).await;
    counted_exactly(&isolated, 2).await;
    edge.send(0, &one).await;
    edge.send(0, &click("between")).await;
    counted(&isolated, "SELECT count() FROM clicks WHERE click_id = 'between'", 1).await;
    counted_exactly(&isolated, 3).await;
    processor.stop().await;

    edge.send(0, &two).await;
    edge.send(0, &click("last")).await;
    let processor = Processor::start(&isolated).await;
    counted(&isolated, "SELECT count() FROM clicks WHERE click_id = 'last'", 1).await;
    counted_exactly(&isolated, 4).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_spool_sent_again_counts_once() {
    let isolated = isolated().await;
    let edge = Edge::new(&isolated);
    let clicks: Vec<_> = (0..1_200).map(|number| click(&format!("click-{number}"))).collect();
    let send = async |clicks: Vec<_>| {
        futures_util::future::join_all(clicks.iter().map(|click| edge.send(0, click))).await;
    };
    // The last hundred never arrived.
    send(clicks[..1_100].to_vec()).await;
    let processor = Processor::start(&isolated).await;
    counted_exactly(&isolated, 1_100).await;
    send(clicks.iter().map(again).collect()).await;
    counted_exactly(&isolated, 1_200).await;
    edge.send(0, &click("last")).await;
    counted_exactly(&isolated, 1_201).await;
    processor.stop().await;
}
