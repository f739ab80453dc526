//! The result: the ratios first, then what they are made of.

use std::{fmt::Write as _, time::Duration};

use anyhow::Context as _;
use serde::Serialize;

use super::{LINKS, Options};
use crate::statistics::{Spread, percentile};

/// One side of a comparison for a while: latencies of one request after the other.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Round {
    requests: usize,
    seconds: f64,
    pub(super) p50_us: u32,
    pub(super) p99_us: u32,
}

impl Round {
    /// Sums up latencies in microseconds; `None` when there are none.
    pub(super) fn new(mut latencies: Vec<u32>, elapsed: Duration) -> Option<Self> {
        latencies.sort_unstable();
        let (p50_us, p99_us) = (percentile(&latencies, 50), percentile(&latencies, 99));
        let (requests, seconds) = (latencies.len(), elapsed.as_secs_f64());
        (requests > 0).then_some(Self { requests, seconds, p50_us, p99_us })
    }
}

/// The percentile that a target is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Judged {
    P50,
    P99,
}

/// An operation and the bare statements that it is compared with, over pairs of rounds.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) name: &'static str,
    against: &'static str,
    judged: Judged,
    /// The largest ratio that is meant to be reached.
    target: f64,
    ours: Vec<Round>,
    bare: Vec<Round>,
}

impl Comparison {
    pub(super) fn new(name: &'static str, against: &'static str, judged: Judged, target: f64) -> Self {
        Self { name, against, judged, target, ours: Vec::new(), bare: Vec::new() }
    }

    /// Adds a pair of rounds.
    pub(super) fn add(&mut self, ours: Round, bare: Round) {
        self.ours.push(ours);
        self.bare.push(bare);
    }

    fn ratios(self) -> anyhow::Result<Ratios> {
        let ratio = |of: fn(&Round) -> u32| {
            Spread::of(
                std::iter::zip(&self.ours, &self.bare)
                    .map(|(ours, bare)| f64::from(of(ours)) / f64::from(of(bare).max(1))),
            )
            .context("no pair of rounds")
        };
        Ok(Ratios { p50: ratio(|round| round.p50_us)?, p99: ratio(|round| round.p99_us)?, comparison: self })
    }
}

/// A comparison with its ratios of latencies: ours in parts of the bare one's, pair by pair.
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
            Judged::P50 => self.p50,
            Judged::P99 => self.p99,
        };
        if judged.median <= self.comparison.target { "reached" } else { "MISSED" }
    }
}

/// Requests per second of the list, and of a server that sends as much and knows nothing.
#[derive(Debug, Serialize)]
pub(super) struct Throughput {
    answer_bytes: usize,
    connections: u32,
    ratio: Spread,
    list_per_second: Spread,
    constant_per_second: Spread,
}

impl Throughput {
    /// Sums up pairs of rates: the list's and the constant's.
    ///
    /// # Errors
    /// When there are none.
    pub(super) fn new(answer_bytes: usize, connections: u32, rates: &[(f64, f64)]) -> anyhow::Result<Self> {
        let spread =
            |of: fn(&(f64, f64)) -> f64| Spread::of(rates.iter().map(of)).context("no pair of rounds");
        Ok(Self {
            answer_bytes,
            connections,
            ratio: spread(|(list, constant)| list / constant)?,
            list_per_second: spread(|(list, _)| *list)?,
            constant_per_second: spread(|(_, constant)| *constant)?,
        })
    }
}

/// All that a run found out.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    benchmark: &'static str,
    profile: &'static str,
    cores: usize,
    links: u32,
    clicks: u32,
    comparisons: Vec<Ratios>,
    throughput: Throughput,
}

impl Report {
    /// Puts the parts of a run together.
    ///
    /// # Errors
    /// When a comparison has no rounds.
    pub(super) fn new(
        options: &Options,
        comparisons: Vec<Comparison>,
        throughput: Throughput,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            benchmark: "api",
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
            cores: std::thread::available_parallelism()?.get(),
            links: LINKS,
            clicks: options.clicks,
            comparisons: comparisons.into_iter().map(Comparison::ratios).collect::<Result<_, _>>()?,
            throughput,
        })
    }

    /// The result for people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text.trim_end().to_owned()
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "api / bare statements, {} build, {} cores, {} links, {} clicks; latencies on one connection",
            self.profile, self.cores, self.links, self.clicks
        )?;
        for ratios in &self.comparisons {
            let Comparison { name, against, judged, target, .. } = &ratios.comparison;
            let verdict = ratios.verdict();
            writeln!(out, "  {name} / {against}: target {judged:?} at most {target}: {verdict}")?;
            writeln!(out, "    ratio p50    {}", spread(ratios.p50, 2))?;
            writeln!(out, "    ratio p99    {}", spread(ratios.p99, 2))?;
        }
        let Throughput { answer_bytes, connections, ratio, list_per_second, constant_per_second } =
            &self.throughput;
        writeln!(out, "  list / constant JSON of {answer_bytes} bytes, {connections} connections")?;
        writeln!(out, "    ratio        {}", spread(*ratio, 4))?;
        for Ratios { comparison, .. } in &self.comparisons {
            for (side, rounds) in
                [(comparison.name, &comparison.ours), (comparison.against, &comparison.bare)]
            {
                writeln!(out, "{side}")?;
                let mut line = |what: &str, of: fn(&Round) -> u32| {
                    Spread::of(rounds.iter().map(|round| f64::from(of(round))))
                        .map_or(Ok(()), |values| writeln!(out, "  {what:<14} {}", spread(values, 0)))
                };
                line("p50, us", |round| round.p50_us)?;
                line("p99, us", |round| round.p99_us)?;
            }
        }
        writeln!(out, "list           {}/s", spread(*list_per_second, 0))?;
        writeln!(out, "constant JSON  {}/s", spread(*constant_per_second, 0))
    }
}

fn spread(values: Spread, decimals: usize) -> String {
    let Spread { min, median, max } = values;
    format!("{median:>9.decimals$}   ({min:.decimals$} to {max:.decimals$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(p50_us: u32, p99_us: u32) -> Round {
        Round { requests: 1, seconds: 1.0, p50_us, p99_us }
    }

    fn ratios(judged: Judged) -> Ratios {
        let mut comparison = Comparison::new("list", "SELECT", judged, 2.0);
        comparison.add(round(150, 600), round(100, 200));
        comparison.add(round(450, 800), round(300, 200));
        comparison.ratios().unwrap()
    }

    #[test]
    fn a_ratio_is_one_of_neighbours_in_time() {
        assert_eq!(ratios(Judged::P50).p50, Spread { min: 1.5, median: 1.5, max: 1.5 });
        assert_eq!(ratios(Judged::P50).p99, Spread { min: 3.0, median: 3.5, max: 4.0 });
    }

    #[test]
    fn a_target_is_about_one_percentile() {
        assert_eq!(ratios(Judged::P50).verdict(), "reached");
        assert_eq!(ratios(Judged::P99).verdict(), "MISSED");
    }

    #[test]
    fn a_comparison_without_rounds_is_no_result() {
        assert!(Comparison::new("list", "SELECT", Judged::P50, 2.0).ratios().is_err());
        assert!(Round::new(Vec::new(), Duration::from_secs(1)).is_none());
        assert!(Throughput::new(1, 1, &[]).is_err());
    }
}
