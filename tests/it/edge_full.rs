//! A full spool and a full disk: redirects continue, and every dropped click is counted.

use devstack::Server;
use tests::edge::Edge;
use tests::engines::{Isolated, topics_on};
use tests::faults::{own_kafka, progress};
use tests::links;
use tests::load::Load;
use tests::signals::log_tail;
use tests::tally::Tally;
use tests::{eventually, metric, readyz};

const DROPPED: &str = "hopline_clicks_dropped_total";

#[tokio::test(flavor = "multi_thread")]
async fn with_a_full_spool_redirects_continue_and_drops_are_counted_exactly() {
    let kafka = own_kafka().await;
    let engines = topics_on(kafka.url()).await;
    let edge = Edge::prepare(&engines, &[("HOPLINE_SPOOL_MAX_BYTES", "2097152")]);
    fills_up_and_recovers(&edge, &engines, &kafka, "full").await;
    progress("full by the size limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_redirects_continue_and_drops_are_counted_exactly() {
    let kafka = own_kafka().await;
    let engines = topics_on(kafka.url()).await;
    // Larger than the disk.
    let limit = [("HOPLINE_SPOOL_MAX_BYTES", "1073741824")];
    let Some(edge) = Edge::prepare_on_small_disk(&engines, 12 << 20, &limit) else {
        // The other test covers a full spool.
        progress("SKIPPED: the full disk, because mounting a file system is not allowed here");
        return;
    };
    fills_up_and_recovers(&edge, &engines, &kafka, "the disk takes no clicks").await;
    progress("full by the disk (ENOSPC on a tmpfs)");
}

/// Stops Kafka until clicks are dropped, starts it, and compares.
async fn fills_up_and_recovers(edge: &Edge, engines: &Isolated, kafka: &Server, detail: &str) {
    let slugs = links::publish(engines, 10);
    edge.server.start().await.unwrap();
    edge.knows(&slugs[9]).await;
    let (url, pid) = (edge.server.url(), edge.server.pid());
    let load = Load::start(edge.address, &slugs, 8, None);
    load.answers(100).await;
    assert!(metric(url, DROPPED).await == 0.0);
    kafka.stop().await;
    eventually("clicks are dropped", async || match metric(url, DROPPED).await {
        dropped if dropped > 500.0 => Ok(()),
        dropped => Err(dropped),
    })
    .await;
    load.answers(500).await;
    // Segments that Kafka had confirmed are deleted two seconds later, and their space takes clicks again.
    eventually("the edge says that it drops clicks", async || {
        let (status, report) = readyz(url).await;
        let check = &report["checks"]["spool"];
        let found = check["detail"].as_str().unwrap_or_default();
        let says_so = found.contains("dropped") && found.contains(detail);
        if status == 503 && check["ready"] == false && says_so { Ok(()) } else { Err(report) }
    })
    .await;

    kafka.start().await.unwrap();
    eventually("the edge is ready again", async || match readyz(url).await {
        (200, _) => Ok(()),
        (_, report) => Err((report, edge.files(), log_tail(&edge.server))),
    })
    .await;
    load.answers(500).await;
    let mut log = load.stop().await;
    let without_id = std::mem::take(&mut log.dropped);
    log.is_complete();
    assert_eq!(edge.server.pid(), pid, "it recovered without a restart");
    let dropped = metric(url, DROPPED).await as usize;
    // One line for each interval, and not for each click.
    let alarms = edge.log().matches("clicks were dropped and counted").count();
    assert!((1..100).contains(&alarms), "{alarms} lines for {dropped} drops");

    ships_everything_anywhere(edge).await;
    edge.stop().await;
    let tally = Tally::of(engines, &log);
    progress(&format!("{dropped} dropped in {alarms} alarms; {tally}"));
    tally.has_no_more();
    assert_eq!(tally.strangers, 0);
    // Only the id of a stored click is given out.
    assert_eq!(without_id as usize, dropped);
    assert!(tally.missing.is_empty(), "{tally}");
}

/// Waits until every click is confirmed, by the metrics, because only the edge sees its own disk.
async fn ships_everything_anywhere(edge: &Edge) {
    eventually("every click is confirmed", async || {
        let records = metric(edge.server.url(), "hopline_spool_records").await;
        if records == 0.0 { Ok(()) } else { Err(records) }
    })
    .await;
}
