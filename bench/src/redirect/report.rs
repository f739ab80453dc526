//! The result: the ratio first, then what it is made of.

use std::{fmt::Write as _, time::Duration};

use anyhow::Context as _;
use serde::Serialize;

use super::{
    Options, open::Open, outage::Outage, peers::Peer, sustained::Sustained, tally::Clicks, usage::Usage,
};
use crate::{load::Answers, statistics::Spread};

/// The least ratio that the edge is meant to reach.
const TARGET: f64 = 0.75;

/// One server under load for a while.
#[derive(Debug, Serialize)]
pub(super) struct Round {
    pub(super) requests_per_second: f64,
    requests: usize,
    seconds: f64,
    /// CPU time of the server for one request; microseconds, user mode and kernel.
    cpu_us_per_request: f64,
    /// CPU time of the load for one request; microseconds.
    load_cpu_us_per_request: f64,
    /// CPU time of everything else on the machine for one request; microseconds.
    elsewhere_cpu_us_per_request: f64,
    latency_p50_us: u32,
    latency_p99_us: u32,
    /// Absent for the constant, which has nothing to ship.
    #[serde(skip_serializing_if = "Option::is_none")]
    shipping: Option<Shipping>,
}

/// How the clicks of one round came to Kafka.
#[derive(Debug, Serialize)]
pub(super) struct Shipping {
    /// The part of the server's CPU time that the threads took which bring clicks to Kafka.
    cpu_us_per_request: f64,
    /// Clicks that Kafka had not confirmed when the last one was answered.
    waiting: u64,
    /// From the last answer to the last confirmation.
    drain_seconds: f64,
}

/// All that a run found out.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    benchmark: &'static str,
    profile: &'static str,
    cores: usize,
    connections: u32,
    target: f64,
    /// Requests per second of the edge in parts of the constant's, over the pairs of rounds.
    ratio: Spread,
    /// The same as if nothing had been answered while the rest of a round's clicks was shipped: what the edge could
    /// keep up for ever, at the least.
    sustained_ratio: Spread,
    /// CPU time of the constant for a request in parts of the edge's; a quieter number than rates on a busy machine.
    cpu_ratio: Spread,
    constant: Vec<Round>,
    redirect: Vec<Round>,
    /// All clicks of this edge, also those of the open and of the sustained load.
    clicks: Clicks,
    #[serde(flatten)]
    beside: Beside,
}

/// The parts of a run that may be skipped.
#[derive(Debug, Default, Serialize)]
pub(super) struct Beside {
    pub(super) peers: Vec<Peer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) open: Option<Open>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sustained: Option<Sustained>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outage: Option<Outage>,
}

impl Round {
    /// Relates what was used to the requests it was for.
    pub(super) fn new(answers: &Answers, usage: &Usage) -> Self {
        let (requests, seconds) = (answers.count(), answers.elapsed.as_secs_f64());
        Self {
            requests_per_second: requests as f64 / seconds,
            requests,
            seconds,
            cpu_us_per_request: micros_each(usage.server, requests),
            load_cpu_us_per_request: micros_each(usage.load, requests),
            elsewhere_cpu_us_per_request: micros_each(usage.elsewhere(), requests),
            latency_p50_us: answers.latency(50),
            latency_p99_us: answers.latency(99),
            shipping: None,
        }
    }

    /// Adds how the clicks came to Kafka: how many were `waiting` after the last answer, and how long that took.
    pub(super) fn with_shipping(mut self, usage: &Usage, waiting: u64, drain: Duration) -> Self {
        let cpu_us_per_request = micros_each(usage.shipping, self.requests);
        self.shipping = Some(Shipping { cpu_us_per_request, waiting, drain_seconds: drain.as_secs_f64() });
        self
    }

    /// Requests per second when the time of shipping the rest counts too.
    fn sustained_per_second(&self) -> f64 {
        let drain = self.shipping.as_ref().map_or(0.0, |shipping| shipping.drain_seconds);
        self.requests as f64 / (self.seconds + drain)
    }
}

fn micros_each(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64
}

impl Report {
    /// Compares the rounds pair by pair.
    ///
    /// # Errors
    /// When there are none.
    pub(super) fn new(
        options: &Options,
        constant: Vec<Round>,
        redirect: Vec<Round>,
        clicks: Clicks,
        beside: Beside,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            benchmark: "redirect",
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
            cores: std::thread::available_parallelism()?.get(),
            connections: options.connections,
            target: TARGET,
            ratio: ratio(&redirect, &constant, |round| round.requests_per_second)?,
            sustained_ratio: ratio(&redirect, &constant, Round::sustained_per_second)?,
            cpu_ratio: ratio(&constant, &redirect, |round| round.cpu_us_per_request)?,
            constant,
            redirect,
            clicks,
            beside,
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
        let verdict = if self.ratio.median >= TARGET { "reached" } else { "MISSED" };
        writeln!(
            out,
            "redirect / constant 302, {} build, {} cores, {} connections",
            self.profile, self.cores, self.connections
        )?;
        writeln!(out, "  ratio            {}   target {TARGET}: {verdict}", spread(self.ratio, 3))?;
        writeln!(out, "  with the drain   {}", spread(self.sustained_ratio, 3))?;
        writeln!(out, "  of CPU/request   {}", spread(self.cpu_ratio, 3))?;
        for (name, rounds) in [("constant 302", &self.constant), ("redirect", &self.redirect)] {
            writeln!(out, "{name}")?;
            let mut line = |what: &str, decimals: usize, value: &dyn Fn(&Round) -> Option<f64>| {
                Spread::of(rounds.iter().filter_map(value))
                    .map_or(Ok(()), |values| writeln!(out, "  {what:<29}{}", spread(values, decimals)))
            };
            line("requests/s", 0, &|round| Some(round.requests_per_second))?;
            line("CPU us/request", 2, &|round| Some(round.cpu_us_per_request))?;
            line("  of which shipping", 2, &|round| Some(round.shipping.as_ref()?.cpu_us_per_request))?;
            line("load's CPU us/request", 2, &|round| Some(round.load_cpu_us_per_request))?;
            line("others' CPU us/request", 2, &|round| Some(round.elsewhere_cpu_us_per_request))?;
            line("latency p50, us", 0, &|round| Some(round.latency_p50_us.into()))?;
            line("latency p99, us", 0, &|round| Some(round.latency_p99_us.into()))?;
            line("clicks not yet in Kafka", 0, &|round| Some(round.shipping.as_ref()?.waiting as f64))?;
            line("seconds until all were", 3, &|round| Some(round.shipping.as_ref()?.drain_seconds))?;
        }
        writeln!(out, "clicks: {}", self.clicks)?;
        let Beside { peers, open, sustained, outage } = &self.beside;
        peers.iter().try_for_each(|peer| peer.write(out))?;
        open.iter().try_for_each(|open| open.write(out))?;
        sustained.iter().try_for_each(|sustained| sustained.write(out))?;
        outage.iter().try_for_each(|outage| outage.write(out))
    }
}

fn ratio(of: &[Round], to: &[Round], rate: impl Fn(&Round) -> f64) -> anyhow::Result<Spread> {
    Spread::of(std::iter::zip(of, to).map(|(of, to)| rate(of) / rate(to))).context("no pair of rounds")
}

/// Sums up what was measured round by round.
///
/// # Errors
/// When there was no round.
pub(super) fn rates(values: Vec<f64>) -> anyhow::Result<Spread> {
    Spread::of(values).context("no round")
}

/// A spread for people: the middle, then the ends.
pub(super) fn spread(values: Spread, decimals: usize) -> String {
    let Spread { min, median, max } = values;
    format!("{median:>9.decimals$}   ({min:.decimals$} to {max:.decimals$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(requests: usize, drain_seconds: Option<f64>) -> Round {
        let shipping = |drain_seconds| Shipping { cpu_us_per_request: 3.0, waiting: 10, drain_seconds };
        Round {
            requests_per_second: requests as f64,
            requests,
            seconds: 1.0,
            cpu_us_per_request: 20.0,
            load_cpu_us_per_request: 10.0,
            elsewhere_cpu_us_per_request: 5.0,
            latency_p50_us: 1,
            latency_p99_us: 2,
            shipping: drain_seconds.map(shipping),
        }
    }

    fn report() -> Report {
        let options = Options {
            pairs: 2,
            seconds: 1,
            warm_up: 1,
            connections: 1,
            sustained_seconds: 1,
            skip: Vec::new(),
            json: true,
        };
        let constant = vec![round(1000, None), round(2000, None)];
        let redirect = vec![round(800, Some(1.0)), round(1000, Some(0.0))];
        Report::new(&options, constant, redirect, Clicks::default(), Beside::default()).unwrap()
    }

    #[test]
    fn a_ratio_is_one_of_neighbours_in_time() {
        assert_eq!(report().ratio, Spread { min: 0.5, median: 0.65, max: 0.8 });
    }

    #[test]
    fn the_drain_counts_as_time_without_an_answer() {
        assert_eq!(report().sustained_ratio, Spread { min: 0.4, median: 0.45, max: 0.5 });
    }

    #[test]
    fn the_constant_shows_nothing_about_shipping() {
        let text = report().text();
        assert!(text.contains("MISSED"), "{text}");
        assert_eq!(text.matches("of which shipping").count(), 1, "{text}");
    }
}
