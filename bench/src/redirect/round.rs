//! One server under the closed load for a while.

use std::time::Duration;

use serde::Serialize;

use crate::cpu;
use crate::load::Answers;
use crate::statistics::Spread;

/// CPU times since the start of each process, or of one round.
pub(super) struct Usage {
    /// The server, with all its threads.
    server: Duration,
    /// The server's threads that ship clicks to Kafka.
    shipping: Duration,
    /// This process, which generates the load.
    load: Duration,
    machine: Duration,
}

impl Usage {
    /// Reads the CPU times up to now; `server` is a process id.
    pub(super) fn read(server: u32) -> anyhow::Result<Self> {
        Ok(Self {
            server: cpu::process(server)?,
            // The edge's own thread, and those of librdkafka.
            shipping: cpu::threads(server, |name| name == "publish" || name.starts_with("rdk:"))?,
            load: cpu::process(std::process::id())?,
            machine: cpu::machine()?,
        })
    }

    /// Returns the CPU times since `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            server: self.server.saturating_sub(before.server),
            shipping: self.shipping.saturating_sub(before.shipping),
            load: self.load.saturating_sub(before.load),
            machine: self.machine.saturating_sub(before.machine),
        }
    }
}

/// One server under load for a while.
#[derive(Debug, Serialize)]
pub(crate) struct Round {
    pub(crate) requests_per_second: f64,
    requests: u64,
    seconds: f64,
    /// CPU time of the server for one request, in user mode and the kernel.
    pub(crate) cpu_us_per_request: f64,
    load_cpu_us_per_request: f64,
    /// CPU time of everything else on the machine for one request.
    elsewhere_cpu_us_per_request: f64,
    latency_p50_us: u64,
    latency_p99_us: u64,
    /// Absent for the constant.
    #[serde(skip_serializing_if = "Option::is_none")]
    shipping: Option<Shipping>,
}

/// How the clicks of a round reached Kafka.
#[derive(Debug, Serialize)]
struct Shipping {
    /// The part of the server's CPU time that the shipping threads used.
    cpu_us_per_request: f64,
    /// Clicks that Kafka had not confirmed at the last answer.
    waiting: u64,
    /// From the last answer to the last confirmation.
    drain_seconds: f64,
}

impl Round {
    /// Relates CPU times to requests.
    pub(super) fn new(answers: &Answers, usage: &Usage) -> Self {
        let requests = answers.latencies.len();
        let elsewhere = usage.machine.saturating_sub(usage.server).saturating_sub(usage.load);
        Self {
            requests_per_second: answers.rate(),
            requests,
            seconds: answers.elapsed.as_secs_f64(),
            cpu_us_per_request: micros_each(usage.server, requests),
            load_cpu_us_per_request: micros_each(usage.load, requests),
            elsewhere_cpu_us_per_request: micros_each(elsewhere, requests),
            latency_p50_us: answers.latencies.value_at_quantile(0.5),
            latency_p99_us: answers.latencies.value_at_quantile(0.99),
            shipping: None,
        }
    }

    /// Adds how the clicks reached Kafka.
    pub(super) fn with_shipping(mut self, usage: &Usage, waiting: u64, drain: Duration) -> Self {
        let cpu_us_per_request = micros_each(usage.shipping, self.requests);
        self.shipping = Some(Shipping { cpu_us_per_request, waiting, drain_seconds: drain.as_secs_f64() });
        self
    }

    /// Requests per second with the drain as time without answers.
    pub(super) fn sustained_per_second(&self) -> f64 {
        let drain = self.shipping.as_ref().map_or(0.0, |shipping| shipping.drain_seconds);
        self.requests as f64 / (self.seconds + drain)
    }
}

fn micros_each(time: Duration, count: u64) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64
}

/// Returns the rounds of one server for people.
pub(super) fn round_lines(rounds: &[Round]) -> impl Iterator<Item = String> {
    type Value = fn(&Round) -> Option<f64>;
    let values: [(&str, usize, Value); 9] = [
        ("requests/s", 0, |round| Some(round.requests_per_second)),
        ("CPU us/request", 2, |round| Some(round.cpu_us_per_request)),
        ("  of which shipping", 2, |round| Some(round.shipping.as_ref()?.cpu_us_per_request)),
        ("load's CPU us/request", 2, |round| Some(round.load_cpu_us_per_request)),
        ("others' CPU us/request", 2, |round| Some(round.elsewhere_cpu_us_per_request)),
        ("latency p50, us", 0, |round| Some(round.latency_p50_us as f64)),
        ("latency p99, us", 0, |round| Some(round.latency_p99_us as f64)),
        ("clicks not yet in Kafka", 0, |round| Some(round.shipping.as_ref()?.waiting as f64)),
        ("seconds until all were", 3, |round| Some(round.shipping.as_ref()?.drain_seconds)),
    ];
    values.into_iter().filter_map(|(what, decimals, value)| {
        let spread = Spread::of(rounds.iter().filter_map(value)).ok()?;
        Some(format!("  {what:<29}{}", spread.text(decimals)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(requests: u64, drain_seconds: Option<f64>) -> Round {
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

    #[test]
    fn the_drain_counts_as_time_without_an_answer() {
        let (constant, redirect) =
            ([round(1000, None), round(2000, None)], [round(800, Some(1.0)), round(1000, Some(0.0))]);
        let ratio = Spread::of_ratios(&redirect, &constant, Round::sustained_per_second).unwrap();
        assert_eq!(ratio, Spread { min: 0.4, median: 0.45, max: 0.5 });
    }

    #[test]
    fn the_constant_shows_nothing_about_shipping() {
        assert_eq!(round_lines(&[round(1000, None)]).count(), 6);
        assert_eq!(round_lines(&[round(1000, Some(1.0))]).count(), 9);
    }
}
