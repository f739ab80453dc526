//! Repeated kill -9 of ClickHouse while clicks are inserted.

use std::time::Duration;

use devstack::Kind;

use super::super::at_random;
use super::{Stage, own};
use crate::clicks::{Clicks, Plan};
use crate::counted::{Exact, all_counted, is_exact};
use crate::metric;
use crate::processor::Processor;

/// The number of kills and the load.
#[derive(Debug, Clone, Copy)]
pub struct ClickhouseKills {
    /// How often ClickHouse is killed.
    pub kills: u32,
    /// Clicks per second.
    pub rate: u32,
}

/// The longest time between an insert and a kill.
const LIFE: Duration = Duration::from_millis(1_000);

/// Kills ClickHouse at random moments while the processor inserts, and starts it again.
///
/// # Panics
/// When a click is lost or doubled, or when no insert was in doubt in ten or more kills.
pub async fn counts_clickhouse_kills(plan: ClickhouseKills) -> Exact {
    let stage = Stage::new(&[Kind::ClickHouse]).await;
    let clicks = Clicks::start(&stage.engines, Plan::at(plan.rate));
    let processor = Processor::start(&stage.engines).await;
    for kill in 1..=plan.kills {
        stage.more_rows().await;
        // The random moment is the input of this test.
        tokio::time::sleep(at_random(LIFE)).await;
        own(&stage.clickhouse).kill().await;
        own(&stage.clickhouse).start().await.unwrap();
        let doubts = doubts(&processor).await;
        stage.report(&format!("kill {kill} of {}, {doubts} inserts in doubt", plan.kills), &clicks).await;
    }
    stage.more_rows().await;
    let ledger = clicks.stop().await;
    all_counted(&stage.engines, &ledger).await;
    assert!(plan.kills < 10 || doubts(&processor).await > 0.0, "no kill has hit an insert");
    processor.stop().await;
    is_exact(&stage.engines, &ledger).await
}

/// Returns the number of inserts without an answer that were checked.
async fn doubts(processor: &Processor) -> f64 {
    metric(processor.server.url(), "hopline_processor_doubtful_inserts_total").await
}
