//! The operators' scripts restore a lost ClickHouse.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use chrono::{Days, Utc};
use devstack::Options;
use devstack::clickhouse_cluster::start_cluster;
use devstack::scratch::Scratch;
use schemas::grants::User;
use schemas::topic::CLICKS;
use tests::engines::{Isolated, counting_on_cluster, isolated};
use tests::eventually;
use tokio::task::spawn_blocking;

use crate::audit::assert_equal;
use crate::clicks::{Edge, counted_exactly};
use crate::processor::Processor;
use crate::rollups::{link, random_clicks, store};
use crate::upkeep::{all_closed, delete_link, eager};

/// Runs a script of `deploy` on the ClickHouse of a test.
async fn script(isolated: &Isolated, name: &str, arguments: &[&str]) -> Output {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name);
    let mut command = Command::new(path);
    command.args(arguments).env("CLICKHOUSE_URL", isolated.clickhouse_url_of(User::Migrate));
    spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

async fn succeeds(isolated: &Isolated, name: &str, arguments: &[&str]) {
    let output = script(isolated, name, arguments).await;
    assert!(output.status.success(), "{output:?}");
}

async fn fails_with(isolated: &Isolated, name: &str, arguments: &[&str], expected: &str) {
    let output = script(isolated, name, arguments).await;
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains(expected), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_clickhouse_is_restored_from_its_backup_and_the_log() {
    check_restore(&isolated().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_shards_are_restored_from_their_backup_and_the_log() {
    let cluster = start_cluster(2, 2, Options::throw_away).await.unwrap();
    let kafka = std::env::var("KAFKA_BROKERS").unwrap();
    let isolated = counting_on_cluster(&kafka, &cluster, CLICKS.partitions).await;
    check_restore(&isolated).await;

    // Neither script leaves out a shard.
    let scratch = Scratch::new("backup").unwrap();
    let folder = scratch.path().join("saved");
    let folder = folder.to_str().unwrap();
    succeeds(&isolated, "backup", &[folder, "clickhouse"]).await;
    let one_shard = Isolated { other_clickhouse: vec![], ..isolated };
    let other = format!("{folder}-of-one-shard");
    fails_with(&one_shard, "backup", &[&other, "clickhouse"], "names no server of shard 1").await;
    fails_with(&one_shard, "restore", &[folder, "clickhouse"], "has clicks-1 clicks-2, and").await;
}

/// Restores lost tables from a backup, and checks that the log completes them.
async fn check_restore(isolated: &Isolated) {
    let scratch = Scratch::new("backup").unwrap();
    let folder = scratch.path().join("saved");
    let folder = folder.to_str().unwrap();
    let edge = Edge::new(isolated);
    let last_week = Utc::now().date_naive().checked_sub_days(Days::new(7)).unwrap();
    store(isolated, &random_clicks(last_week, 4, 400)).await;
    let processor = Processor::start_with(eager(isolated)).await;
    edge.send_many("saved", 300).await;
    counted_exactly(isolated, 700).await;
    all_closed(isolated).await;
    delete_link(isolated, link(77)).await;
    // The processor keeps running.
    succeeds(isolated, "backup", &[folder, "clickhouse"]).await;
    edge.send_many("later", 300).await;
    counted_exactly(isolated, 1_000).await;
    processor.stop().await;

    // All tables are lost, and `api migrate` creates them again.
    let tables =
        isolated.clickhouse("SELECT name FROM system.tables WHERE database = currentDatabase()").await;
    for table in tables.lines() {
        isolated.clickhouse(&format!("TRUNCATE TABLE {table}")).await;
    }
    succeeds(isolated, "restore", &[folder, "clickhouse"]).await;
    assert_eq!(isolated.clickhouse("SELECT count() FROM clicks").await.trim(), "700");
    fails_with(isolated, "restore", &[folder, "clickhouse"], "rows; restore into the empty tables").await;
    let processor = Processor::start_with(eager(isolated)).await;
    counted_exactly(isolated, 1_000).await;
    all_closed(isolated).await;
    eventually("the deleted link is known", async || {
        let links = isolated.clickhouse("SELECT count() FROM deleted_links FINAL").await;
        if links.trim() == "1" { Ok(()) } else { Err(links) }
    })
    .await;
    assert_equal(isolated).await;
    processor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_backups_and_wrong_usage_are_rejected() {
    let isolated = isolated().await;
    let scratch = Scratch::new("backup").unwrap();
    let folder = scratch.path().join("saved");
    let name = folder.to_str().unwrap();
    fails_with(&isolated, "backup", &[], "Usage: deploy/backup DIR").await;
    fails_with(&isolated, "restore", &[name, "kafka"], "Usage: deploy/restore DIR").await;
    succeeds(&isolated, "backup", &[name, "clickhouse"]).await;
    fails_with(&isolated, "backup", &[name, "clickhouse"], "exists").await;
    for (path, expected) in [("", 0o700), ("clickhouse", 0o700), ("SHA256SUMS", 0o600)] {
        let mode = std::fs::metadata(folder.join(path)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, expected, "{path}");
    }
    std::fs::write(folder.join("clickhouse/clicks.native.zst"), "half").unwrap();
    fails_with(&isolated, "restore", &[name, "clickhouse"], "is not complete").await;

    // Tables of the last release are saved before they are migrated.
    if !isolated.is_replicated() {
        isolated.clickhouse("ALTER TABLE sources DROP COLUMN shard").await;
        let former = scratch.path().join("former");
        succeeds(&isolated, "backup", &[former.to_str().unwrap(), "clickhouse"]).await;
    }

    // A failed backup leaves no folder.
    let other = scratch.path().join("other");
    isolated.clickhouse("DROP TABLE sources").await;
    fails_with(&isolated, "backup", &[other.to_str().unwrap(), "clickhouse"], "did not run a statement")
        .await;
    assert!(!other.exists());
}
