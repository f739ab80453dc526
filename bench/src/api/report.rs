//! The result of `bench api`.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::{CLICKS, CONNECTIONS, LINKS};
use crate::statistics::Spread;

/// One side of a comparison for a while: latencies of one request after the other.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Round {
    requests: u64,
    seconds: f64,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
}

impl Round {
    /// Summarizes latencies in microseconds.
    pub(super) fn new(latencies: &Histogram<u64>, elapsed: Duration) -> Self {
        let [p50_us, p99_us] = [0.5, 0.99].map(|quantile| latencies.value_at_quantile(quantile).max(1));
        Self { requests: latencies.len(), seconds: elapsed.as_secs_f64(), p50_us, p99_us }
    }
}

/// The percentile that a target is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Percentile {
    P50,
    P99,
}

/// An operation of the API and its bare statements, over pairs of rounds.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) name: &'static str,
    against: &'static str,
    judged: Percentile,
    /// The largest allowed ratio.
    target: f64,
    pub(super) ours: Vec<Round>,
    pub(super) bare: Vec<Round>,
}

impl Comparison {
    /// Creates a comparison without rounds.
    pub(super) fn new(name: &'static str, against: &'static str, judged: Percentile, target: f64) -> Self {
        Self { name, against, judged, target, ours: Vec::new(), bare: Vec::new() }
    }

    fn ratios(self) -> anyhow::Result<Ratios> {
        let p50 = Spread::of_ratios(&self.ours, &self.bare, |round| round.p50_us as f64)?;
        let p99 = Spread::of_ratios(&self.ours, &self.bare, |round| round.p99_us as f64)?;
        Ok(Ratios { p50, p99, comparison: self })
    }
}

/// A comparison with its ratios of latencies, pair by pair.
#[derive(Debug, Serialize)]
struct Ratios {
    p50: Spread,
    p99: Spread,
    #[serde(flatten)]
    comparison: Comparison,
}

impl Ratios {
    fn verdict(&self) -> &'static str {
        let judged = match self.comparison.judged {
            Percentile::P50 => self.p50,
            Percentile::P99 => self.p99,
        };
        if judged.median <= self.comparison.target { "reached" } else { "MISSED" }
    }

    fn lines(&self) -> anyhow::Result<Vec<String>> {
        let Comparison { name, against, judged, target, ours, bare } = &self.comparison;
        let mut lines = vec![
            format!("{name} / {against}: target {judged:?} at most {target}: {}", self.verdict()),
            format!("  ratio p50    {}", self.p50.text(2)),
            format!("  ratio p99    {}", self.p99.text(2)),
        ];
        for (side, rounds) in [("api", ours), ("bare", bare)] {
            let spread = |of: fn(&Round) -> u64| Spread::of(rounds.iter().map(|round| of(round) as f64));
            lines.push(format!("  {side:<4} p50, us {}", spread(|round| round.p50_us)?.text(0)));
            lines.push(format!("  {side:<4} p99, us {}", spread(|round| round.p99_us)?.text(0)));
        }
        Ok(lines)
    }
}

/// Requests per second of the list, and of a server with a constant answer of the same size.
#[derive(Debug, Serialize)]
pub(super) struct Throughput {
    answer_bytes: usize,
    connections: usize,
    ratio: Spread,
    list_per_second: Spread,
    constant_per_second: Spread,
}

impl Throughput {
    /// Summarizes pairs of rates.
    ///
    /// # Errors
    /// When there are none.
    pub(super) fn new(answer_bytes: usize, list: &[f64], constant: &[f64]) -> anyhow::Result<Self> {
        Ok(Self {
            answer_bytes,
            connections: CONNECTIONS,
            ratio: Spread::of_ratios(list, constant, |rate| *rate)?,
            list_per_second: Spread::of(list.iter().copied())?,
            constant_per_second: Spread::of(constant.iter().copied())?,
        })
    }
}

/// Everything that a run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    benchmark: &'static str,
    profile: &'static str,
    cores: usize,
    links: u32,
    clicks: u32,
    comparisons: Vec<Ratios>,
    throughput: Throughput,
}

impl Report {
    /// Computes the ratios.
    ///
    /// # Errors
    /// When a comparison has no rounds.
    pub(super) fn new(comparisons: Vec<Comparison>, throughput: Throughput) -> anyhow::Result<Self> {
        Ok(Self {
            benchmark: "api",
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
            cores: std::thread::available_parallelism()?.get(),
            links: LINKS,
            clicks: CLICKS,
            comparisons: comparisons.into_iter().map(Comparison::ratios).collect::<Result<_, _>>()?,
            throughput,
        })
    }

    /// Returns the result for people.
    pub(crate) fn text(&self) -> String {
        let Self { profile, cores, links, clicks, throughput, .. } = self;
        let Throughput { answer_bytes, connections, ratio, list_per_second, constant_per_second } =
            throughput;
        let mut lines = vec![format!(
            "api / bare statements, {profile} build, {cores} cores, {links} links, {clicks} clicks; latencies on one connection"
        )];
        lines.extend(self.comparisons.iter().flat_map(|ratios| ratios.lines().unwrap_or_default()));
        lines.push(format!("list / constant JSON of {answer_bytes} bytes, {connections} connections"));
        lines.push(format!("  ratio        {}", ratio.text(4)));
        lines.push(format!("  list/s       {}", list_per_second.text(0)));
        lines.push(format!("  constant/s   {}", constant_per_second.text(0)));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(p50_us: u64, p99_us: u64) -> Round {
        Round { requests: 1, seconds: 1.0, p50_us, p99_us }
    }

    fn ratios(judged: Percentile) -> Ratios {
        let mut comparison = Comparison::new("list", "SELECT", judged, 2.0);
        comparison.ours = vec![round(150, 600), round(450, 800)];
        comparison.bare = vec![round(100, 200), round(300, 200)];
        comparison.ratios().unwrap()
    }

    #[test]
    fn a_target_is_about_one_percentile() {
        assert_eq!(ratios(Percentile::P50).p50, Spread { min: 1.5, median: 1.5, max: 1.5 });
        assert_eq!(ratios(Percentile::P99).p99, Spread { min: 3.0, median: 3.5, max: 4.0 });
        assert_eq!(ratios(Percentile::P50).verdict(), "reached");
        assert_eq!(ratios(Percentile::P99).verdict(), "MISSED");
    }

    #[test]
    fn a_comparison_without_rounds_is_an_error() {
        assert!(Comparison::new("list", "SELECT", Percentile::P50, 2.0).ratios().is_err());
        assert!(Throughput::new(1, &[], &[]).is_err());
    }
}
