//! The result of `bench deliver`.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::bar::Bar;
use crate::statistics::Spread;

/// Deliveries per second: twenty times the most of Svix 1.100 on a machine of the same kind, with messages
/// created through its API and Postgres and Redis beside it.
const PER_SECOND: f64 = 20.0 * 338.0;

/// Deliveries per second in parts of the bare loop's.
const OF_BARE: f64 = 0.5;

/// From a click to its request, in milliseconds.
const CLICK_TO_REQUEST_MS: f64 = 250.0;

/// Everything that a run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    throughput: Vec<Throughput>,
    latency: Latency,
    bars: Vec<Bar>,
}

/// Deliveries per second of the dispatcher, and in parts of the bare loop's.
#[derive(Debug, Serialize)]
pub(super) struct Throughput {
    name: &'static str,
    endpoints: usize,
    dispatcher: Spread,
    bare: Spread,
    ratio: Spread,
}

impl Throughput {
    /// Summarizes rounds.
    ///
    /// # Errors
    /// When there are none.
    pub(super) fn new(
        name: &'static str,
        endpoints: usize,
        ours: &[f64],
        bare: &[f64],
    ) -> anyhow::Result<Self> {
        Ok(Self {
            name,
            endpoints,
            dispatcher: Spread::of(ours.iter().copied())?,
            bare: Spread::of(bare.iter().copied())?,
            ratio: Spread::of_ratios(ours, bare, |rate| *rate)?,
        })
    }
}

/// From an event to its request, in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Latency {
    requests: u64,
    p50_ms: u64,
    p99_ms: u64,
    max_ms: u64,
}

impl Latency {
    /// Summarizes latencies in milliseconds.
    pub(super) fn new(latencies: &Histogram<u64>) -> Self {
        let [p50_ms, p99_ms] = [0.5, 0.99].map(|quantile| latencies.value_at_quantile(quantile));
        Self { requests: latencies.len(), p50_ms, p99_ms, max_ms: latencies.max() }
    }
}

impl Report {
    /// Compares the measured values with their targets.
    pub(super) fn new(throughput: Vec<Throughput>, latency: Latency) -> Self {
        let mut bars = Vec::new();
        for one in &throughput {
            bars.push(Bar::at_least(
                format!("{}, deliveries/s", one.name),
                one.dispatcher.median,
                PER_SECOND,
            ));
            bars.push(Bar::at_least(format!("{} / bare loop", one.name), one.ratio.median, OF_BARE));
        }
        bars.push(Bar::at_most("click to request p99, ms", latency.p99_ms as f64, CLICK_TO_REQUEST_MS));
        Self { throughput, latency, bars }
    }

    /// Returns the result for people.
    pub(crate) fn text(&self) -> String {
        let mut lines = Vec::new();
        for Throughput { name, endpoints, dispatcher, bare, ratio } in &self.throughput {
            lines.push(format!("{name}, {endpoints}"));
            lines.push(format!("  deliveries/s {}", dispatcher.text(0)));
            lines.push(format!("  bare loop/s  {}", bare.text(0)));
            lines.push(format!("  ratio        {}", ratio.text(3)));
        }
        let Latency { p50_ms, p99_ms, max_ms, .. } = self.latency;
        lines.push(format!("click to request: p50 {p50_ms} ms, p99 {p99_ms} ms, longest {max_ms} ms"));
        lines.extend(self.bars.iter().map(Bar::text));
        lines.join("\n")
    }
}
