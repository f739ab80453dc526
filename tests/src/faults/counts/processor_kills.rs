//! Repeated kill -9 of the processor.

use std::time::Duration;

use super::super::at_random;
use super::Stage;
use crate::clicks::{Clicks, Plan};
use crate::counted::{Exact, all_counted, is_exact};
use crate::processor::Processor;

/// The number of kills and the load.
#[derive(Debug, Clone, Copy)]
pub struct ProcessorKills {
    /// How often the processor is killed.
    pub kills: u32,
    /// Clicks per second.
    pub rate: u32,
}

/// The longest time between an insert and a kill.
const LIFE: Duration = Duration::from_millis(1_500);

/// The longest time between a start and a kill during it; by then the processor has taken its partitions over.
const BIRTH: Duration = Duration::from_secs(8);

/// Kills the processor at random moments, every third time while it starts and takes its partitions over. One record
/// in 500 is invalid.
///
/// # Panics
/// When a click is lost or doubled.
pub async fn counts_processor_kills(plan: ProcessorKills) -> Exact {
    let stage = Stage::new(&[]).await;
    let clicks = Clicks::start(&stage.engines, Plan { poison_every: 500, ..Plan::at(plan.rate) });
    let processor = Processor::start(&stage.engines).await;
    for kill in 1..=plan.kills {
        // The random moment is the input of this test.
        if kill % 3 == 0 {
            tokio::time::sleep(at_random(BIRTH)).await;
        } else {
            stage.more_rows().await;
            tokio::time::sleep(at_random(LIFE)).await;
        }
        processor.server.kill().await;
        processor.server.start().await.unwrap();
        stage.report(&format!("kill {kill} of {}", plan.kills), &clicks).await;
    }
    stage.more_rows().await;
    let ledger = clicks.stop().await;
    all_counted(&stage.engines, &ledger).await;
    processor.stop().await;
    let exact = is_exact(&stage.engines, &ledger).await;
    assert!(exact.dead_letters > 0, "no record was invalid");
    exact
}
