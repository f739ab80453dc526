//! `bench scale`: several servers of each kind against one, in one run.
//!
//! If one server uses all cores of a machine, several answer no more than one. The CPU time for each click then shows
//! the cost of the others, and the load that separate machines would carry.

mod deliveries;
mod edges;
mod report;
mod rows;

use std::path::PathBuf;

use report::Part;
pub(crate) use report::Report;
use rows::Layout;

use crate::terminal::{ENGINES, prepare, report_progress};

/// The work that several servers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Work {
    /// Clicks to rows.
    Rows,
    /// Redirects.
    Redirects,
    /// Webhooks.
    Deliveries,
}

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Measures only these
    #[arg(long, value_name = "WHAT", value_delimiter = ',', default_value = "rows,redirects,deliveries")]
    only: Vec<Work>,
    /// Clicks that each round turns into rows
    #[arg(
        long, value_name = "COUNT", default_value = "1000000",
        value_parser = clap::value_parser!(u64).range(1_000..=100_000_000)
    )]
    clicks: u64,
    /// Rounds of each way
    #[arg(long, value_name = "COUNT", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of a round of redirects
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Deliveries of each round that sends webhooks
    #[arg(
        long, value_name = "COUNT", default_value = "100000",
        value_parser = clap::value_parser!(u32).range(20..=100_000_000)
    )]
    deliveries: u32,
    /// Shards of ClickHouse and replicas of each, beside a single server
    #[arg(long, value_name = "SHARDSxREPLICAS", value_delimiter = ',', default_value = "1x2,1x3,2x1,2x2")]
    clusters: Vec<Layout>,
    /// A folder with the programs of another release, whose processor takes a turn on one server
    #[arg(long, value_name = "FOLDER")]
    former: Option<PathBuf>,
}

/// Measures one server of each kind and several. Starts its own ClickHouse servers.
pub(crate) async fn run(options: Options) -> anyhow::Result<Report> {
    prepare(&ENGINES)?;
    let mut parts = [Part::new("rows"), Part::new("redirects"), Part::new("deliveries")];
    for number in 1..=options.rounds {
        report_progress(&format!("round {number} of {}", options.rounds));
        let [rows, redirects, deliveries] = &mut parts;
        if options.only.contains(&Work::Rows) {
            for way in rows::ways(&options.clusters, options.former.as_deref()) {
                rows.add(&way.name, rows::round(&way, options.clicks).await?);
            }
        }
        if options.only.contains(&Work::Redirects) {
            for edges in [1, 2] {
                redirects.add(&format!("{edges} of ingest"), edges::round(edges, options.seconds).await?);
            }
        }
        if options.only.contains(&Work::Deliveries) {
            for dispatchers in [1, 2, 4] {
                let round = deliveries::round(dispatchers, options.deliveries).await?;
                deliveries.add(&format!("{dispatchers} of dispatcher"), round);
            }
        }
    }
    Report::new(parts)
}
