//! Processors join, leave and are killed, while the topic gets more partitions and most clicks are on one link.

use std::time::Duration;

use super::super::at_random;
use super::Stage;
use crate::clicks::{Clicks, Plan};
use crate::counted::{Exact, all_counted, is_exact};
use crate::processor::Processor;

/// The number of changes and the load.
#[derive(Debug, Clone, Copy)]
pub struct Members {
    /// How often a processor joins, leaves or is killed.
    pub changes: u32,
    /// The average time between two changes.
    pub pause: Duration,
    /// Clicks per second.
    pub rate: u32,
}

/// Maximum processors.
const MOST: usize = 4;

/// Partitions in the first and in the second half.
const PARTITIONS: [i32; 2] = [2, 4];

/// Starts with two processors on two partitions, runs up to four processors, and increases the partitions to four at
/// half time. Nine of ten clicks are on one link.
///
/// # Panics
/// When a click is lost or doubled, or nothing was counted meanwhile.
pub async fn counts_members(plan: Members) -> Exact {
    let stage = Stage::with_partitions(&[], PARTITIONS[0]).await;
    let clicks = Clicks::start(&stage.engines, Plan { hot_percent: 90, ..Plan::at(plan.rate) });
    let processors: [Processor; MOST] = std::array::from_fn(|_| Processor::prepare(&stage.engines));
    let is_running = |place: usize| processors[place].server.pid().is_some();
    for processor in &processors[..2] {
        processor.server.start().await.unwrap();
    }
    stage.more_rows().await;
    let before = stage.rows().await;
    for change in 1..=plan.changes {
        if change == plan.changes.div_ceil(2) {
            stage.grow_to(PARTITIONS[1] as usize).await;
        }
        let running: Vec<usize> = (0..MOST).filter(|place| is_running(*place)).collect();
        let absent: Vec<usize> = (0..MOST).filter(|place| !is_running(*place)).collect();
        let joins = running.len() == 1 || (!absent.is_empty() && at_random(PAIR) < HALF);
        let what = if joins {
            one_of(&processors, &absent).server.start().await.unwrap();
            "joined"
        } else if change % 3 == 0 {
            one_of(&processors, &running).server.kill().await;
            "was killed"
        } else {
            one_of(&processors, &running).stop().await;
            "left"
        };
        // The random pause is the input of this test.
        tokio::time::sleep(at_random(2 * plan.pause)).await;
        stage.report(&format!("change {change} of {}, one {what}", plan.changes), &clicks).await;
    }
    stage.more_rows().await;
    assert!(stage.rows().await > before, "nothing was counted meanwhile");
    // Clicks on all partitions, including added ones.
    clicks.more(u64::from(plan.rate)).await;
    let ledger = clicks.stop().await;
    all_counted(&stage.engines, &ledger).await;
    for place in (0..MOST).filter(|place| is_running(*place)) {
        processors[place].stop().await;
    }
    let exact = is_exact(&stage.engines, &ledger).await;
    assert_eq!(exact.sources, PARTITIONS[1] as usize, "partitions with clicks");
    exact
}

const PAIR: Duration = Duration::from_secs(2);
const HALF: Duration = Duration::from_secs(1);

fn one_of<'a>(processors: &'a [Processor], places: &[usize]) -> &'a Processor {
    let place = at_random(Duration::from_secs(places.len() as u64)).as_secs() as usize;
    &processors[places[place]]
}
