//! Reports while replicas of ClickHouse are behind, frozen or dead.

use std::cell::Cell;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use devstack::clickhouse_cluster::{Cluster, start_cluster};
use devstack::{Options, Server};
use reqwest::Method;
use schemas::grants::User;
use tests::deployment::{Deployment, binary, click_id};
use tests::engines::{clickhouse, empty_on_cluster, host_of};
use tests::faults::progress;
use tests::processor::audit;
use tests::{PATIENCE, eventually, eventually_within};
use tokio::time::sleep;

/// How soon counts must be readable again after a replica was lost.
const READABLE: Duration = Duration::from_secs(15);

/// The counts that a visitor of the dashboard sees, one after another.
struct Watched<'a> {
    deployment: &'a Deployment,
    link: String,
    slug: String,
    answered: Cell<u64>,
    shown: Cell<u64>,
    /// Conversions that were shown.
    converted: Cell<u64>,
    /// The time of the newest click that was listed.
    newest: Cell<DateTime<Utc>>,
    /// When counts were last shown.
    shown_at: Cell<Instant>,
    /// The longest time without counts.
    longest: Cell<Duration>,
}

impl Watched<'_> {
    /// Clicks without a pause, and converts some of the clicks.
    async fn click(&self) -> ! {
        loop {
            let from = format!("198.51.100.{}", self.answered.get() % 250);
            if let Ok(answer) = self.deployment.click(&self.slug, &from).await
                && answer.status() == 302
            {
                self.answered.set(self.answered.get() + 1);
                if self.answered.get().is_multiple_of(10) {
                    assert_eq!(self.deployment.convert(&click_id(&answer)).await, 201);
                }
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Reads the counts, which must never be lower than before.
    async fn read(&self) -> ! {
        loop {
            let link = self.deployment.show_link(&self.link).await;
            if let Some(total) = link["total_clicks"].as_u64() {
                assert!(total >= self.shown.get(), "{total} clicks, and {} before", self.shown.get());
                assert!(total <= self.answered.get() + 1, "{total} clicks of {}", self.answered.get());
                self.shown.set(total);
                self.longest.set(self.longest.get().max(self.shown_at.get().elapsed()));
                self.shown_at.set(Instant::now());
            }
            if let Some(converted) = link["conversions"].as_u64() {
                let before = self.converted.replace(converted);
                assert!(converted >= before, "{converted} conversions, and {before} before");
            }
            self.read_newest().await;
            // More frequent reads would take the CPU from the programs.
            sleep(Duration::from_millis(250)).await;
        }
    }

    /// Reads the time of the newest click, which must never be earlier than before either.
    async fn read_newest(&self) {
        let path = format!("/api/links/{}/clicks?limit=1", self.link);
        let (_, page) = self.deployment.send(Method::GET, &path, None).await;
        if let Some(newest) = page["clicks"][0]["occurred_at"].as_str() {
            let newest: DateTime<Utc> = newest.parse().unwrap();
            let before = self.newest.replace(newest);
            assert!(newest >= before, "the newest click was at {newest}, and at {before} before");
        }
    }

    /// Waits until counts are shown that were read from now on.
    async fn is_readable(&self, within: Duration) {
        let now = Instant::now();
        eventually_within("counts are shown", within, async || {
            if self.shown_at.get() > now { Ok(()) } else { Err(self.shown.get()) }
        })
        .await;
    }

    /// Waits until more clicks are counted.
    async fn counts_more(&self) {
        let before = self.answered.get() + 1;
        let since = Instant::now();
        eventually("later clicks are counted", async || {
            if self.shown.get() >= before {
                return Ok(());
            }
            let log = self.deployment.log("processor");
            let newest: Vec<&str> = log.lines().rev().take(20).collect();
            Err((self.shown.get(), before, self.shown_at.get().elapsed(), newest.join("\n")))
        })
        .await;
        progress(&format!("{} clicks answered, counted after {:.1?}", self.answered.get(), since.elapsed()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reported_counts_never_drop_while_replicas_fail() {
    let cluster = start_cluster(2, 2, Options::throw_away).await.unwrap();
    let deployment = Deployment::start_on(empty_on_cluster(&cluster).await, &[]).await;
    let link = deployment.create_link().await;
    let text = |name: &str| link[name].as_str().unwrap().to_owned();
    let watched = Watched {
        deployment: &deployment,
        link: text("id"),
        slug: text("slug"),
        answered: Cell::new(0),
        shown: Cell::new(0),
        converted: Cell::new(0),
        newest: Cell::default(),
        shown_at: Cell::new(Instant::now()),
        longest: Cell::new(Duration::ZERO),
    };
    deployment.edge_knows(&watched.slug).await;
    tokio::select! {
        never = watched.click() => never,
        never = watched.read() => never,
        () = break_replicas(&watched, &cluster) => {}
    }
    let answered = watched.answered.get();
    eventually("every click is counted", async || {
        match deployment.show_link(&watched.link).await["total_clicks"].as_u64() {
            Some(total) if total >= answered => Ok(()),
            total => Err(total),
        }
    })
    .await;
    audit(&deployment.engines).await;
    progress(&format!(
        "{answered} clicks answered and counted; the longest time without counts was {:.1?}",
        watched.longest.get()
    ));
}

async fn break_replicas(watched: &Watched<'_>, cluster: &Cluster) {
    let [first, second] = &cluster.shards[0][..] else { panic!("{cluster:?}") };
    watched.counts_more().await;

    progress("the second replica lacks conversions, and the first one, which all read, is killed");
    run(watched, 1, "SYSTEM STOP FETCHES conversions").await;
    // The input of this test: less than the time after which the first one alone would be enough.
    sleep(Duration::from_secs(3)).await;
    first.kill().await;
    watched.is_readable(READABLE).await;
    run(watched, 1, "SYSTEM START FETCHES conversions").await;
    first.start().await.unwrap();
    watched.counts_more().await;

    progress("the first replica is behind, and the second one, which is read, is killed");
    run(watched, 0, "SYSTEM STOP FETCHES clicks").await;
    watched.counts_more().await;
    second.kill().await;
    // The input of this test: long enough to be noticed. The first one lacks rows, so no counts are shown.
    sleep(Duration::from_secs(3)).await;
    second.start().await.unwrap();
    watched.is_readable(PATIENCE).await;
    run(watched, 0, "SYSTEM START FETCHES clicks").await;
    watched.counts_more().await;

    for replica in [first, second] {
        progress("a replica is frozen");
        frozen(watched, replica).await;
        watched.counts_more().await;
    }

    progress("ZooKeeper is killed");
    cluster.zookeeper.kill().await;
    // The input of this test: the state is older than a second, and still used.
    sleep(Duration::from_secs(3)).await;
    watched.is_readable(READABLE).await;
    cluster.zookeeper.start().await.unwrap();
    watched.counts_more().await;
}

async fn frozen(watched: &Watched<'_>, replica: &Server) {
    replica.pause().await.unwrap();
    watched.is_readable(READABLE).await;
    replica.resume().await.unwrap();
}

/// Runs a statement on a replica.
async fn run(watched: &Watched<'_>, replica: usize, sql: &str) {
    clickhouse(&watched.deployment.engines.clickhouse_of(replica), sql, Vec::new()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_replica_is_replaced_and_refilled_from_kafka() {
    let cluster = start_cluster(1, 2, Options::throw_away).await.unwrap();
    let first = &cluster.shards[0][0];
    let deployment = Deployment::start_on(empty_on_cluster(&cluster).await, &[]).await;
    let link = deployment.create_link().await;
    let (id, slug) = (link["id"].as_str().unwrap(), link["slug"].as_str().unwrap());
    deployment.edge_knows(slug).await;
    let click = async |clicks: u64| {
        for number in 0..clicks {
            let from = format!("198.51.100.{}", number % 250);
            assert_eq!(deployment.click(slug, &from).await.unwrap().status(), 302);
        }
    };
    let on = async |replica: usize, sql: &str| {
        let url = deployment.engines.clickhouse_of(replica);
        clickhouse(&url, sql, Vec::new()).await.map(|answer| answer.trim().to_owned())
    };
    let counted = async |clicks: u64| {
        const ROWS: &str = "SELECT groupArray((src, rows, first, last)) FROM ( \
            SELECT src, count() AS rows, min(koff) AS first, max(koff) AS last FROM clicks GROUP BY src ORDER BY src)";
        eventually("the clicks are counted", async || {
            let link = deployment.show_link(id).await;
            match link["total_clicks"].as_u64() {
                Some(total) if total == clicks => Ok(()),
                total => Err((total, link["as_of"].clone(), on(0, ROWS).await, on(1, ROWS).await)),
            }
        })
        .await;
    };
    click(50).await;
    counted(50).await;

    // The next clicks are only on the first replica; everything else is on both.
    on(1, "SYSTEM STOP FETCHES clicks").await.unwrap();
    click(50).await;
    eventually("the first replica has them", async || match on(0, "SELECT count() FROM clicks").await {
        Ok(rows) if rows == "100" => Ok(()),
        other => Err(other),
    })
    .await;
    for table in ["owners", "sources"] {
        on(1, &format!("SYSTEM SYNC REPLICA {table}")).await.unwrap();
    }
    first.kill().await;
    std::fs::remove_dir_all(first.launch().log.with_extension("").join("data")).unwrap();
    on(1, "SYSTEM START FETCHES clicks").await.unwrap();
    click(50).await;
    // The new first replica is empty, without the database.
    first.start().await.unwrap();
    let database = deployment.engines.clickhouse_url.rsplit_once('/').unwrap().1;
    devstack::clickhouse::query(first.url(), None, &format!("CREATE DATABASE {database}")).await.unwrap();
    let name = host_of(first.url());
    deployment.run(User::Migrate, &binary("api"), &["migrate", "--replace-replica", &name]).await;
    // Both replicas skip the lost parts, and the new one has all others.
    for (replica, table) in [(0, "owners"), (0, "sources"), (0, "clicks"), (1, "clicks")] {
        let sync = format!("SYSTEM SYNC REPLICA {table}");
        eventually("the replicas are complete", async || on(replica, &sync).await).await;
    }
    // The test does not know which partitions lost their last rows, and may release the others too.
    let processor = binary("processor");
    for partition in 0..schemas::topic::CLICKS.partitions {
        let src = schemas::row::source(1, partition as u16).to_string();
        deployment.run(User::Processor, &processor, &["release-source", "--src", &src]).await;
    }
    // The replay restores lost rows that are not the last of their partition.
    deployment.run(User::Processor, &processor, &["replay", "--from", "earliest"]).await;
    counted(150).await;
    click(10).await;
    counted(160).await;
    audit(&deployment.engines).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_was_down_removes_a_deleted_links_rows() {
    let cluster = start_cluster(1, 2, Options::throw_away).await.unwrap();
    let second = &cluster.shards[0][1];
    let engines = empty_on_cluster(&cluster).await;
    let deployment = Deployment::start_on(engines, &[("HOPLINE_PURGE_SECONDS", "1")]).await;
    let links = [deployment.create_link().await, deployment.create_link().await];
    let rows = async |replica: usize| {
        let url = deployment.engines.clickhouse_of(replica);
        let sql = "SELECT count(), uniqExact(link_id) FROM clicks";
        clickhouse(&url, sql, Vec::new()).await.map(|rows| rows.trim().to_owned())
    };
    let has = async |replica: usize, expected: &str| {
        eventually("the replica has these rows", async || match rows(replica).await {
            Ok(rows) if rows == expected => Ok(()),
            other => Err(other),
        })
        .await;
    };
    for link in &links {
        let slug = link["slug"].as_str().unwrap();
        deployment.edge_knows(slug).await;
        for number in 0..20 {
            let answer = deployment.click(slug, &format!("198.51.100.{number}")).await.unwrap();
            assert_eq!(answer.status(), 302);
        }
    }
    for replica in 0..2 {
        has(replica, "40\t2").await;
    }
    second.kill().await;
    let path = format!("/api/links/{}", links[0]["id"].as_str().unwrap());
    let (status, answer) = deployment.send(reqwest::Method::DELETE, &path, None).await;
    assert!(status < 300, "{status} {answer}");
    has(0, "20\t1").await;
    second.start().await.unwrap();
    has(1, "20\t1").await;
    audit(&deployment.engines).await;
}
