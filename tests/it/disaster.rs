//! All engines are lost: ClickHouse and Postgres are restored from backups of different ages, and Kafka restarts empty.

use std::collections::BTreeSet;
use std::path::Path;

use devstack::scratch::Scratch;
use reqwest::Method;
use schemas::grants::User;
use serde_json::{Value, json};
use sqlx::Executor as _;
use tests::counted::click_ids;
use tests::deployment::{Deployment, binary, click_id, programs};
use tests::eventually;
use tests::faults::OwnEngines;
use tokio::process::Command;

/// A link and its clicks that were answered.
pub(crate) struct Clicked {
    pub(crate) id: String,
    pub(crate) slug: String,
    pub(crate) clicks: Vec<String>,
}

impl Clicked {
    pub(crate) async fn create(deployment: &Deployment) -> Self {
        let link = deployment.create_link().await;
        let [id, slug] = ["id", "slug"].map(|field| link[field].as_str().unwrap().to_owned());
        deployment.edge_knows(&slug).await;
        Self { id, slug, clicks: Vec::new() }
    }

    pub(crate) async fn click(&mut self, deployment: &Deployment, count: usize) {
        for _ in 0..count {
            let answer = deployment.click(&self.slug, "198.51.100.1").await.unwrap();
            self.clicks.push(click_id(&answer));
        }
    }

    /// Waits until the API shows these counts of clicks and conversions.
    pub(crate) async fn shows(&self, deployment: &Deployment, clicks: u64, conversions: u64) {
        eventually("the API shows the counts", async || {
            let link = deployment.show_link(&self.id).await;
            let shown = ["total_clicks", "conversions"].map(|count| link[count].as_u64());
            if shown == [Some(clicks), Some(conversions)] { Ok(()) } else { Err(link) }
        })
        .await;
    }
}

/// Runs a script of `deploy` on one engine, as the owner of its tables.
async fn script(deployment: &Deployment, name: &str, folder: &Path, engine: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name);
    deployment.run(User::Migrate, &path, &[folder.to_str().unwrap(), engine]).await;
}

/// Runs a command of the processor and returns its answer.
async fn processor(deployment: &Deployment, arguments: &[&str]) -> Value {
    let answer = deployment.run(User::Processor, &binary("processor"), arguments).await;
    serde_json::from_slice(&answer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_and_spools_restore_the_counts_after_losing_every_engine() {
    let own = OwnEngines::start().await;
    let deployment = Deployment::start_on(own.isolated().await, &[]).await;
    let scratch = Scratch::new("backups").unwrap();
    let [yesterday, morning] = ["yesterday", "morning"].map(|name| scratch.path().join(name));

    let mut old = Clicked::create(&deployment).await;
    old.click(&deployment, 30).await;
    assert_eq!(deployment.convert(&old.clicks[0]).await, 201);
    old.shows(&deployment, 30, 1).await;
    script(&deployment, "backup", &yesterday, "clickhouse").await;

    let mut young = Clicked::create(&deployment).await;
    old.click(&deployment, 10).await;
    young.click(&deployment, 10).await;
    assert_eq!(deployment.convert(&old.clicks[1]).await, 201);
    old.shows(&deployment, 40, 2).await;
    script(&deployment, "backup", &morning, "postgres").await;

    let patch = json!({ "destination": "https://later.example/" });
    let changed = deployment.send(Method::PATCH, &format!("/api/links/{}", old.id), Some(&patch)).await;
    assert_eq!(changed.0, 200);
    old.click(&deployment, 5).await;
    old.shows(&deployment, 45, 2).await;

    // Kafka stops first. The edge spools clicks and is then killed.
    own.kafka.stop().await;
    let before: BTreeSet<String> = old.clicks.iter().chain(&young.clicks).cloned().collect();
    old.click(&deployment, 7).await;
    young.click(&deployment, 3).await;
    for server in deployment.services() {
        server.kill().await;
    }
    own.kafka.start().await.unwrap();
    deployment.engines.remove_topics().await;
    let tables = "SELECT name FROM system.tables WHERE database = currentDatabase()";
    for table in deployment.engines.clickhouse(tables).await.lines() {
        deployment.engines.clickhouse(&format!("DROP TABLE {table} SYNC")).await;
    }
    let everything = "DROP SCHEMA public CASCADE; CREATE SCHEMA public AUTHORIZATION hopline_migrate;
                      GRANT USAGE ON SCHEMA public TO PUBLIC";
    deployment.engines.postgres().await.execute(everything).await.unwrap();

    // The order of docs/guides/backup.md.
    script(&deployment, "restore", &morning, "postgres").await;
    deployment.migrate(&programs()).await;
    script(&deployment, "restore", &yesterday, "clickhouse").await;
    processor(&deployment, &["adopt-topic", "--json"]).await;
    for server in deployment.services() {
        server.start().await.unwrap();
    }
    deployment.admin(&["publish-links", "--restored"]).await;
    let nothing = deployment.admin(&["publish-conversions", "--since", "2100-01-01T00:00:00Z"]).await;
    assert_eq!(nothing["published"], 0);
    assert_eq!(deployment.admin(&["publish-conversions"]).await["published"], 2);

    // The 15 clicks of the old link and the 10 of the young one between the backup and the loss are gone.
    old.shows(&deployment, 30 + 7, 2).await;
    young.shows(&deployment, 3, 0).await;
    let stored = click_ids(&deployment.engines).await;
    assert_eq!(stored.len(), 40);
    let in_spool = old.clicks.iter().chain(&young.clicks).filter(|click| !before.contains(*click));
    assert!(in_spool.clone().count() == 10 && in_spool.clone().all(|click| stored.contains(click)));
    let report = processor(&deployment, &["audit", "--json"]).await;
    assert_eq!(
        report["former"].as_array().unwrap().iter().map(|one| one["rows"].as_u64().unwrap()).sum::<u64>(),
        30,
        "{report}"
    );

    // The edge has the links of Postgres, and all programs work.
    eventually("the edge has the destination of the backup", async || {
        let answer = deployment.click(&old.slug, "198.51.100.2").await.unwrap();
        let location = answer.headers()["location"].to_str().unwrap().to_owned();
        if location.starts_with("https://example.com/") { Ok(()) } else { Err(location) }
    })
    .await;
    let mut new = Clicked::create(&deployment).await;
    new.click(&deployment, 2).await;
    assert_eq!(deployment.convert(&new.clicks[0]).await, 201);
    new.shows(&deployment, 2, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_an_edges_disk_counts_no_click_twice() {
    let own = OwnEngines::start().await;
    let deployment = Deployment::start_on(own.isolated().await, &[]).await;
    let mut link = Clicked::create(&deployment).await;
    own.kafka.stop().await;
    link.click(&deployment, 10).await;
    deployment.ingest.stop().await;
    let scratch = Scratch::new("copy").unwrap();
    let (disk, copy) = (deployment.spool(), scratch.path().join("copy"));
    copy_folder(&disk, &copy).await;

    own.kafka.start().await.unwrap();
    deployment.ingest.start().await.unwrap();
    link.shows(&deployment, 10, 0).await;
    link.click(&deployment, 5).await;
    link.shows(&deployment, 15, 0).await;

    deployment.ingest.stop().await;
    std::fs::remove_dir_all(&disk).unwrap();
    copy_folder(&copy, &disk).await;
    deployment.ingest.start().await.unwrap();
    link.click(&deployment, 5).await;
    eventually("the old segments are sent again", async || {
        let records = tests::log::records(&deployment.engines, schemas::topic::CLICKS).len();
        if records == 10 + 5 + 10 + 5 { Ok(()) } else { Err(records) }
    })
    .await;
    let report = processor(&deployment, &["audit", "--json"]).await;
    assert_eq!(report["differences"], json!([]), "{report}");
    link.shows(&deployment, 20, 0).await;
}

async fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().await.unwrap();
    assert!(copied.success());
}
