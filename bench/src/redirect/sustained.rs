//! Full load for minutes: the shipper must keep up with what the edge answers.

use std::{fmt::Write as _, time::Duration};

use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use super::{Measured, answers};
use crate::{load::Load, terminal::complain};

/// Time between two looks at the spool.
const LOOK: Duration = Duration::from_secs(10);

/// How much more may wait in the second half than in the first: a segment, because that is how space is taken.
const SLACK_BYTES: u64 = 8 * 1024 * 1024;

/// What full load for a while did.
#[derive(Debug, Serialize)]
pub(super) struct Sustained {
    seconds: u32,
    requests_per_second: f64,
    latency_p99_us: u32,
    /// Whether the spool was as full in the second half as in the first, or less.
    keeps_up: bool,
    looks: Vec<Look>,
    /// From the last answer to the last confirmation.
    drain_seconds: f64,
}

/// The spool at one moment.
#[derive(Debug, Clone, Copy, Serialize)]
struct Look {
    seconds: u64,
    /// On the disk, with what is confirmed and not deleted yet.
    spool_bytes: u64,
    /// Clicks that Kafka has not confirmed.
    waiting: u64,
}

/// Puts the edge under full load, and looks at its spool meanwhile.
pub(super) async fn measure(edge: &mut Measured, load: &Load, seconds: u32) -> anyhow::Result<Sustained> {
    let began = Instant::now();
    let mut looks: Vec<Look> = Vec::new();
    let duration = Duration::from_secs(seconds.into());
    let looking = async {
        loop {
            sleep_until(began + LOOK * (looks.len() as u32 + 1)).await;
            let (spool_bytes, waiting) = edge.edge.spooled().await?;
            let look = Look { seconds: began.elapsed().as_secs(), spool_bytes, waiting };
            complain(&format!(
                "full load for {} s: {} kB in the spool, {} clicks not in Kafka",
                look.seconds,
                look.spool_bytes / 1000,
                look.waiting
            ));
            looks.push(look);
        }
    };
    let answers = tokio::select! {
        answers = answers(&edge.edge.server, load, duration) => answers?,
        failed = looking => return failed,
    };
    let ended = Instant::now();
    edge.answered += answers.count() as u64;
    edge.is_shipped().await?;
    Ok(Sustained {
        seconds,
        requests_per_second: answers.rate(),
        latency_p99_us: answers.latency(99),
        keeps_up: keeps_up(&looks),
        looks,
        drain_seconds: ended.elapsed().as_secs_f64(),
    })
}

fn keeps_up(looks: &[Look]) -> bool {
    let (first, second) = looks.split_at(looks.len() / 2);
    let most = |looks: &[Look]| looks.iter().map(|look| look.spool_bytes).max().unwrap_or_default();
    most(second) <= most(first) + SLACK_BYTES
}

impl Sustained {
    pub(super) fn write(&self, out: &mut String) -> std::fmt::Result {
        let verdict = if self.keeps_up { "keeps up" } else { "FALLS BEHIND" };
        writeln!(out, "full load for {} s: the shipper {verdict}", self.seconds)?;
        writeln!(out, "  {:<29}{:>9.0}", "requests/s", self.requests_per_second)?;
        writeln!(out, "  {:<29}{:>9}", "latency p99, us", self.latency_p99_us)?;
        for Look { seconds, spool_bytes, waiting } in &self.looks {
            let kilobytes = spool_bytes / 1000;
            writeln!(
                out,
                "  {:<29}{kilobytes:>9}   {waiting} clicks not in Kafka",
                format!("spool at {seconds} s, kB")
            )?;
        }
        writeln!(out, "  {:<29}{:>9.3}", "seconds until all were", self.drain_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(megabytes: &[u64]) -> bool {
        let look = |(index, megabytes): (usize, &u64)| Look {
            seconds: index as u64 * 10,
            spool_bytes: megabytes * 1_000_000,
            waiting: 0,
        };
        keeps_up(&megabytes.iter().enumerate().map(look).collect::<Vec<_>>())
    }

    #[test]
    fn a_spool_that_stays_as_full_is_kept_up_with_and_one_that_grows_is_not() {
        assert!(judge(&[]) && judge(&[8]) && judge(&[16, 24, 16, 24]) && judge(&[40, 30, 20, 10]));
        assert!(!judge(&[16, 32, 48, 64]));
    }
}
