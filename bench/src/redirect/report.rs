//! The result of `bench redirect`.

use serde::Serialize;

use super::open::Open;
use super::round::{Round, round_lines};
use super::tally::Clicks;
use crate::statistics::Spread;

/// Connections of the load, each with one request at a time.
pub(crate) const CONNECTIONS: usize = 32;

/// The smallest allowed ratio of the rates.
const TARGET: f64 = 0.75;

/// Everything that a run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    benchmark: &'static str,
    profile: &'static str,
    cores: usize,
    connections: usize,
    target: f64,
    /// Requests per second of the edge in parts of the constant's, pair by pair.
    ratio: Spread,
    /// The same with the time that shipping took after a round: a rate that the edge can keep up.
    sustained_ratio: Spread,
    /// CPU time of the constant for a request in parts of the edge's. Other load changes it less than the rates.
    cpu_ratio: Spread,
    constant: Vec<Round>,
    redirect: Vec<Round>,
    /// All clicks, also those of the open load.
    clicks: Clicks,
    open: Open,
}

impl Report {
    /// Compares the rounds pair by pair.
    ///
    /// # Errors
    /// When there are none.
    pub(super) fn new(
        constant: Vec<Round>,
        redirect: Vec<Round>,
        clicks: Clicks,
        open: Open,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            benchmark: "redirect",
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
            cores: std::thread::available_parallelism()?.get(),
            connections: CONNECTIONS,
            target: TARGET,
            ratio: Spread::of_ratios(&redirect, &constant, |round| round.requests_per_second)?,
            sustained_ratio: Spread::of_ratios(&redirect, &constant, Round::sustained_per_second)?,
            cpu_ratio: Spread::of_ratios(&constant, &redirect, |round| round.cpu_us_per_request)?,
            constant,
            redirect,
            clicks,
            open,
        })
    }

    /// Returns the result for people.
    pub(crate) fn text(&self) -> String {
        let Self { profile, cores, connections, ratio, .. } = self;
        let verdict = if ratio.median >= TARGET { "reached" } else { "MISSED" };
        let mut lines = vec![
            format!("redirect / constant 302, {profile} build, {cores} cores, {connections} connections"),
            format!("  ratio            {}   target {TARGET}: {verdict}", ratio.text(3)),
            format!("  with the drain   {}", self.sustained_ratio.text(3)),
            format!("  of CPU/request   {}", self.cpu_ratio.text(3)),
        ];
        for (name, rounds) in [("constant 302", &self.constant), ("redirect", &self.redirect)] {
            lines.push(name.to_owned());
            lines.extend(round_lines(rounds));
        }
        lines.push(format!("clicks: {}", self.clicks));
        lines.extend(self.open.lines());
        lines.join("\n")
    }
}
