//! An experiment, not part of the product: inserts that rely only on ClickHouse's deduplication tokens, under kill -9
//! of ClickHouse.
//!
//! Writers insert batches of rows, each with its own token, and send a batch again with the same token until ClickHouse
//! confirms it. A sink whose rows have no position would do this. The results are in
//! `docs/measurements/experiments.md`.

#![allow(clippy::unwrap_used, reason = "an experiment fails by panicking")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ::tests::engines::clickhouse;
use ::tests::faults::{at_random, progress};
use clap::Parser;
use devstack::{Kind, Options};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Rows of a batch.
const ROWS: u64 = 500;

/// Concurrent inserts: as many as a processor has partitions.
const WRITERS: u64 = 6;

/// How long ClickHouse may take for an insert before it is sent again.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest time until ClickHouse is killed.
const LIFE: Duration = Duration::from_millis(600);

/// The durability settings of the table of clicks, and a deduplication window that no run exceeds.
const TABLE: &str = "CREATE TABLE batches (batch UInt64, row UInt64) ENGINE = MergeTree ORDER BY (batch, row) \
    SETTINGS non_replicated_deduplication_window = 1000000, fsync_after_insert = 1, fsync_part_directory = 1";

/// Counts the batches that are lost or doubled when a deduplication token is all that protects them.
#[derive(Debug, Parser)]
#[command(name = "token_experiment", version)]
struct Cli {
    /// How often ClickHouse is killed
    #[arg(long, value_name = "COUNT", default_value = "200")]
    kills: u32,
    /// Send batches again without tokens, for comparison
    #[arg(long)]
    without_tokens: bool,
}

/// The state that writers share.
struct Run {
    url: String,
    with_tokens: bool,
    stop: AtomicBool,
    acknowledged: AtomicU64,
    sent_again: AtomicU64,
}

impl Run {
    /// Writes every sixth batch, from `writer` on, and returns how many.
    async fn write(self: Arc<Self>, writer: u64) -> u64 {
        let mut batch = writer;
        while !self.stop.load(Ordering::Relaxed) {
            let token = if self.with_tokens {
                format!("insert_deduplicate = 1, insert_deduplication_token = 'batch-{batch}', ")
            } else {
                String::new()
            };
            let insert = format!("INSERT INTO batches SETTINGS {token}async_insert = 0 FORMAT TabSeparated");
            let rows: String = (0..ROWS).map(|row| format!("{batch}\t{row}\n")).collect();
            while !self.is_acknowledged(&insert, &rows).await {
                self.sent_again.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(20)).await;
            }
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
            batch += WRITERS;
        }
        (batch - writer) / WRITERS
    }

    async fn is_acknowledged(&self, insert: &str, rows: &str) -> bool {
        matches!(timeout(PATIENCE, clickhouse(&self.url, insert, rows.into())).await, Ok(Ok(_)))
    }
}

#[tokio::main]
async fn main() {
    let cli: Cli = devstack::usage::parse();
    let server = Kind::ClickHouse.start(Options::throw_away("clickhouse").unwrap()).await.unwrap();
    clickhouse(server.url(), TABLE, Vec::new()).await.unwrap();
    let run = Arc::new(Run {
        url: server.url().to_owned(),
        with_tokens: !cli.without_tokens,
        stop: AtomicBool::new(false),
        acknowledged: AtomicU64::new(0),
        sent_again: AtomicU64::new(0),
    });
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let run = Arc::clone(&run);
        writers.spawn(async move { (writer, run.write(writer).await) });
    }
    let acknowledged = || run.acknowledged.load(Ordering::Relaxed);
    for kill in 1..=cli.kills {
        let before = acknowledged();
        while acknowledged() == before {
            sleep(Duration::from_millis(2)).await;
        }
        // The random moment is the input of this experiment.
        sleep(at_random(LIFE)).await;
        server.kill().await;
        server.start().await.unwrap();
        progress(&format!("kill {kill} of {}: {} batches acknowledged", cli.kills, acknowledged()));
    }
    run.stop.store(true, Ordering::Relaxed);
    let written: BTreeMap<u64, u64> = writers.join_all().await.into_iter().collect();
    let verdict = verdict(&run, &written).await;
    // Ignores a closed output.
    let _ = writeln!(std::io::stdout().lock(), "{} kills of ClickHouse: {verdict}", cli.kills);
}

/// Compares the rows of each batch with the confirmed ones; `written` has the number of batches of each writer.
async fn verdict(run: &Run, written: &BTreeMap<u64, u64>) -> String {
    let answer = clickhouse(&run.url, "SELECT batch, count() FROM batches GROUP BY batch", Vec::new()).await;
    let answer = answer.unwrap();
    let rows: BTreeMap<u64, u64> = answer
        .lines()
        .map(|line| line.split_once('\t').unwrap())
        .map(|(batch, rows)| (batch.parse().unwrap(), rows.parse().unwrap()))
        .collect();
    let (mut batches, mut lost, mut doubled) = (0, Vec::new(), Vec::new());
    for (writer, count) in written {
        for batch in (0..*count).map(|number| writer + WRITERS * number) {
            batches += 1;
            match rows.get(&batch).copied().unwrap_or_default() {
                ROWS => {}
                fewer @ 0..ROWS => lost.push((batch, ROWS - fewer)),
                _ => doubled.push(batch),
            }
        }
    }
    let (sent_again, rows_lost) = (run.sent_again.load(Ordering::Relaxed), lost.iter().map(|lost| lost.1));
    format!(
        "{batches} batches of {ROWS} rows acknowledged, {sent_again} times one was sent again; {} batches have lost {} \
         acknowledged rows {:?}, {} are doubled {:?}",
        lost.len(),
        rows_lost.sum::<u64>(),
        lost.iter().take(5).map(|lost| lost.0).collect::<Vec<_>>(),
        doubled.len(),
        doubled.iter().take(5).collect::<Vec<_>>()
    )
}
