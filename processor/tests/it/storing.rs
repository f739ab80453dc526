//! Guarantees of the statements: one part, all or nothing, and nothing under an old epoch.

use chrono::{TimeDelta, Utc};
use processor::clickhouse::Insertion;
use processor::clickhouse::sources::Source;
use processor::clickhouse::{After, FencingToken, InsertError, Progress, Store, Stretch};
use processor::pipeline::batch::{Batcher, Limits};
use schemas::row::{ClickRow, source};
use tests::engines::{Isolated, isolated};

use crate::clicks::click;
use crate::processor::config;

fn store(isolated: &Isolated, owner: &str) -> Store {
    Store::new(service::clickhouse::Clickhouse::new(&config(isolated).clickhouse), owner.to_owned())
}

pub(crate) fn insertion(src: u32, offsets: std::ops::Range<u64>) -> Insertion {
    let mut batcher = Batcher::new(Limits {
        rows: usize::MAX,
        bytes: usize::MAX,
        total_bytes: usize::MAX,
        ..Limits::default()
    });
    let click = click("click");
    for koff in offsets {
        batcher.push(&ClickRow { click: click.clone(), src, koff, broker_ts: Utc::now() });
    }
    batcher.cut().unwrap().insertion(&[]).unwrap()
}

/// Inserts rows as a lane does that has no earlier row.
async fn insert(store: &Store, src: u32, epoch: u64, insertion: &Insertion) -> Result<(), InsertError> {
    store.insert(FencingToken { src, epoch }, After::default(), insertion).await
}

async fn rows(isolated: &Isolated) -> String {
    isolated.clickhouse("SELECT count() FROM clicks").await.trim().to_owned()
}

#[tokio::test]
async fn a_batch_of_any_size_becomes_one_part() {
    let isolated = isolated().await;
    let store = store(&isolated, "one");
    let src = source(1, 0);
    let epoch = store.raise_epoch(src).await.unwrap();
    insert(&store, src, epoch, &insertion(src, 0..120_000)).await.unwrap();
    let parts = isolated
        .clickhouse(
            "SELECT count(), sum(rows), max(level) FROM system.parts \
             WHERE database = currentDatabase() AND table = 'clicks'",
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
    insert(&former, src, old, &insertion(src, 0..10)).await.unwrap();
    let new = current.raise_epoch(src).await.unwrap();
    assert!(new > old);

    let refused = insert(&former, src, old, &insertion(src, 10..100_000)).await.unwrap_err();
    assert!(matches!(refused, InsertError::Fenced), "{refused}");
    assert_eq!(rows(&isolated).await, "10");
    insert(&current, src, new, &insertion(src, 10..20)).await.unwrap();
    // The other source has its own epoch.
    insert(&former, other, elsewhere, &insertion(other, 0..1)).await.unwrap();
    assert_eq!(rows(&isolated).await, "21");
    let log = Source { src, topic_id: uuid::Uuid::nil(), first_offset: 0, shard: 0 };
    let position = current.position(log).await.unwrap();
    assert_eq!((position.next, position.last_row.map(|row| row.koff)), (20, Some(19)));
}

#[tokio::test]
async fn an_insert_into_an_older_copy_stores_nothing() {
    let isolated = isolated().await;
    let store = store(&isolated, "one");
    let src = source(1, 0);
    let token = FencingToken { src, epoch: store.raise_epoch(src).await.unwrap() };
    let as_of = schemas::time::to_millis(Utc::now());
    store.write_progress(&[Progress { src, as_of, known: None }]).await.unwrap();
    let after = After { koff: None, as_of: Some(as_of) };
    store.insert(token, after, &insertion(src, 0..10)).await.unwrap();
    // As if the last progress were missing, although its owner knows of it.
    isolated.clickhouse("TRUNCATE TABLE progress").await;
    let before = as_of - TimeDelta::seconds(60);
    store.write_progress(&[Progress { src, as_of: before, known: None }]).await.unwrap();
    let refused = store.insert(token, after, &insertion(src, 10..20)).await.unwrap_err();
    assert!(matches!(refused, InsertError::Fenced), "{refused}");
    assert_eq!(rows(&isolated).await, "10");
    // The owner cannot write later progress either.
    let later = Progress { src, as_of: as_of + TimeDelta::seconds(1), known: Some(as_of) };
    store.write_progress(&[later]).await.unwrap();
    assert_eq!(store.progress().await.unwrap(), [(src, before)].into());
    store.write_progress(&[Progress { src, as_of, known: Some(before) }]).await.unwrap();
    assert_eq!(store.progress().await.unwrap(), [(src, as_of)].into());
}

/// On replicas, the token of an insert allows only one insert after a row. On one server the guard does that, and the
/// token has no effect.
#[tokio::test]
async fn an_insert_token_has_no_effect_on_one_server() {
    let isolated = isolated().await;
    let store = store(&isolated, "one");
    let src = source(1, 0);
    let token = FencingToken { src, epoch: store.raise_epoch(src).await.unwrap() };
    let after = After { koff: Some(41), as_of: None };
    for first in [42, 52] {
        let rows = insertion(src, first..first + 10);
        store.insert(token, after, &rows).await.unwrap();
    }
    assert_eq!(rows(&isolated).await, "20");
}

#[tokio::test]
async fn a_source_continues_after_dropped_and_removed_rows() {
    let isolated = isolated().await;
    let store = store(&isolated, "one");
    let src = source(1, 0);
    let token = FencingToken { src, epoch: store.raise_epoch(src).await.unwrap() };
    let log = Source { src, topic_id: uuid::Uuid::nil(), first_offset: 7, shard: 0 };
    let next = async || store.position(log).await.unwrap().next;
    assert_eq!(next().await, 7);
    insert(&store, src, token.epoch, &insertion(src, 7..10)).await.unwrap();
    assert_eq!(next().await, 10);
    let stretch = |first, next| Stretch { first, next, broker_ts: None, rows_end: 0 };
    for (stretch, reached) in [(stretch(10, 15), 15), (stretch(10, 18), 18), (stretch(30, 40), 18)] {
        store.insert_stretch(token, stretch).await.unwrap();
        assert_eq!(next().await, reached);
    }
    isolated.clickhouse("DELETE FROM clicks WHERE 1").await;
    assert_eq!(next().await, 7);
    store.insert_stretch(token, stretch(0, 10)).await.unwrap();
    assert_eq!(next().await, 18);
    store.raise_epoch(src).await.unwrap();
    let refused = store.insert_stretch(token, stretch(18, 20)).await.unwrap_err();
    assert!(matches!(refused, InsertError::Fenced), "{refused}");
}

#[tokio::test]
async fn simultaneous_takeovers_get_different_epochs() {
    let isolated = isolated().await;
    let store = store(&isolated, "many");
    let takes = (0..20).map(|_| store.raise_epoch(7));
    let epochs: Vec<u64> = futures_util::future::try_join_all(takes).await.unwrap();
    let distinct: std::collections::BTreeSet<u64> = epochs.iter().copied().collect();
    assert_eq!(distinct.len(), 20);
}
