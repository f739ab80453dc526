//! Processors that are frozen and continue: SIGSTOP and SIGCONT.

use std::time::Duration;

use super::super::at_random;
use super::Stage;
use crate::clicks::{Clicks, Plan};
use crate::counted::{Exact, all_counted, is_exact};
use crate::processor::Processor;

/// The number of stops and the load.
#[derive(Debug, Clone, Copy)]
pub struct Stops {
    /// How often one of two processors is frozen.
    pub stops: u32,
    /// Clicks per second.
    pub rate: u32,
}

/// The longest freeze: twice the time after which Kafka assigns the partitions to the other one.
const HELD: Duration = Duration::from_secs(12);

/// Freezes two processors in turn, so that each continues while the other has its partitions.
///
/// # Panics
/// When a click is lost or doubled.
pub async fn counts_stops(plan: Stops) -> Exact {
    let stage = Stage::new(&[]).await;
    let clicks = Clicks::start(&stage.engines, Plan::at(plan.rate));
    let pair = [Processor::start(&stage.engines).await, Processor::start(&stage.engines).await];
    for stop in 1..=plan.stops {
        stage.more_rows().await;
        let held = &pair[stop as usize % 2];
        held.server.pause().await.unwrap();
        // The random length is the input of this test.
        tokio::time::sleep(at_random(HELD)).await;
        held.server.resume().await.unwrap();
        stage.report(&format!("stop {stop} of {}", plan.stops), &clicks).await;
    }
    stage.more_rows().await;
    let ledger = clicks.stop().await;
    all_counted(&stage.engines, &ledger).await;
    for processor in &pair {
        processor.stop().await;
    }
    is_exact(&stage.engines, &ledger).await
}
