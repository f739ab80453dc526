//! `bench process`: clicks from their topic to rows, against each half of the way alone and ClickHouse's Kafka engine.
//!
//! The topic is written once; each round reads it from its beginning into empty tables.

pub(crate) mod clicks;
mod consumed;
mod engine;
mod freshness;
mod inserted;
mod processed;
pub(crate) mod replay;
mod report;
pub(crate) mod stage;

use ::tests::engines::isolated;
use report::Pair;
pub(crate) use report::Report;
use stage::Stage;

use crate::terminal::{ENGINES, prepare, report_progress};

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Clicks on the topic; their rows, about 350 bytes each, are held in memory
    #[arg(
        long, value_name = "COUNT", default_value = "3000000",
        value_parser = clap::value_parser!(u64).range(1_000..=100_000_000)
    )]
    clicks: u64,
    /// Pairs of rounds, each of which has all of the ways once
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Clicks per second of the rounds that measure freshness
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1000,50000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rates: Vec<u32>,
    /// Seconds of these rounds
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
}

/// Measures the processor and its peers.
pub(crate) async fn run(options: Options) -> anyhow::Result<Report> {
    prepare(&ENGINES)?;
    let stage = Stage::new(isolated().await, options.clicks)?;
    report_progress(&format!("writing {} clicks to a topic", options.clicks));
    clicks::write(&stage.engines, options.clicks, None).await?;
    let bodies = inserted::encode(&stage.engines)?;
    let mut pairs = Vec::new();
    for number in 1..=options.pairs {
        let pair = Pair {
            consumed: consumed::round(&stage).await?,
            inserted: inserted::round(&stage, &bodies).await?,
            processed: processed::round(&stage).await?,
            engine: engine::round(&stage).await?,
        };
        report_progress(&format!("pair {number} of {}: {}", options.pairs, pair.text()));
        pairs.push(pair);
    }
    drop(bodies);
    stage.engines.remove().await;

    let mut freshness = Vec::new();
    for rate in options.rates {
        freshness.push(freshness::round(rate, options.seconds).await?);
    }
    Report::new(options.clicks, pairs, freshness)
}
