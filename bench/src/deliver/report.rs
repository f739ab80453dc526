//! The result, for people and as JSON.

use anyhow::Context as _;
use serde::Serialize;

use crate::{
    bar::Bar,
    statistics::{Spread, percentile},
};

/// Deliveries per second: twenty times the most that Svix 1.100 made, on a machine of the same kind, with messages
/// created through its API and Postgres and Redis beside it.
const PER_SECOND: f64 = 20.0 * 338.0;

/// Deliveries per second in parts of the bare loop's.
const OF_BARE: f64 = 0.5;

/// From a click to its request, in milliseconds.
const CLICK_TO_REQUEST_MS: f64 = 250.0;

/// How many times longer requests may take beside endpoints that never answer.
const BESIDE: f64 = 2.0;

/// Memory with a long backlog, in MiB.
const MEMORY_MIB: f64 = 512.0;

/// All that was measured; what was left out is missing.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    throughput: Vec<Throughput>,
    latency: Option<Latency>,
    isolation: Option<Isolation>,
    memory: Option<Memory>,
    bars: Vec<Bar>,
}

/// Deliveries per second, and how many times those of the bare loop they are.
#[derive(Debug, Serialize)]
pub(super) struct Throughput {
    name: &'static str,
    endpoints: usize,
    dispatcher: Spread,
    bare: Spread,
    ratio: Spread,
}

impl Throughput {
    /// Sums up rounds of dispatcher and bare loop.
    pub(super) fn new(name: &'static str, endpoints: usize, rounds: &[(f64, f64)]) -> anyhow::Result<Self> {
        let spread = |value: fn(&(f64, f64)) -> f64| Spread::of(rounds.iter().map(value)).context("no round");
        Ok(Self {
            name,
            endpoints,
            dispatcher: spread(|(ours, _)| *ours)?,
            bare: spread(|(_, bare)| *bare)?,
            ratio: spread(|(ours, bare)| ours / bare)?,
        })
    }
}

/// From an event to its request, in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Latency {
    requests: usize,
    p50_ms: u32,
    p99_ms: u32,
    max_ms: u32,
}

impl Latency {
    /// Sums up latencies.
    pub(super) fn new(mut latencies_ms: Vec<u32>) -> anyhow::Result<Self> {
        latencies_ms.sort_unstable();
        Ok(Self {
            requests: latencies_ms.len(),
            p50_ms: percentile(&latencies_ms, 50),
            p99_ms: percentile(&latencies_ms, 99),
            max_ms: *latencies_ms.last().context("no request was received")?,
        })
    }

    /// How many requests these are.
    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    fn text(&self) -> String {
        format!("p50 {} ms, p99 {} ms, longest {} ms", self.p50_ms, self.p99_ms, self.max_ms)
    }
}

/// Latencies of endpoints that answer, alone and beside as many that never do.
#[derive(Debug, Serialize)]
pub(super) struct Isolation {
    pub(super) endpoints: usize,
    pub(super) alone: Latency,
    pub(super) beside: Latency,
}

impl Isolation {
    /// How many times as long requests take beside endpoints that never answer, at the 99th percentile.
    fn times(&self) -> f64 {
        f64::from(self.beside.p99_ms) / f64::from(self.alone.p99_ms.max(1))
    }
}

/// The dispatcher's memory while it works off a backlog.
#[derive(Debug, Serialize)]
pub(super) struct Memory {
    pub(super) backlog: u32,
    pub(super) peak_mib: u64,
    pub(super) deliveries_per_second: f64,
}

impl Report {
    /// Compares what was measured with what was promised.
    pub(super) fn new(
        throughput: Vec<Throughput>,
        latency: Option<Latency>,
        isolation: Option<Isolation>,
        memory: Option<Memory>,
    ) -> Self {
        let mut bars = Vec::new();
        for one in &throughput {
            let rate = format!("{}, deliveries/s", one.name);
            bars.push(Bar::at_least(rate, one.dispatcher.median, PER_SECOND, PER_SECOND));
            let ratio = format!("{} / bare loop", one.name);
            bars.push(Bar::at_least(ratio, one.ratio.median, OF_BARE, OF_BARE));
        }
        let mut at_most = |name: &str, value: f64, bar: f64| bars.push(Bar::at_most(name, value, bar, bar));
        if let Some(latency) = &latency {
            at_most("click to request p99, ms", f64::from(latency.p99_ms), CLICK_TO_REQUEST_MS);
        }
        if let Some(isolation) = &isolation {
            at_most("p99 beside black holes / alone", isolation.times(), BESIDE);
        }
        if let Some(memory) = &memory {
            at_most("memory with a backlog, MiB", memory.peak_mib as f64, MEMORY_MIB);
        }
        Self { throughput, latency, isolation, memory, bars }
    }

    /// The result for people.
    pub(super) fn text(&self) -> String {
        let mut lines: Vec<String> = self
            .throughput
            .iter()
            .map(|one| {
                format!(
                    "{:<16} {:>6} endpoints: {:>7.0} deliveries/s, bare loop {:>7.0}/s, ratio {:.3} ({:.3} to {:.3})",
                    one.name,
                    one.endpoints,
                    one.dispatcher.median,
                    one.bare.median,
                    one.ratio.median,
                    one.ratio.min,
                    one.ratio.max
                )
            })
            .collect();
        if let Some(latency) = &self.latency {
            lines.push(format!("click to request         {}", latency.text()));
        }
        if let Some(isolation) = &self.isolation {
            lines.push(format!("{} endpoints alone     {}", isolation.endpoints, isolation.alone.text()));
            lines.push(format!(
                "beside {} black holes {}, p99 {:.2} times",
                isolation.endpoints,
                isolation.beside.text(),
                isolation.times()
            ));
        }
        if let Some(memory) = &self.memory {
            lines.push(format!(
                "backlog of {}: peak {} MiB, {:.0} deliveries/s",
                memory.backlog, memory.peak_mib, memory.deliveries_per_second
            ));
        }
        lines.extend(self.bars.iter().map(Bar::text));
        lines.join("\n")
    }
}
