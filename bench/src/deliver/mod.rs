//! `bench deliver`: clicks become signed requests, against a loop that only signs and sends.

mod bare;
mod process;
pub(crate) mod receiver;
mod report;
mod stage;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use process::{Dispatcher, Receiver};
use report::{Isolation, Latency, Memory, Report, Throughput};
use stage::Stage;
use tests::engines::{Isolated, isolated};

use crate::{
    load::Load,
    paced,
    prepare::{ENGINES, prepare},
    redirect::servers::Edge,
    terminal::{complain, say},
};

/// What all servers log, whatever our own environment says: log lines cost time.
pub(crate) const LOG_FILTER: &str = "warn,librdkafka=warn,rdkafka=warn";

/// Endpoints of one workspace.
const PER_WORKSPACE: usize = 20;

/// Requests in flight of the bare loop: as many as an endpoint's workspace may have.
const BARE_CONCURRENCY: usize = 128;

/// Links that visitors click on.
const LINKS: usize = 100;

/// Connections of these visitors.
const VISITORS: usize = 16;

/// How long visitors click before anything is timed.
const WARM_UP: Duration = Duration::from_secs(2);

/// What is measured.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Deliveries of each round that counts deliveries per second
    #[arg(long, value_name = "COUNT", default_value = "100000", value_parser = clap::value_parser!(u32).range(20..=100_000_000))]
    deliveries: u32,
    /// Pairs of rounds: one of the dispatcher, one of the bare loop
    #[arg(long, value_name = "COUNT", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Endpoints of the round with many of them
    #[arg(long, value_name = "COUNT", default_value = "10000", value_parser = clap::value_parser!(u32).range(20..=1_000_000))]
    endpoints: u32,
    /// Endpoints that never answer, beside as many that do
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = clap::value_parser!(u32).range(20..=100_000))]
    holes: u32,
    /// Deliveries that wait in Postgres while the memory is measured
    #[arg(long, value_name = "COUNT", default_value = "1000000", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    backlog: u32,
    /// Events per second of the rounds that measure latencies
    #[arg(long, value_name = "COUNT", default_value = "200", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Seconds of these rounds
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Leave something out, as a list with commas
    #[arg(long, value_name = "PARTS", value_enum, value_delimiter = ',')]
    skip: Vec<Part>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// What a run measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Deliveries per second to one endpoint
    One,
    /// Deliveries per second to many endpoints
    Many,
    /// From a click at the edge to its request
    Latency,
    /// Endpoints that answer beside as many that never do
    Isolation,
    /// Memory while much is waiting
    Memory,
}

/// Measures and prints the result.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    prepare(&ENGINES)?;
    let receiver = Receiver::start().await?;
    let measures = |part| !options.skip.contains(&part);
    let mut rates = Vec::new();
    if measures(Part::One) {
        rates.push(throughput("one endpoint", &options, &receiver, 1).await?);
    }
    if measures(Part::Many) {
        rates.push(throughput("many endpoints", &options, &receiver, options.endpoints as usize).await?);
    }
    let latency = if measures(Part::Latency) { Some(latency(&options, &receiver).await?) } else { None };
    let isolation =
        if measures(Part::Isolation) { Some(isolation(&options, &receiver).await?) } else { None };
    let memory = if measures(Part::Memory) { Some(memory(&options, &receiver).await?) } else { None };
    receiver.stop().await?;
    let report = Report::new(rates, latency, isolation, memory);
    say(&if options.json { serde_json::to_string(&report)? } else { report.text() });
    Ok(())
}

/// Lets the dispatcher work off clicks that are on their topic when it starts, and the bare loop as many requests.
async fn throughput(
    name: &'static str,
    options: &Options,
    receiver: &Receiver,
    endpoints: usize,
) -> anyhow::Result<Throughput> {
    let deliveries = options.deliveries as usize;
    let mut rounds = Vec::new();
    for pair in 1..=options.pairs {
        let engines = isolated().await;
        let stage = Stage::set(&engines, &receiver.url("/"), endpoints).await?;
        let made = stage.publish(deliveries).await?;
        receiver.reset().await?;
        let dispatcher = Dispatcher::start(&engines).await?;
        receiver.received(made).await?;
        let ours = receiver.rate().await?;
        stage.is_done().await?;
        let received = receiver.statistics().await?.received;
        ensure!(received == made as u64, "{received} requests for {made} deliveries");
        dispatcher.stop().await?;
        finish(engines, stage).await?;

        receiver.reset().await?;
        bare::send(&receiver.url("/"), made, BARE_CONCURRENCY).await?;
        let bare = receiver.rate().await?;
        complain(&format!(
            "{name} {pair} of {}: dispatcher {ours:.0}/s, bare loop {bare:.0}/s, ratio {:.3}",
            options.pairs,
            ours / bare
        ));
        rounds.push((ours, bare));
    }
    Throughput::new(name, endpoints, &rounds)
}

/// From a click at the edge to its request, at a steady rate.
async fn latency(options: &Options, receiver: &Receiver) -> anyhow::Result<Latency> {
    complain(&format!("clicking {} times a second for {} s", options.rate, options.seconds));
    let engines = isolated().await;
    let stage = Stage::set(&engines, &receiver.url("/"), 1).await?;
    let slugs = stage.links(LINKS);
    let edge = Edge::start(&engines).await?;
    // One partition, in order: who knows the last link knows all.
    edge.knows(slugs.last().context("no links")?).await?;
    let dispatcher = Dispatcher::start(&engines).await?;
    let visitors = Load::new(VISITORS, &slugs);
    let click = async |duration| {
        receiver.reset().await?;
        let clicks = paced::run(&visitors, edge.server.address(), options.rate.into(), duration).await?;
        receiver.received(clicks.count()).await
    };
    // The first request opens a connection.
    click(WARM_UP).await?;
    click(Duration::from_secs(options.seconds.into())).await?;
    let latency = Latency::new(receiver.latencies_ms().await?)?;
    stage.is_done().await?;
    let received = receiver.statistics().await?.received;
    ensure!(received == latency.requests() as u64, "{received} requests for {} clicks", latency.requests());
    edge.stop().await?;
    dispatcher.stop().await?;
    finish(engines, stage).await?;
    Ok(latency)
}

/// At a steady rate to many endpoints, first alone and then beside as many that never answer.
async fn isolation(options: &Options, receiver: &Receiver) -> anyhow::Result<Isolation> {
    let engines = isolated().await;
    let healthy = options.holes as usize;
    // Half of each workspace, so that holes and healthy endpoints share their workspaces' permits too.
    let stage = Stage::set(&engines, &receiver.url("/"), healthy).await?;
    let dispatcher = Dispatcher::start(&engines).await?;
    let alone = steady(options, receiver, &stage, PER_WORKSPACE.min(healthy)).await?;
    stage.add_endpoints(&receiver.url("/hole"), healthy).await?;
    let beside = steady(options, receiver, &stage, PER_WORKSPACE.min(healthy)).await?;
    dispatcher.stop().await?;
    finish(engines, stage).await?;
    Ok(Isolation { endpoints: healthy, alone, beside })
}

/// Publishes clicks at a steady rate and returns how long their requests took. Each click makes `each` requests.
async fn steady(
    options: &Options,
    receiver: &Receiver,
    stage: &Stage,
    each: usize,
) -> anyhow::Result<Latency> {
    // Each endpoint is heard of before: the first request opens a connection, and shows who never answers.
    receiver.reset().await?;
    let warm = stage.publish(stage.workspaces() * each).await?;
    receiver.received(warm).await?;
    receiver.reset().await?;
    let clicks = (options.rate * options.seconds) as usize / each;
    let pause = Duration::from_secs_f64(each as f64 / f64::from(options.rate));
    stage.publish_steadily(clicks, pause).await?;
    receiver.received(clicks * each).await?;
    Latency::new(receiver.latencies_ms().await?)
}

/// The dispatcher's memory while it works off a large backlog.
async fn memory(options: &Options, receiver: &Receiver) -> anyhow::Result<Memory> {
    let engines = isolated().await;
    let stage = Stage::set(&engines, &receiver.url("/"), options.endpoints as usize).await?;
    complain(&format!("putting {} deliveries into Postgres", options.backlog));
    stage.wait_in_postgres(options.backlog).await?;
    receiver.reset().await?;
    let dispatcher = Dispatcher::start(&engines).await?;
    let some = (options.backlog as usize).min(options.deliveries as usize);
    receiver.received(some).await?;
    let rate = receiver.rate().await?;
    let peak = dispatcher.peak_memory().context("cannot read the dispatcher's memory")?;
    dispatcher.stop().await?;
    finish(engines, stage).await?;
    Ok(Memory { backlog: options.backlog, peak_mib: peak >> 20, deliveries_per_second: rate })
}

async fn finish(engines: Isolated, stage: Stage) -> anyhow::Result<()> {
    stage.close().await;
    engines.remove().await;
    Ok(())
}
