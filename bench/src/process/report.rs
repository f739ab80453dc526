//! The result of `bench process`.

use serde::Serialize;

use super::engine::Engine;
use super::freshness::Freshness;
use super::processed::Processed;
use super::stage::Round;
use crate::bar::Bar;
use crate::statistics::Spread;

/// One round of every way.
#[derive(Debug, Serialize)]
pub(super) struct Pair {
    pub(super) consumed: Round,
    pub(super) inserted: Round,
    pub(super) processed: Processed,
    pub(super) engine: Engine,
}

impl Pair {
    /// Returns a line for people.
    pub(super) fn text(&self) -> String {
        let rate = |round: &Round| format!("{:.0}", round.rows_per_second);
        format!(
            "rows/s: consumed {}, inserted {}, processed {} ({} with rollups), engine {}",
            rate(&self.consumed),
            rate(&self.inserted),
            rate(&self.processed.raw),
            rate(&self.processed.with_rollups),
            rate(&self.engine.round)
        )
    }
}

/// One way over all pairs.
#[derive(Debug, Serialize)]
struct Way {
    name: &'static str,
    rows_per_second: Spread,
    /// Of all processes, per million rows.
    cpu_seconds: Spread,
    client_cpu_seconds: Spread,
    kafka_cpu_seconds: Spread,
    clickhouse_cpu_seconds: Spread,
}

/// Everything that a run measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    clicks: u64,
    ways: Vec<Way>,
    ratios: Vec<(&'static str, Spread)>,
    freshness: Vec<Freshness>,
    bars: Vec<Bar>,
    pairs: Vec<Pair>,
}

impl Report {
    /// Summarizes the rounds.
    pub(super) fn new(clicks: u64, pairs: Vec<Pair>, freshness: Vec<Freshness>) -> anyhow::Result<Self> {
        let ways = [
            way("consumed alone", &pairs, |pair| pair.consumed)?,
            way("inserted alone", &pairs, |pair| pair.inserted)?,
            way("processor", &pairs, |pair| pair.processed.raw)?,
            way("processor, rollups", &pairs, |pair| pair.processed.with_rollups)?,
            way("Kafka engine", &pairs, |pair| pair.engine.round)?,
        ];
        let cpu = |round: &Round| round.cpu_seconds_per_million.sum();
        let ratios = [
            ratio("processor / inserted alone", &pairs, |pair| {
                pair.processed.raw.rows_per_second / pair.inserted.rows_per_second
            })?,
            ratio("processor with rollups / Kafka engine", &pairs, |pair| {
                pair.processed.with_rollups.rows_per_second / pair.engine.round.rows_per_second
            })?,
            ratio("CPU: processor with rollups / Kafka engine", &pairs, |pair| {
                cpu(&pair.processed.with_rollups) / cpu(&pair.engine.round)
            })?,
        ];
        let peaks = pairs.iter().map(|pair| pair.processed.peak_mib);
        let peak = peaks.chain(freshness.iter().map(|one| one.peak_mib)).max().unwrap_or_default();
        let mut bars = vec![
            Bar::at_least(ratios[0].0, ratios[0].1.median, 0.6),
            Bar::at_least(ratios[1].0, ratios[1].1.median, 2.0),
            Bar::at_most(ratios[2].0, ratios[2].1.median, 0.5),
            Bar::at_most("processor's memory, MiB", peak as f64, 256.0),
        ];
        for one in &freshness {
            let (name, bar) =
                (format!("p99 at {} clicks/s, ms", one.rate), if one.rate > 1_000 { 2e3 } else { 1e3 });
            bars.push(Bar::at_most(name, one.p99_ms as f64, bar));
        }
        Ok(Self { clicks, ways: ways.into(), ratios: ratios.into(), freshness, bars, pairs })
    }

    /// Returns the result for people.
    pub(crate) fn text(&self) -> String {
        let mut lines = vec![
            format!("{} clicks, {} pairs; medians (least to most)", self.clicks, self.pairs.len()),
            format!(
                "{:<20} {:>34}   CPU s per million rows: all, client, kafka, clickhouse",
                "", "rows per second"
            ),
        ];
        for way in &self.ways {
            lines.push(format!(
                "{:<20} {:>10.0} ({:>9.0} to {:>9.0})   {:6.2} {:6.2} {:6.2} {:6.2}",
                way.name,
                way.rows_per_second.median,
                way.rows_per_second.min,
                way.rows_per_second.max,
                way.cpu_seconds.median,
                way.client_cpu_seconds.median,
                way.kafka_cpu_seconds.median,
                way.clickhouse_cpu_seconds.median
            ));
        }
        for (name, spread) in &self.ratios {
            lines.push(format!("{name:<44} {:.3} ({:.3} to {:.3})", spread.median, spread.min, spread.max));
        }
        for one in &self.freshness {
            lines.push(format!(
                "{:.0} clicks/s, {} clicks: visible after p50 {} ms, p99 {} ms, longest {} ms; peak {} MiB",
                one.sent_per_second, one.clicks, one.p50_ms, one.p99_ms, one.max_ms, one.peak_mib
            ));
        }
        let repeats: u64 = self.pairs.iter().map(|pair| pair.engine.repeats).sum();
        lines.push(format!("rows that the Kafka engine stored more than once: {repeats}"));
        lines.extend(self.bars.iter().map(Bar::text));
        lines.join("\n")
    }
}

fn way(name: &'static str, pairs: &[Pair], round: impl Fn(&Pair) -> Round) -> anyhow::Result<Way> {
    let spread = |value: fn(Round) -> f64| Spread::of(pairs.iter().map(|pair| value(round(pair))));
    Ok(Way {
        name,
        rows_per_second: spread(|round| round.rows_per_second)?,
        cpu_seconds: spread(|round| round.cpu_seconds_per_million.sum())?,
        client_cpu_seconds: spread(|round| round.cpu_seconds_per_million.client)?,
        kafka_cpu_seconds: spread(|round| round.cpu_seconds_per_million.kafka)?,
        clickhouse_cpu_seconds: spread(|round| round.cpu_seconds_per_million.clickhouse)?,
    })
}

fn ratio(
    name: &'static str,
    pairs: &[Pair],
    value: impl Fn(&Pair) -> f64,
) -> anyhow::Result<(&'static str, Spread)> {
    Ok((name, Spread::of(pairs.iter().map(value))?))
}
