//! `bench api`: operations of the management API against the bare statements that they cannot do without.

mod bare;
pub(crate) mod constant;
pub(crate) mod http;
mod report;
pub(crate) mod server;
pub(crate) mod stage;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use bare::Bare;
use report::{Comparison, Judged, Report, Round, Throughput};
use server::Server;
use stage::Stage;
use tests::engines::{Isolated, isolated};

use crate::prepare::{ENGINES, prepare};
use crate::terminal::{complain, say};

/// What all servers log, whatever our own environment says: log lines cost time.
pub(crate) const LOG_FILTER: &str = "info,librdkafka=warn,rdkafka=warn";

/// Links in the workspace before the first round.
const LINKS: u32 = 25_000;

/// Links in a page of the list.
const PAGE: usize = 100;

/// What is measured, and for how long.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Pairs of rounds of each comparison: one of ours, one of the bare statements
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Seconds of a round
    #[arg(long, default_value = "4", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Seconds of each side before the first round of a comparison
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = clap::value_parser!(u32).range(1..=3600))]
    warm_up: u32,
    /// Connections of the rounds that count requests per second; latencies are measured on one
    #[arg(long, value_name = "COUNT", default_value = "16", value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// Clicks in ClickHouse, spread evenly over the links
    #[arg(long, value_name = "COUNT", default_value = "1000000",
          value_parser = clap::value_parser!(u32).range(i64::from(LINKS)..=100_000_000))]
    clicks: u32,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Measures and prints the result.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    prepare(&ENGINES)?;
    let engines = isolated().await;
    // Topics and databases stay after a failure: what was asked and answered is to be looked for there.
    let report = measure(&options, &engines).await?;
    engines.remove().await;
    say(&if options.json { serde_json::to_string(&report)? } else { report.text() });
    Ok(())
}

async fn measure(options: &Options, engines: &Isolated) -> anyhow::Result<Report> {
    complain(&format!("making {LINKS} links and {} clicks", options.clicks));
    let api = Server::api(engines).await?;
    let mut stage = Stage::set(engines, &api, LINKS).await?;
    stage.clicks(engines, options.clicks).await;
    let mut bare = Bare::new(engines, &stage).await?;
    let list = http::get(&format!("/api/links?limit={PAGE}"), &stage.key);
    let mut connection = http::Connection::open(api.address()).await?;
    let page = connection.ask(&list, 200).await?.to_vec();
    // Counters that are null or of other clicks would be a faster answer, and no result.
    stage::is_page(&page, PAGE, &bare.totals().await?)?;

    let list_latency = compare(
        options,
        Comparison::new("list", "SELECT beside the counter query", Judged::P99, 1.5),
        &mut stage,
        async || connection.ask(&list, 200).await.map(drop),
        async || bare.page_and_counters().await,
    )
    .await?;
    let throughput = throughput(options, &api, &list, page.len()).await?;
    // A second connection, because both sides of a comparison are borrowed at once.
    let mut other = Bare::new(engines, &stage).await?;
    let auth = compare(
        options,
        Comparison::new("auth", "look-up of a key", Judged::P50, 2.0),
        &mut stage,
        async || bare.authenticate().await,
        async || other.look_up_key().await,
    )
    .await?;
    let create = http::post("/api/links", &stage.key, stage::NEW_LINK);
    let create_latency = compare(
        options,
        Comparison::new("create", "its one statement", Judged::P50, 2.0),
        &mut stage,
        async || connection.ask(&create, 201).await.map(drop),
        async || bare.create().await,
    )
    .await?;
    drop(connection);
    bare.close().await?;
    other.close().await?;
    stage.close().await?;
    api.stop().await?;
    Report::new(options, vec![list_latency, create_latency, auth], throughput)
}

/// Measures two ways in turns, each on its own, one request after the other.
async fn compare(
    options: &Options,
    mut comparison: Comparison,
    stage: &mut Stage,
    mut ours: impl AsyncFnMut() -> anyhow::Result<()>,
    mut bare: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Comparison> {
    let [warm_up, duration] = seconds(options);
    round(warm_up, &mut ours).await?;
    round(warm_up, &mut bare).await?;
    for pair in 1..=options.pairs {
        // What one round has left in the outbox would be published in the next one's time.
        stage.outbox_is_empty().await?;
        let ours = round(duration, &mut ours).await?;
        stage.outbox_is_empty().await?;
        let bare = round(duration, &mut bare).await?;
        complain(&format!(
            "{} {pair} of {}: p50 {} and {} us, p99 {} and {} us",
            comparison.name, options.pairs, ours.p50_us, bare.p50_us, ours.p99_us, bare.p99_us
        ));
        comparison.add(ours, bare);
    }
    stage.outbox_is_empty().await?;
    Ok(comparison)
}

async fn round(
    duration: Duration,
    once: &mut impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Round> {
    let mut latencies = Vec::new();
    let began = Instant::now();
    let mut sent = began;
    while sent.duration_since(began) < duration {
        once().await?;
        let answered = Instant::now();
        latencies.push(u32::try_from((answered - sent).as_micros()).unwrap_or(u32::MAX));
        sent = answered;
    }
    Round::new(latencies, began.elapsed()).context("nothing was answered")
}

/// Requests per second of the list beside those of a server that sends as many bytes of JSON and knows nothing.
async fn throughput(
    options: &Options,
    api: &Server,
    list: &[u8],
    bytes: usize,
) -> anyhow::Result<Throughput> {
    let constant = Server::constant(bytes).await?;
    let connections = options.connections as usize;
    let [warm_up, duration] = seconds(options);
    http::requests_per_second(api.address(), list, connections, warm_up).await?;
    http::requests_per_second(constant.address(), list, connections, warm_up).await?;
    let mut rates = Vec::new();
    for _ in 0..options.pairs {
        let ours = http::requests_per_second(api.address(), list, connections, duration).await?;
        let limit = http::requests_per_second(constant.address(), list, connections, duration).await?;
        complain(&format!("list {ours:.0}/s, constant JSON {limit:.0}/s"));
        rates.push((ours, limit));
    }
    constant.stop().await?;
    Throughput::new(bytes, options.connections, &rates)
}

fn seconds(options: &Options) -> [Duration; 2] {
    [options.warm_up, options.seconds].map(|seconds| Duration::from_secs(seconds.into()))
}
