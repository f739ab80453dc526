//! Removes rows that are no longer needed from the tables of deliveries and failures, and notes which queues are full.

use std::time::Duration;

use service::Shutdown;
use sqlx::PgPool;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::store::{self, Limits};

/// How often deliveries that will not be sent are removed, and at most how often queues are counted.
const INTERVAL: Duration = Duration::from_secs(2);

/// One of this many rounds also removes expired rows.
const THOROUGH_EVERY: u64 = 30;

/// Counting takes at most one part in this many of the time, however many queues are long.
const COUNTING_SHARE: u32 = 10;

/// Cleans until a stop is requested.
pub(crate) async fn clean(pool: PgPool, limits: Limits, shutdown: Shutdown) {
    tokio::join!(remove(&pool, limits, &shutdown), count(&pool, limits, &shutdown));
}

async fn remove(pool: &PgPool, limits: Limits, shutdown: &Shutdown) {
    let mut rounds = interval(INTERVAL);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut round = 0;
    while !shutdown.requested() {
        tokio::select! {
            _ = rounds.tick() => {}
            () = shutdown.wait() => break,
        }
        loop {
            match store::clean(pool, limits, round % THOROUGH_EVERY == 0).await {
                Ok(true) if !shutdown.requested() => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!("cannot clean up deliveries: {error}");
                    break;
                }
            }
        }
        round += 1;
    }
}

async fn count(pool: &PgPool, limits: Limits, shutdown: &Shutdown) {
    while !shutdown.requested() {
        let begun = Instant::now();
        if let Err(error) = store::note_full(pool, limits.queue).await {
            tracing::warn!("cannot count waiting deliveries: {error}");
        }
        tokio::select! {
            () = sleep(INTERVAL.max(begun.elapsed() * COUNTING_SHARE)) => {}
            () = shutdown.wait() => break,
        }
    }
}
