//! The result, for people and as JSON.

use anyhow::Context as _;
use serde::Serialize;

use crate::statistics::{Spread, percentile};

/// All that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) throughput: Vec<Throughput>,
    pub(super) latency: Latency,
    pub(super) isolation: Isolation,
    pub(super) memory: Memory,
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

/// The dispatcher's memory while it works off a backlog.
#[derive(Debug, Serialize)]
pub(super) struct Memory {
    pub(super) backlog: u32,
    pub(super) peak_mib: u64,
    pub(super) deliveries_per_second: f64,
}

impl Report {
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
        lines.push(format!("click to request         {}", self.latency.text()));
        let isolation = &self.isolation;
        lines.push(format!("{} endpoints alone     {}", isolation.endpoints, isolation.alone.text()));
        lines.push(format!(
            "beside {} black holes {}, p99 {:.2} times",
            isolation.endpoints,
            isolation.beside.text(),
            f64::from(isolation.beside.p99_ms) / f64::from(isolation.alone.p99_ms.max(1))
        ));
        lines.push(format!(
            "backlog of {}: peak {} MiB, {:.0} deliveries/s",
            self.memory.backlog, self.memory.peak_mib, self.memory.deliveries_per_second
        ));
        lines.join("\n")
    }
}
