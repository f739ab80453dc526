//! What the statements promise: one part, all or nothing, and nothing under an old epoch.

use chrono::Utc;
use processor::batch::{Batcher, Insertion, Limits};
use processor::store::{InsertError, Store};
use schemas::clickhouse::Generation;
use schemas::row::{ClickRow, source};
use tests::engines::{Isolated, isolated};

use crate::clicks::click;
use crate::processor::config;

fn store(isolated: &Isolated, owner: &str) -> Store {
    Store::new(service::clickhouse::client(&config(isolated).clickhouse), owner.to_owned())
}

pub(crate) fn insertion(src: u32, offsets: std::ops::Range<u64>) -> Insertion {
    let mut batcher = Batcher::new(Limits { rows: usize::MAX, bytes: usize::MAX, ..Limits::default() });
    let click = click("click");
    for koff in offsets {
        batcher.push(ClickRow { click: click.clone(), src, koff, broker_ts: Utc::now() });
    }
    batcher.cut().unwrap().insertion(&[]).unwrap()
}

async fn rows(isolated: &Isolated) -> String {
    isolated.clickhouse("SELECT count() FROM clicks_1").await.trim().to_owned()
}

#[tokio::test]
async fn a_batch_of_any_size_becomes_one_part() {
    let isolated = isolated().await;
    let store = store(&isolated, "one");
    let src = source(1, 0);
    let epoch = store.raise_epoch(src).await.unwrap();
    store.insert(Generation::FIRST, src, epoch, &insertion(src, 0..120_000)).await.unwrap();
    let parts = isolated
        .clickhouse(
            "SELECT count(), sum(rows), max(level) FROM system.parts \
             WHERE database = currentDatabase() AND table = 'clicks_1'",
        )
        .await;
    assert_eq!(parts.trim(), "1\t120000\t0");
}

#[tokio::test]
async fn an_insert_under_an_old_epoch_stores_nothing() {
    let isolated = isolated().await;
    let (former, current) = (store(&isolated, "former"), store(&isolated, "current"));
    let (src, other) = (source(1, 0), source(1, 1));
    let old = former.raise_epoch(src).await.unwrap();
    let elsewhere = former.raise_epoch(other).await.unwrap();
    former.insert(Generation::FIRST, src, old, &insertion(src, 0..10)).await.unwrap();
    let new = current.raise_epoch(src).await.unwrap();
    assert!(new > old);

    let refused = former.insert(Generation::FIRST, src, old, &insertion(src, 10..100_000)).await.unwrap_err();
    assert!(matches!(refused, InsertError::Fenced), "{refused}");
    assert_eq!(rows(&isolated).await, "10");
    current.insert(Generation::FIRST, src, new, &insertion(src, 10..20)).await.unwrap();
    // The other source is its own.
    former.insert(Generation::FIRST, other, elsewhere, &insertion(other, 0..1)).await.unwrap();
    assert_eq!(rows(&isolated).await, "21");
    let last = current.last_row(Generation::FIRST, src, 0).await.unwrap().unwrap();
    assert_eq!(last.koff, 19);
    assert_eq!(current.last_row(Generation::FIRST, src, 20).await.unwrap(), None);
}

#[tokio::test]
async fn live_rows_are_refused_by_tables_that_are_not_current() {
    let isolated = isolated().await;
    let store = store(&isolated, "one");
    let src = source(1, 0);
    let epoch = store.raise_epoch(src).await.unwrap();
    store.insert(Generation::FIRST, src, epoch, &insertion(src, 0..10)).await.unwrap();
    for statement in Generation(2).statements() {
        isolated.clickhouse(&statement).await;
    }
    isolated.clickhouse("INSERT INTO generations SELECT 2, now64(3), 'test'").await;
    let refused = store.insert(Generation::FIRST, src, epoch, &insertion(src, 10..20)).await.unwrap_err();
    assert!(matches!(refused, InsertError::Fenced), "{refused}");
    store.insert(Generation(2), src, epoch, &insertion(src, 10..20)).await.unwrap();
    assert_eq!(isolated.clickhouse("SELECT count() FROM clicks_2").await.trim(), "10");
    assert_eq!(rows(&isolated).await, "10");
}

#[tokio::test]
async fn two_processors_that_take_over_at_once_never_hold_the_same_epoch() {
    let isolated = isolated().await;
    let store = store(&isolated, "many");
    let takes = (0..20).map(|_| store.raise_epoch(7));
    let epochs: Vec<u64> = futures_util::future::try_join_all(takes).await.unwrap();
    let distinct: std::collections::BTreeSet<u64> = epochs.iter().copied().collect();
    assert_eq!(distinct.len(), 20);
}
