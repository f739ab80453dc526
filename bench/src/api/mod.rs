//! `bench api`: operations of the management API against the bare statements that they need.

mod bare;
mod report;
pub(crate) mod stage;

use std::time::{Duration, Instant};

use bare::Bare;
pub(crate) use report::Report;
use report::{Comparison, Round};
use stage::{PAGE, Stage};

use ::tests::engines::{Isolated, isolated};

use crate::load::{Connection, Load, get, post};
use crate::server::{Constant, stop};
use crate::statistics::{histogram, micros};
use crate::terminal::{ENGINES, prepare, report_progress};

/// Links in the workspace before the first round.
const LINKS: u32 = 25_000;

/// Clicks in ClickHouse, spread evenly over the links.
const CLICKS: u32 = 1_000_000;

/// Connections of the rounds that count requests per second; latencies are of one.
const CONNECTIONS: usize = 16;

/// How long each side runs before the first round of a comparison.
const WARM_UP: Duration = Duration::from_secs(2);

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Pairs of rounds of each comparison: one of the API, one of its peer
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Seconds of a round
    #[arg(long, default_value = "4", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
}

impl Options {
    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

/// Measures the API.
pub(crate) async fn run(options: Options) -> anyhow::Result<Report> {
    prepare(&ENGINES)?;
    let engines = isolated().await;
    // After a failure topics and the database of Postgres stay, to look for the reason.
    let report = measure(&options, &engines).await?;
    engines.remove().await;
    Ok(report)
}

async fn measure(options: &Options, engines: &Isolated) -> anyhow::Result<Report> {
    report_progress(&format!("creating {LINKS} links and {CLICKS} clicks"));
    let mut stage = Stage::start(engines, LINKS).await?;
    stage.clicks(engines, CLICKS).await;
    let mut bare = Bare::new(engines, &stage).await?;
    let list = get(&format!("/api/links?limit={PAGE}"), &stage.key);
    let mut connection = Connection::open(stage.address).await?;
    let page = connection.ask(&list, 200).await?.to_vec();
    // An answer with missing or wrong counters would be faster.
    stage::check_page(&page, PAGE, &bare.totals().await?)?;

    let list_latency = compare(
        options,
        "list / SELECT beside the counter query",
        &mut stage,
        async || connection.ask(&list, 200).await.map(drop),
        async || bare.page_and_counters().await,
    )
    .await?;
    let (lists, limits) = throughput(options, &stage, list, page.len()).await?;
    let create = post("/api/links", &stage.key, stage::NEW_LINK);
    let create_latency = compare(
        options,
        "create / INSERT of the link and its outbox rows",
        &mut stage,
        async || connection.ask(&create, 201).await.map(drop),
        async || bare.create().await,
    )
    .await?;
    drop(connection);
    bare.close().await?;
    stage.stop().await?;
    Report::new([list_latency, create_latency], lists, limits)
}

/// Measures both sides in turns, one request after the other.
async fn compare(
    options: &Options,
    name: &'static str,
    stage: &mut Stage,
    mut ours: impl AsyncFnMut() -> anyhow::Result<()>,
    mut bare: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Comparison> {
    round(WARM_UP, &mut ours).await?;
    round(WARM_UP, &mut bare).await?;
    let (mut ours_rounds, mut bare_rounds) = (Vec::new(), Vec::new());
    for pair in 1..=options.pairs {
        // Otherwise the API would publish the rows of one round during the next.
        stage.outbox_is_empty().await?;
        let ours = round(options.duration(), &mut ours).await?;
        stage.outbox_is_empty().await?;
        let bare = round(options.duration(), &mut bare).await?;
        report_progress(&format!(
            "{name}, {pair} of {}: p50 {} and {} us, p99 {} and {} us",
            options.pairs, ours.p50_us, bare.p50_us, ours.p99_us, bare.p99_us
        ));
        ours_rounds.push(ours);
        bare_rounds.push(bare);
    }
    stage.outbox_is_empty().await?;
    Comparison::new(name, ours_rounds, bare_rounds)
}

async fn round(
    duration: Duration,
    once: &mut impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Round> {
    let mut latencies = histogram()?;
    let began = Instant::now();
    while began.elapsed() < duration {
        let sent = Instant::now();
        once().await?;
        latencies.record(micros(sent.elapsed()))?;
    }
    Ok(Round::new(&latencies))
}

/// Counts requests per second of the list, beside a server with a constant answer of the same size.
async fn throughput(
    options: &Options,
    stage: &Stage,
    list: Vec<u8>,
    bytes: usize,
) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let constant = Constant::start(Some(bytes)).await?;
    let load = Load::of(CONNECTIONS, list);
    load.closed(stage.address, WARM_UP).await?;
    load.closed(constant.address, WARM_UP).await?;
    let (mut lists, mut limits) = (Vec::new(), Vec::new());
    for _ in 0..options.pairs {
        let ours = load.closed(stage.address, options.duration()).await?.rate();
        let limit = load.closed(constant.address, options.duration()).await?.rate();
        report_progress(&format!("list {ours:.0}/s, constant JSON {limit:.0}/s"));
        lists.push(ours);
        limits.push(limit);
    }
    stop(&constant.server).await?;
    Ok((lists, limits))
}
