//! kill -9 of ClickHouse while clicks are inserted, again and again.

use std::time::Duration;

use devstack::Kind;

use super::super::{at_random, progress};
use super::{Stage, own};
use crate::clicks::{Clicks, Plan};
use crate::counted::{Exact, all_counted, is_exact};
use crate::processor::Processor;

/// How many kills, under which load.
#[derive(Debug, Clone, Copy)]
pub struct ClickhouseKills {
    /// How often ClickHouse is killed.
    pub kills: u32,
    /// Clicks per second.
    pub rate: u32,
}

/// The longest that ClickHouse is left alone after it has stored something.
const LIFE: Duration = Duration::from_millis(1_000);

/// Kills ClickHouse at random moments while the processor inserts, and starts it again.
///
/// # Panics
/// When a click is lost or a row twice, or no insert was ever in doubt although there were ten kills.
pub async fn counts_clickhouse_kills(plan: ClickhouseKills) -> Exact {
    let stage = Stage::new(&[Kind::ClickHouse]).await;
    let clicks = Clicks::start(&stage.engines, Plan::at(plan.rate));
    let processor = Processor::start(&stage.engines).await;
    for kill in 1..=plan.kills {
        stage.more_rows().await;
        // The moment is the input of this test; nothing is waited for.
        tokio::time::sleep(at_random(LIFE)).await;
        own(&stage.clickhouse).kill().await;
        own(&stage.clickhouse).start().await.unwrap();
        let (rows, doubts) = (stage.rows().await, doubts(&processor).await);
        progress(&format!(
            "kill {kill} of {}: {} clicks written, {rows} rows, {doubts} inserts were in doubt",
            plan.kills,
            clicks.confirmed()
        ));
    }
    stage.more_rows().await;
    let ledger = clicks.stop().await;
    all_counted(&stage.engines, &ledger).await;
    assert!(plan.kills < 10 || doubts(&processor).await > 0.0, "no kill has hit an insert");
    processor.stop().await;
    is_exact(&stage.engines, &ledger).await
}

/// Inserts without an answer that were read back.
async fn doubts(processor: &Processor) -> f64 {
    processor.metric("hopline_processor_doubtful_inserts_total").await
}
