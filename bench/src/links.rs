//! `bench links`: what a link costs the edge in memory, how long an edge takes to start, how soon a change is seen.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use ::tests::engines::{Isolated, isolated};
use anyhow::{Context as _, ensure};
use devstack::process;
use ingest::links::Links;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use schemas::{
    id::{LinkId, WorkspaceId},
    message::{ForwardQuery, Link, LinkRecord, Message as _},
    topic::LINKS,
};
use serde::Serialize;
use uuid::Uuid;

use crate::{
    prepare::{ENGINES, prepare},
    redirect::servers::Edge,
    statistics::percentile,
    terminal::{complain, say},
};

/// The most that a link may cost above its own strings, at a million links.
const TARGET_BYTES: f64 = 200.0;

/// The longest that an edge with a million links may take from its start to ready.
const TARGET_START: Duration = Duration::from_secs(10);

/// The longest that 99 of 100 changes may take from their topic to a redirect.
const TARGET_CHANGE: Duration = Duration::from_secs(1);

/// How long Kafka may take to confirm links.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a change may take before there is no result.
const CHANGE_DEADLINE: Duration = Duration::from_secs(30);

/// Time between two looks whether a change is seen.
const LOOK: Duration = Duration::from_millis(1);

/// What is measured.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Links in memory
    #[arg(long, value_name = "COUNT", default_value = "1000000", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    links: u64,
    /// Links on the topic that an edge starts from; 0 measures memory only and needs no engines
    #[arg(long, value_name = "COUNT", default_value = "1000000", value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    start_links: u64,
    /// Changes that are timed from their topic to a redirect
    #[arg(long, value_name = "COUNT", default_value = "300", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    changes: u32,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    memory: Memory,
    #[serde(skip_serializing_if = "Option::is_none")]
    edge: Option<Started>,
}

/// What links cost in this process, by its resident memory.
#[derive(Debug, Serialize)]
struct Memory {
    links: u64,
    seconds: f64,
    bytes_per_link: f64,
    /// Slug and destination.
    string_bytes_per_link: f64,
    bytes_per_link_above_strings: f64,
}

/// What an edge did that began with links on its topic.
#[derive(Debug, Serialize)]
struct Started {
    links: u64,
    start_to_ready_seconds: f64,
    resident_bytes: u64,
    changes: usize,
    change_p50_us: u32,
    change_p99_us: u32,
    change_max_us: u32,
}

/// Measures and prints the result.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    prepare(if options.start_links == 0 { &[] } else { &ENGINES })?;
    let memory = memory(options.links)?;
    let edge = if options.start_links == 0 {
        None
    } else {
        let engines = isolated().await;
        let started = started(&options, &engines).await?;
        engines.remove().await;
        Some(started)
    };
    let report = Report { memory, edge };
    say(&if options.json { serde_json::to_string(&report)? } else { report.text() });
    Ok(())
}

/// Makes the link of a number, as `api` would write it.
fn link(number: u64, workspace_id: WorkspaceId) -> Link {
    Link {
        version: Default::default(),
        id: LinkId::from_uuid(Uuid::now_v7()),
        revision: 1,
        workspace_id,
        slug: format!("s{number:06}"),
        destination: format!("https://shop.example.com/landing/{number}"),
        is_active: true,
        redirect_status: 302,
        forward_query: ForwardQuery::Append,
        append_click_id: true,
        expires_at: None,
    }
}

fn memory(count: u64) -> anyhow::Result<Memory> {
    complain(&format!("putting {count} links into memory"));
    let workspace_id = WorkspaceId::from_uuid(Uuid::now_v7());
    let links = Links::default();
    let (before, started) = (process::Memory::of(std::process::id())?.resident, Instant::now());
    let mut strings = 0;
    for number in 0..count {
        let link = link(number, workspace_id);
        strings += (link.slug.len() + link.destination.len()) as u64;
        let (key, value) = (link.id.to_string(), LinkRecord::Live(link).encode());
        links.apply(key.as_bytes(), Some(&value))?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let bytes = process::Memory::of(std::process::id())?.resident.saturating_sub(before);
    ensure!(links.len() as u64 == count, "{} links are known and not {count}", links.len());
    let each = |bytes: u64| bytes as f64 / count as f64;
    Ok(Memory {
        links: count,
        seconds,
        bytes_per_link: each(bytes),
        string_bytes_per_link: each(strings),
        bytes_per_link_above_strings: each(bytes) - each(strings),
    })
}

async fn started(options: &Options, engines: &Isolated) -> anyhow::Result<Started> {
    let (producer, topic) = (engines.kafka().create::<BaseProducer>()?, engines.topic(LINKS));
    let workspace_id = WorkspaceId::from_uuid(Uuid::now_v7());
    complain(&format!("publishing {} links", options.start_links));
    for number in 0..options.start_links {
        publish(&producer, &topic, link(number, workspace_id))?;
    }
    producer.flush(PATIENCE).context("Kafka does not confirm the links")?;

    complain("starting the edge");
    let begin = Instant::now();
    let edge = Edge::start(engines).await?;
    let start_to_ready = begin.elapsed();
    // Ready means that the last one is known.
    edge.knows(&link(options.start_links - 1, workspace_id).slug).await?;
    let resident_bytes = process::Memory::of(edge.server.pid()?)?.resident;

    complain(&format!("timing {} changes", options.changes));
    let mut changes = Vec::new();
    for number in 0..u64::from(options.changes) {
        let link = link(options.start_links + number, workspace_id);
        changes.push(change(&edge, &producer, &topic, link).await?);
    }
    edge.stop().await?;
    changes.sort_unstable();
    Ok(Started {
        links: options.start_links,
        start_to_ready_seconds: start_to_ready.as_secs_f64(),
        resident_bytes,
        changes: changes.len(),
        change_p50_us: percentile(&changes, 50),
        change_p99_us: percentile(&changes, 99),
        change_max_us: percentile(&changes, 100),
    })
}

/// Publishes a new link, and returns after how many microseconds it redirects.
async fn change(edge: &Edge, producer: &BaseProducer, topic: &str, link: Link) -> anyhow::Result<u32> {
    let client = ::tests::engines::http_client();
    let url = format!("http://{}/{}", edge.server.address(), link.slug);
    let begin = Instant::now();
    publish(producer, topic, link)?;
    producer.poll(Duration::ZERO);
    loop {
        // HEAD is answered like GET and not counted.
        if client.head(&url).send().await?.status().as_u16() == 302 {
            return Ok(u32::try_from(begin.elapsed().as_micros()).unwrap_or(u32::MAX));
        }
        ensure!(begin.elapsed() < CHANGE_DEADLINE, "a new link does not redirect after {CHANGE_DEADLINE:?}");
        tokio::time::sleep(LOOK).await;
    }
}

fn publish(producer: &BaseProducer, topic: &str, link: Link) -> anyhow::Result<()> {
    let (key, value) = (link.id.to_string(), LinkRecord::Live(link).encode());
    let mut record = BaseRecord::to(topic).key(&key).payload(&value);
    loop {
        let (error, back) = match producer.send(record) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        };
        ensure!(
            error.rdkafka_error_code() == Some(rdkafka::types::RDKafkaErrorCode::QueueFull),
            "cannot publish a link: {error}"
        );
        record = back;
        producer.poll(Duration::from_millis(10));
    }
}

impl Report {
    fn text(&self) -> String {
        let Memory { links, seconds, bytes_per_link, string_bytes_per_link, bytes_per_link_above_strings } =
            &self.memory;
        let mut text = format!(
            "{links} links in memory: {bytes_per_link_above_strings:.0} bytes per link above its own strings \
             (target at a million: at most {TARGET_BYTES:.0}); {bytes_per_link:.0} with its {string_bytes_per_link:.0} \
             bytes of strings; applied in {seconds:.1} s"
        );
        if let Some(edge) = &self.edge {
            let millis = |micros: u32| f64::from(micros) / 1e3;
            // Writing to a text does not fail.
            let _ = write!(
                text,
                "\nstart of an edge with {} links on its topic to ready: {:.1} s (target at a million: at most {:.0} s), \
                 then {} MiB resident\na new link from its topic to a redirect, {} times: p50 {:.1} ms, p99 {:.1} ms, \
                 max {:.1} ms (target: p99 at most {:.0} ms)",
                edge.links,
                edge.start_to_ready_seconds,
                TARGET_START.as_secs_f64(),
                edge.resident_bytes / (1024 * 1024),
                edge.changes,
                millis(edge.change_p50_us),
                millis(edge.change_p99_us),
                millis(edge.change_max_us),
                TARGET_CHANGE.as_secs_f64() * 1e3,
            );
        }
        text
    }
}
