//! The engines of a run: empties their tables and reads their CPU times.

use std::time::{Duration, Instant};

use ::tests::engines::{Isolated, clickhouse};
use anyhow::{Context as _, ensure};
use devstack::Server;
use http::Uri;
use serde::Serialize;
use tokio::time::sleep;

use crate::{cpu, server};

/// How long a round may take.
pub(super) const DEADLINE: Duration = Duration::from_secs(3600);

/// Time between two counts of the rows.
pub(super) const POLL: Duration = Duration::from_millis(50);

/// The tables that rounds write to.
const TABLES: [&str; 6] = ["clicks", "counts", "breakdowns", "slices", "owners", "progress"];

/// CPU seconds per million rows, of each process that a round uses.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Cpu {
    /// The program that reads or inserts; 0 where ClickHouse does both.
    pub(crate) client: f64,
    pub(crate) kafka: f64,
    pub(crate) clickhouse: f64,
}

impl Cpu {
    /// Returns the sum.
    pub(super) fn sum(&self) -> f64 {
        self.client + self.kafka + self.clickhouse
    }
}

/// One way in one round.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Round {
    pub(super) rows_per_second: f64,
    pub(super) cpu_seconds_per_million: Cpu,
}

/// The CPU time of each process at some moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading([Duration; 3]);

/// Engines that hold clicks on their topic.
pub(crate) struct Stage {
    pub(crate) engines: Isolated,
    pub(super) clicks: u64,
    kafka: u32,
    /// All replicas.
    clickhouse: Vec<u32>,
}

impl Stage {
    pub(crate) fn new(engines: Isolated, clicks: u64) -> anyhow::Result<Self> {
        let broker = engines.kafka_brokers.split(',').next().unwrap_or_default();
        let kafka = process_at(&format!("http://{broker}/"))?;
        let clickhouse =
            engines.every_clickhouse().iter().map(|url| process_at(url)).collect::<Result<_, _>>()?;
        Ok(Self { engines, clicks, kafka, clickhouse })
    }

    /// Empties the tables, and waits until ClickHouse is idle.
    pub(super) async fn clear(&self) -> anyhow::Result<()> {
        for table in TABLES {
            self.engines.clickhouse(&format!("TRUNCATE TABLE {table} SYNC")).await;
        }
        self.settle().await
    }

    /// Waits until no replica merges or fetches parts.
    pub(crate) async fn settle(&self) -> anyhow::Result<()> {
        const WORK: &str = "SELECT (SELECT count() FROM system.merges WHERE database = currentDatabase()) \
             + (SELECT count() FROM system.replication_queue WHERE database = currentDatabase())";
        let mut quiet = 0;
        let deadline = Instant::now() + DEADLINE;
        while quiet < 3 {
            ensure!(Instant::now() < deadline, "ClickHouse still merges or fetches parts");
            quiet += 1;
            for url in self.engines.every_clickhouse() {
                let answer = clickhouse(&url, WORK, Vec::new()).await;
                if answer.map_err(anyhow::Error::msg)?.trim() != "0" {
                    quiet = 0;
                }
            }
            sleep(4 * POLL).await;
        }
        Ok(())
    }

    /// Checks that every position of the topic is one row.
    pub(crate) async fn check_rows(&self) -> anyhow::Result<()> {
        let found = self
            .engines
            .clickhouse("SELECT count(), uniqExact(src, koff), uniqExact(click_id) FROM clicks")
            .await;
        let clicks = self.clicks;
        let expected = format!("{clicks}\t{clicks}\t{clicks}");
        ensure!(
            found.trim() == expected,
            "rows, positions, click ids: {} instead of {expected}",
            found.trim()
        );
        Ok(())
    }

    /// Returns the number that a query answers.
    pub(super) async fn number(&self, query: &str) -> anyhow::Result<u64> {
        let answer = self.engines.clickhouse(query).await;
        answer.trim().parse().with_context(|| format!("{query}: {answer} is not a number"))
    }

    /// Waits until every click is a row, and returns rows per second.
    ///
    /// The rate is that between the first batch and one near the end. It excludes the start of a consumer and the wait
    /// of a last, small batch.
    pub(crate) async fn filled(&self, started: Instant) -> anyhow::Result<f64> {
        let mut seen: Vec<(Instant, u64)> = Vec::new();
        let deadline = started + DEADLINE;
        loop {
            let rows = self.number("SELECT count() FROM clicks").await?;
            let now = Instant::now();
            if rows > seen.last().map_or(0, |(_, rows)| *rows) {
                seen.push((now, rows));
            }
            if rows >= self.clicks {
                break;
            }
            ensure!(now < deadline, "only {rows} of {} clicks became rows", self.clicks);
            sleep(POLL).await;
        }
        Ok(rate(started, &seen, self.clicks))
    }

    /// Reads the CPU times; without programs, this one is the client.
    pub(crate) fn read(&self, programs: &[Server]) -> anyhow::Result<Reading> {
        let clients = match programs {
            [] => vec![std::process::id()],
            _ => programs.iter().map(server::pid).collect::<Result<_, _>>()?,
        };
        let sum = |ids: &[u32]| ids.iter().map(|id| cpu::process(*id)).sum::<anyhow::Result<Duration>>();
        Ok(Reading([sum(&clients)?, sum(&[self.kafka])?, sum(&self.clickhouse)?]))
    }

    /// Returns the CPU time between two readings.
    pub(crate) fn used(&self, before: Reading, after: Reading) -> Cpu {
        let millions = self.clicks as f64 / 1e6;
        let used = |place: usize| after.0[place].saturating_sub(before.0[place]).as_secs_f64() / millions;
        Cpu { client: used(0), kafka: used(1), clickhouse: used(2) }
    }
}

fn process_at(url: &str) -> anyhow::Result<u32> {
    let port = url.parse::<Uri>().ok().and_then(|uri| uri.port_u16());
    port.and_then(cpu::listener).with_context(|| {
        format!("no process of this machine listens on {port:?}; the engines must run on this machine")
    })
}

fn rate(started: Instant, seen: &[(Instant, u64)], wanted: u64) -> f64 {
    let late = seen.iter().find(|(_, rows)| rows * 10 >= wanted * 9);
    let (Some((first, before)), Some((last, after))) = (seen.first(), late) else { return 0.0 };
    // A single batch, as in a short run: the rate since the start.
    if after == before {
        let end = seen.last().map_or(started, |(end, _)| *end);
        return wanted as f64 / end.duration_since(started).as_secs_f64();
    }
    (after - before) as f64 / last.duration_since(*first).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_excludes_the_start_and_the_wait_for_the_last_rows() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let seen = [(at(10), 100), (at(12), 500), (at(14), 900), (at(99), 1_000)];
        assert!((rate(start, &seen, 1_000) - 200.0).abs() < 1e-9);
        assert!((rate(start, &[(at(10), 1_000)], 1_000) - 100.0).abs() < 1e-9);
    }
}
