//! The metrics of the programs.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{NaiveTime, Utc};
use devstack::Server;
use tests::deployment::{Deployment, click_id};
use tests::engines::isolated;
use tests::processor::Processor;
use tests::receiver::{Answer, Receiver};
use tests::{eventually, metrics_page};

const LAG: &str = "hopline_processor_lag_offsets";
const COUNTED_UNTIL: &str = "hopline_processor_counted_until_seconds";
const CLOSED_UNTIL: &str = "hopline_processor_closed_until_seconds";

/// A page of metrics: the values by series, the kinds by family.
struct Page {
    values: BTreeMap<String, f64>,
    kinds: BTreeMap<String, String>,
}

impl Page {
    /// Reads a program's page. Each family has a description and a kind before its series.
    async fn of(server: &Server) -> Self {
        let text = metrics_page(server.url()).await;
        let mut page = Self { values: BTreeMap::new(), kinds: BTreeMap::new() };
        let (mut described, mut family) = ("", "");
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(help) = line.strip_prefix("# HELP ") {
                described = help.split_once(' ').unwrap().0;
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(name, described, "{name} has no description");
                family = name;
                page.kinds.insert(name.to_owned(), kind.to_owned());
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap();
                assert!(series.starts_with(family), "{series} has no kind");
                page.values.insert(series.to_owned(), value.parse().unwrap());
            }
        }
        page
    }

    /// The series of counters and histograms.
    fn counted(&self) -> BTreeSet<String> {
        let is_gauge = |series: &str| {
            let name = series.split('{').next().unwrap();
            self.kinds.get(name).is_some_and(|kind| kind == "gauge")
        };
        self.values.keys().filter(|series| !is_gauge(series)).cloned().collect()
    }

    /// The sum of a metric over its labels.
    fn sum(&self, metric: &str) -> f64 {
        self.of_metric(metric).map(|(_, value)| value).sum()
    }

    /// The series of a metric.
    fn series(&self, metric: &str) -> BTreeSet<&str> {
        self.of_metric(metric).map(|(series, _)| series).collect()
    }

    fn of_metric(&self, metric: &str) -> impl Iterator<Item = (&str, f64)> {
        self.values.iter().filter_map(move |(series, value)| {
            let rest = series.strip_prefix(metric)?;
            (rest.is_empty() || rest.starts_with('{')).then_some((series.as_str(), *value))
        })
    }
}

async fn pages(deployment: &Deployment) -> Vec<Page> {
    let mut pages = Vec::new();
    for server in deployment.services() {
        pages.push(Page::of(server).await);
    }
    pages
}

#[tokio::test(flavor = "multi_thread")]
async fn no_counter_appears_after_the_start() {
    let deployment = Deployment::start().await;
    let before: Vec<BTreeSet<String>> = pages(&deployment).await.iter().map(Page::counted).collect();

    let receiver = Receiver::start(|_, number| Answer::Status(if number == 0 { 500 } else { 200 })).await;
    deployment.create_endpoint(&receiver.url("/"), &["click.created"]).await;
    let link = deployment.create_link().await;
    let slug = link["slug"].as_str().unwrap();
    deployment.edge_knows(slug).await;
    let redirect = deployment.click(slug, "198.51.100.1").await.unwrap();
    assert_eq!(deployment.convert(&click_id(&redirect)).await, 201);
    assert_eq!(deployment.head("no-such-slug").await.unwrap(), 404);
    // Each metric belongs to the last step of its program.
    let recorded = [
        ("hopline_clicks_delivered_total", 0),
        ("hopline_processor_rows_inserted_total", 1),
        ("hopline_processor_conversions_total", 1),
        ("hopline_outbox_published_total", 2),
        ("hopline_webhook_delivered_after_seconds_count", 3),
    ];
    let after = eventually("everything is counted", async || {
        let pages = pages(&deployment).await;
        let missing = recorded.iter().find(|(metric, place)| pages[*place].sum(metric) == 0.0);
        missing.map_or(Ok(pages), Err)
    })
    .await;
    assert!(after[0].values["hopline_redirect_seconds_count"] >= 3.0);
    for ((before, page), server) in before.iter().zip(&after).zip(deployment.services()) {
        let new: Vec<String> = page.counted().difference(before).cloned().collect();
        assert!(new.is_empty(), "{}: {new:#?}", server.name());
    }
    let created = r#"hopline_api_requests_total{operation="POST /links",status="2xx"}"#;
    assert_eq!(after[2].values[created], 1.0);
    assert_eq!(after[2].values["hopline_outbox_messages"], 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_of_a_partition_reports_it() {
    let engines = isolated().await;
    let first = Processor::start(&engines).await;
    let all = eventually("one processor reports every partition", async || {
        let page = Page::of(&first.server).await;
        let [lags, counted] = [LAG, COUNTED_UNTIL].map(|metric| page.series(metric).len());
        if lags == 6 && counted == 6 { Ok(owned(&page, LAG)) } else { Err((lags, counted)) }
    })
    .await;
    let second = Processor::start(&engines).await;
    eventually("each partition is reported once", async || {
        let pages = [Page::of(&first.server).await, Page::of(&second.server).await];
        let is_shared = |metric| {
            let [one, other] = [&pages[0], &pages[1]].map(|page| owned(page, metric));
            one.len() == 3 && other.len() == 3 && one.union(&other).eq(&all)
        };
        if [LAG, COUNTED_UNTIL].into_iter().all(is_shared) {
            Ok(())
        } else {
            Err(pages.map(|page| (owned(&page, LAG), owned(&page, COUNTED_UNTIL))))
        }
    })
    .await;
    second.stop().await;
    first.stop().await;
}

/// The labels of a metric's series.
fn owned(page: &Page, metric: &str) -> BTreeSet<String> {
    page.series(metric).iter().map(|series| series.trim_start_matches(metric).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_processor_that_runs_upkeep_reports_closed_days_from_its_start() {
    let deployment = Deployment::start().await;
    let link = deployment.create_link().await;
    let slug = link["slug"].as_str().unwrap();
    let today = || Utc::now().date_naive().and_time(NaiveTime::MIN).and_utc().timestamp() as f64;
    let before = today();
    deployment.edge_knows(slug).await;
    assert_eq!(deployment.click(slug, "198.51.100.1").await.unwrap().status(), 302);
    let is_reported = async |server: &Server| {
        eventually("closed days are reported", async || {
            let until = Page::of(server).await.values.get(CLOSED_UNTIL).copied();
            until.filter(|until| (before..=today()).contains(until)).ok_or(until)
        })
        .await
    };
    is_reported(&deployment.processor).await;
    // The new process has closed no day itself.
    deployment.processor.kill().await;
    deployment.processor.start().await.unwrap();
    is_reported(&deployment.processor).await;

    // Upkeep moves away from a processor that keeps running.
    let other = Processor::start(&deployment.engines).await;
    deployment.processor.stop().await;
    is_reported(&other.server).await;
    deployment.processor.start().await.unwrap();
    other.server.pause().await.unwrap();
    is_reported(&deployment.processor).await;
    other.server.resume().await.unwrap();
    eventually("the former processor does not report closed days", async || {
        let until = Page::of(&other.server).await.values.get(CLOSED_UNTIL).copied();
        until.map_or(Ok(()), Err)
    })
    .await;
    is_reported(&deployment.processor).await;
    other.stop().await;
}
