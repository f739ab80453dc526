//! Guarantees of the statements on replicas.

use chrono::Utc;
use devstack::Options;
use devstack::clickhouse_cluster::start_cluster;
use futures_util::future::join_all;
use processor::clickhouse::sources::Source;
use processor::clickhouse::{After, FencingToken, InsertError, Store};
use processor::pipeline::batch::{Batcher, Limits};
use processor::pipeline::repeats::{RecentIds, to_look_up};
use schemas::row::{ClickRow, source};
use service::clickhouse::Clickhouse;
use tests::engines::{Isolated, clickhouse, counting_on_cluster};
use tests::eventually;
use tokio::sync::Barrier;
use uuid::Uuid;

use crate::clicks::{again, click};
use crate::processor::config;
use crate::storing::insertion;

/// The rows that two owners insert together, and roughly the largest number of rows of one insert.
const ROWS: u64 = 300_000;
const MOST: u64 = 6_000;

async fn on_two_replicas() -> (devstack::clickhouse_cluster::Cluster, Isolated) {
    on_replicas(2).await
}

async fn on_replicas(replicas: usize) -> (devstack::clickhouse_cluster::Cluster, Isolated) {
    let cluster = start_cluster(1, replicas, Options::throw_away).await.unwrap();
    let kafka = std::env::var("KAFKA_BROKERS").unwrap();
    let isolated = counting_on_cluster(&kafka, &cluster, 1).await;
    (cluster, isolated)
}

/// Returns a store that stays with one replica.
fn store(isolated: &Isolated, replica: usize) -> Store {
    Store::new(Clickhouse::new(&config(isolated).clickhouse).at(replica), format!("of replica {replica}"))
}

pub(crate) async fn on(isolated: &Isolated, server: usize, sql: &str) -> String {
    clickhouse(&isolated.clickhouse_of(server), sql, Vec::new()).await.unwrap().trim().to_owned()
}

/// Waits until a query returns this on each of the first servers.
pub(crate) async fn on_each(isolated: &Isolated, sql: &str, expected: &[&str]) {
    eventually(sql, async || {
        let found = join_all((0..expected.len()).map(|server| on(isolated, server, sql))).await;
        if found == expected { Ok(()) } else { Err(found) }
    })
    .await;
}

/// Inserts batches after the last row of the store's replica until all rows are stored; returns the number of rejected
/// inserts. Both owners start after the same row.
async fn insert_all(
    store: &Store,
    log: Source,
    token: FencingToken,
    both: &Barrier,
    lengths: impl Fn(u64) -> u64,
) -> u32 {
    let mut rejected = 0;
    let mut position = store.position(log).await.unwrap();
    both.wait().await;
    while position.next < ROWS {
        let last = (position.next + lengths(position.next)).min(ROWS);
        let after = After { koff: position.last_koff, as_of: None };
        match store.insert(token, after, &insertion(log.src, position.next..last)).await {
            Ok(()) => {}
            Err(InsertError::Fenced) => rejected += 1,
            Err(error) => panic!("{error}"),
        }
        position = store.position(log).await.unwrap();
    }
    rejected
}

#[tokio::test(flavor = "multi_thread")]
async fn two_owners_with_one_epoch_store_each_row_once() {
    let (_cluster, isolated) = on_two_replicas().await;
    let (first, second) = (store(&isolated, 0), store(&isolated, 1));
    let log = Source { src: source(1, 0), topic_id: Uuid::nil(), first_offset: 0, shard: 0 };
    // Both have the highest epoch, so only the deduplication tokens prevent double rows.
    let token = FencingToken { src: log.src, epoch: first.raise_epoch(log.src).await.unwrap() };
    eventually("the other replica knows the epoch", async || {
        match on(&isolated, 1, "SELECT count() FROM owners").await.as_str() {
            "1" => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await;
    let both = Barrier::new(2);
    // The lengths differ from the first batch on, because an insert of the same rows is not rejected.
    let rejected = tokio::join!(
        insert_all(&first, log, token, &both, |next| 2 + next * 7919 % MOST),
        insert_all(&second, log, token, &both, |next| 3 + next * 104_729 % MOST),
    );
    assert!(rejected.0 + rejected.1 > 0, "no insert was rejected");
    let expected = format!("{ROWS}\t{ROWS}\t{}", ROWS - 1);
    for replica in 0..2 {
        let rows = "SELECT count(), uniqExact(koff), max(koff) FROM clicks";
        eventually("each row is stored once", async || match on(&isolated, replica, rows).await {
            same if same == expected => Ok(()),
            other => Err(other),
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_is_inserted_once_after_a_purge() {
    let (_cluster, isolated) = on_two_replicas().await;
    let store = store(&isolated, 0);
    let log = Source { src: source(1, 0), topic_id: Uuid::nil(), first_offset: 0, shard: 0 };
    let token = FencingToken { src: log.src, epoch: store.raise_epoch(log.src).await.unwrap() };
    let after = async || After { koff: store.position(log).await.unwrap().last_koff, as_of: None };
    store.insert(token, after().await, &insertion(log.src, 0..10)).await.unwrap();
    let at_nine = after().await;
    store.insert(token, at_nine, &insertion(log.src, 10..20)).await.unwrap();
    let purged = store.position(log).await.unwrap();
    // As a purge does.
    let removed = processor::clickhouse::Stretch { first: 10, next: 20, broker_ts: None, rows_end: 20 };
    store.insert_stretch(token, removed).await.unwrap();
    on(&isolated, 0, "DELETE FROM clicks WHERE koff >= 10 SETTINGS lightweight_deletes_sync = 2").await;
    let position = store.position(log).await.unwrap();
    assert_eq!((position.next, position.last_koff), (purged.next, Some(19)));
    // A former owner whose last row is 9, then the current one.
    let late = store.insert(token, at_nine, &insertion(log.src, 10..30)).await.unwrap_err();
    assert!(matches!(late, InsertError::Fenced), "{late}");
    store.insert(token, after().await, &insertion(log.src, 20..25)).await.unwrap();
    assert_eq!(on(&isolated, 0, "SELECT count(), max(koff) FROM clicks").await, "15\t24");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_inserts_are_both_stored() {
    let (_cluster, isolated) = on_two_replicas().await;
    let clickhouse = Clickhouse::new(&config(&isolated).clickhouse);
    for _ in 0..2 {
        let insert =
            "INSERT INTO rebuilds (day, at, reason) VALUES ('2026-11-21', '2026-11-22 00:00:00', 'replay')";
        clickhouse.query_raw(insert).execute().await.unwrap();
    }
    assert_eq!(on(&isolated, 0, "SELECT count() FROM rebuilds").await, "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn simultaneous_takeovers_on_replicas_raise_the_epoch_in_turn() {
    let (_cluster, isolated) = on_two_replicas().await;
    let (first, second) = (store(&isolated, 0), store(&isolated, 1));
    let src = source(1, 0);
    for round in 1..=20 {
        let raised = tokio::join!(first.raise_epoch(src), second.raise_epoch(src));
        let won = [&raised.0, &raised.1].iter().filter(|raised| raised.is_ok()).count();
        assert!(won > 0, "round {round}: {raised:?}");
        for store in [&first, &second] {
            store.sync(&["owners"]).await.unwrap();
        }
    }
    let same_counter =
        "SELECT max(times) FROM (SELECT count() AS times FROM owners GROUP BY intDiv(epoch, 4294967296))";
    assert_eq!(on(&isolated, 0, same_counter).await, "1", "epochs follow each other");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_switches_to_a_complete_replica() {
    let (cluster, isolated) = on_replicas(3).await;
    let clickhouse = Clickhouse::new(&config(&isolated).clickhouse);
    let [present, writing] =
        [clickhouse.clone(), clickhouse.at(1)].map(|of| Store::new(of, "test".to_owned()));
    on(&isolated, 0, "SYSTEM STOP FETCHES clicks").await;
    let log = Source { src: source(1, 0), topic_id: Uuid::nil(), first_offset: 0, shard: 0 };
    let token = FencingToken { src: log.src, epoch: writing.raise_epoch(log.src).await.unwrap() };
    writing.insert(token, After::default(), &insertion(log.src, 0..10)).await.unwrap();
    present.choose_complete(&["clicks"]).await.unwrap();
    assert_eq!((clickhouse.chosen(), present.rows(log.src).await.unwrap()), (1, 10));
    // The others know of rows that they cannot fetch.
    on(&isolated, 2, "SYSTEM STOP FETCHES clicks").await;
    on(&isolated, 1, "INSERT INTO clicks SELECT * REPLACE (koff + 10 AS koff) FROM clicks").await;
    cluster.shards[0][1].kill().await;
    present.choose_complete(&["clicks"]).await.unwrap_err();
    assert_eq!(clickhouse.chosen(), 1, "the store keeps its replica, because no other one is better");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_looked_up_on_all_replicas() {
    let (_cluster, isolated) = on_two_replicas().await;
    let (first, second) = (store(&isolated, 0), store(&isolated, 1));
    on(&isolated, 1, "SYSTEM STOP FETCHES clicks").await;
    let src = source(1, 0);
    let token = FencingToken { src, epoch: first.raise_epoch(src).await.unwrap() };
    first.insert(token, After::default(), &insertion(src, 0..1)).await.unwrap();

    let mut batcher = Batcher::new(Limits::default());
    batcher.push(&ClickRow { click: again(&click("click")), src, koff: 1, broker_ts: Utc::now() });
    let batch = batcher.cut().unwrap();
    let asked = to_look_up(&batch, &RecentIds::default());
    let look_up = eventually("the click is found", async || second.stored(&asked).await);
    let fetch = async {
        let waits = "SELECT count() FROM system.processes WHERE query LIKE 'SYSTEM SYNC REPLICA%'";
        eventually("the lookup waits for the other replica", async || {
            let waiting = on(&isolated, 1, waits).await;
            if waiting == "1" { Ok(()) } else { Err(waiting) }
        })
        .await;
        on(&isolated, 1, "SYSTEM START FETCHES clicks").await;
    };
    let (stored, ()) = tokio::join!(look_up, fetch);
    assert!(stored.contains("click"));
}
