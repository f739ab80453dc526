//! Processors that hang and wake up again: SIGSTOP and SIGCONT.

use std::time::Duration;

use super::super::{at_random, progress};
use super::Stage;
use crate::clicks::{Clicks, Plan};
use crate::counted::{Exact, all_counted, is_exact};
use crate::processor::Processor;
use crate::signals::{freeze, wake};

/// How many stops, under which load.
#[derive(Debug, Clone, Copy)]
pub struct Stops {
    /// How often one of two processors is held.
    pub stops: u32,
    /// Clicks per second.
    pub rate: u32,
}

/// The longest that one is held: twice what Kafka waits before it gives the partitions to the other one.
const HELD: Duration = Duration::from_secs(12);

/// Of two processors holds one after the other, so that each wakes up while the other has what was its own.
///
/// # Panics
/// When a click is lost or a row twice.
pub async fn counts_stops(plan: Stops) -> Exact {
    let stage = Stage::new(&[]).await;
    let clicks = Clicks::start(&stage.engines, Plan::at(plan.rate));
    let pair = [Processor::start(&stage.engines).await, Processor::start(&stage.engines).await];
    for stop in 1..=plan.stops {
        stage.more_rows().await;
        let held = &pair[stop as usize % 2];
        freeze(&held.server);
        // The length is the input of this test.
        tokio::time::sleep(at_random(HELD)).await;
        wake(&held.server);
        let rows = stage.rows().await;
        progress(&format!(
            "stop {stop} of {}: {} clicks written, {rows} rows",
            plan.stops,
            clicks.confirmed()
        ));
    }
    stage.more_rows().await;
    let ledger = clicks.stop().await;
    all_counted(&stage.engines, &ledger).await;
    for processor in &pair {
        processor.stop().await;
    }
    is_exact(&stage.engines, &ledger).await
}
