//! `bench deliver`: clicks become signed requests, against a loop that only signs and sends.

mod bare;
mod report;
mod stage;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ::tests::deployment::Deployment;
use ::tests::engines::{Isolated, isolated};
use ::tests::load::Load;
use ::tests::receiver::{Answer, Receiver, Request};
use anyhow::{Context as _, ensure};
use chrono::{DateTime, Utc};
use devstack::Server;
use devstack::readiness::until;
pub(crate) use report::Report;
use report::{Latency, Throughput};
use stage::Stage;

use crate::cpu;
use crate::server::{pid, start, stop};
use crate::statistics::histogram;
use crate::terminal::{ENGINES, prepare, report_progress};

/// Requests in flight of the bare loop: as many as a workspace may have.
const BARE_CONCURRENCY: usize = 128;

/// Links that visitors visit, and connections of the visitors.
const LINKS: usize = 100;
const VISITORS: u32 = 16;

/// How long visitors click before anything is timed.
const WARM_UP: Duration = Duration::from_secs(2);

/// How long a round may take.
const DEADLINE: Duration = Duration::from_secs(900);

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Deliveries of each round that counts deliveries per second
    #[arg(
        long, value_name = "COUNT", default_value = "100000",
        value_parser = clap::value_parser!(u32).range(20..=100_000_000)
    )]
    deliveries: u32,
    /// Pairs of rounds: one of the dispatcher, one of the bare loop
    #[arg(long, value_name = "COUNT", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Endpoints of the round with many of them
    #[arg(
        long, value_name = "COUNT", default_value = "10000",
        value_parser = clap::value_parser!(u32).range(20..=1_000_000)
    )]
    endpoints: u32,
    /// Clicks per second of the round that measures latencies
    #[arg(long, value_name = "COUNT", default_value = "200", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Seconds of that round
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
}

/// Measures the dispatcher.
pub(crate) async fn run(options: Options) -> anyhow::Result<Report> {
    prepare(&ENGINES)?;
    let throughput = vec![
        throughput("one endpoint", &options, 1).await?,
        throughput("many endpoints", &options, options.endpoints as usize).await?,
    ];
    Ok(Report::new(throughput, latency(&options).await?))
}

/// Counts deliveries per second of a dispatcher that starts with clicks on the topic, and of the bare loop.
async fn throughput(name: &'static str, options: &Options, endpoints: usize) -> anyhow::Result<Throughput> {
    let (mut dispatched, mut bare) = (Vec::new(), Vec::new());
    for pair in 1..=options.pairs {
        let Dispatched { deliveries, per_second: ours, .. } =
            dispatch(1, endpoints, options.deliveries as usize).await?;

        let receiver = receiver().await;
        bare::send(&receiver.url("/"), deliveries, BARE_CONCURRENCY).await?;
        let limit = rate(&receiver, deliveries)?;
        report_progress(&format!(
            "{name} {pair} of {}: dispatcher {ours:.0}/s, bare loop {limit:.0}/s, ratio {:.3}",
            options.pairs,
            ours / limit
        ));
        dispatched.push(ours);
        bare.push(limit);
    }
    Throughput::new(name, endpoints, &dispatched, &bare)
}

/// The deliveries of dispatchers that started with clicks on the topic.
pub(crate) struct Dispatched {
    pub(crate) deliveries: usize,
    pub(crate) per_second: f64,
    /// CPU time of all dispatchers.
    pub(crate) cpu: Duration,
}

/// Runs dispatchers for about this number of deliveries, and checks that each arrives.
pub(crate) async fn dispatch(
    dispatchers: usize,
    endpoints: usize,
    deliveries: usize,
) -> anyhow::Result<Dispatched> {
    let receiver = receiver().await;
    let engines = isolated().await;
    let stage = Stage::create(&engines, &receiver.url("/"), endpoints).await?;
    let deliveries = stage.publish(deliveries).await?;
    let deployment = Deployment::prepare(engines.clone());
    let others: Vec<Server> = (1..dispatchers).map(|_| deployment.another_dispatcher()).collect();
    let mut running = Vec::new();
    for prepared in [&deployment.dispatcher].into_iter().chain(&others) {
        running.push(start(prepared).await?);
    }
    received(&receiver, deliveries).await?;
    stage.queue_is_empty().await?;
    // After the queue is empty, a further request would be a repeat.
    let per_second = rate(&receiver, deliveries)?;
    let mut cpu = Duration::ZERO;
    for dispatcher in &running {
        cpu += cpu::process(pid(dispatcher)?)?;
        stop(dispatcher).await?;
    }
    finish(engines, stage).await;
    Ok(Dispatched { deliveries, per_second, cpu })
}

/// Measures the time from a click at the edge to its request, at a steady rate.
async fn latency(options: &Options) -> anyhow::Result<Latency> {
    report_progress(&format!("clicking {} times a second for {} s", options.rate, options.seconds));
    let receiver = receiver().await;
    let engines = isolated().await;
    let stage = Stage::create(&engines, &receiver.url("/"), 1).await?;
    let slugs = stage.links(LINKS);
    let deployment = Deployment::prepare(engines.clone());
    let (edge, dispatcher) = (start(&deployment.ingest).await?, start(&deployment.dispatcher).await?);
    // The topic has one partition, so the edge that knows the last link knows all.
    deployment.edge_knows(slugs.last().context("no links")?).await;
    let load = Load::start(deployment.edge_address(), &slugs, VISITORS, Some(options.rate));
    tokio::time::sleep(WARM_UP).await;
    let warm = load.answered();
    tokio::time::sleep(Duration::from_secs(options.seconds.into())).await;
    let log = load.stop().await;
    log.is_complete();
    received(&receiver, log.answers.len()).await?;
    stage.queue_is_empty().await?;
    // An error when a click was not delivered.
    rate(&receiver, log.answers.len())?;
    let requests = receiver.requests();
    stop(&edge).await?;
    stop(&dispatcher).await?;
    finish(engines, stage).await;
    let mut latencies = histogram()?;
    let mut delivered = HashSet::new();
    let firsts = requests.iter().filter(|request| delivered.insert(request.delivery()));
    for request in firsts.skip(usize::try_from(warm)?) {
        latencies.record(age_ms(request)?)?;
    }
    Ok(Latency::new(&latencies))
}

async fn receiver() -> Receiver {
    Receiver::start(|_, _| Answer::Status(200)).await
}

/// Waits until the receiver has this number of requests.
async fn received(receiver: &Receiver, wanted: usize) -> anyhow::Result<()> {
    until("every request", DEADLINE, || async {
        let count = receiver.count();
        if count >= wanted { Ok(()) } else { Err(format!("{count} of {wanted} requests").into()) }
    })
    .await?;
    Ok(())
}

/// Returns requests per second, from the first to the last, and reports repeats.
///
/// # Errors
/// When a delivery did not arrive.
fn rate(receiver: &Receiver, deliveries: usize) -> anyhow::Result<f64> {
    let requests = receiver.requests();
    let mut arrived: HashMap<_, &Request> = HashMap::with_capacity(deliveries);
    for request in &requests {
        let Some(former) = arrived.insert(request.delivery(), request) else { continue };
        let after = request.at.duration_since(former.at)?;
        let answered = if former.was_answered() { "was" } else { "was not" };
        report_progress(&format!("  a repeat {after:.1?} after a request that {answered} answered"));
    }
    ensure!(arrived.len() == deliveries, "{} of {deliveries} deliveries arrived", arrived.len());
    let times = requests.iter().map(|request| request.at);
    let (first, last) = times.clone().min().zip(times.max()).context("no requests")?;
    Ok(deliveries as f64 / last.duration_since(first)?.as_secs_f64())
}

/// Returns the time from a request's event to the request, in milliseconds.
fn age_ms(request: &Request) -> anyhow::Result<u64> {
    let body: serde_json::Value = serde_json::from_slice(&request.body)?;
    let created: DateTime<Utc> = body["created_at"].as_str().context("a body has no created_at")?.parse()?;
    Ok(u64::try_from((DateTime::<Utc>::from(request.at) - created).num_milliseconds()).unwrap_or(0))
}

async fn finish(engines: Isolated, stage: Stage) {
    stage.close().await;
    engines.remove().await;
}
