//! Removes rows that are no longer needed from the tables of deliveries and failures.

use std::time::Duration;

use service::Shutdown;
use sqlx::PgPool;
use tokio::time::{MissedTickBehavior, interval};

use crate::store::{self, Limits};

/// How often deliveries that will not be sent are removed.
const INTERVAL: Duration = Duration::from_secs(2);

/// One of this many rounds also removes expired rows.
const THOROUGH_EVERY: u64 = 30;

/// Cleans until a stop is requested.
pub(crate) async fn clean(pool: PgPool, limits: Limits, shutdown: Shutdown) {
    let mut rounds = interval(INTERVAL);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut round = 0;
    while !shutdown.requested() {
        tokio::select! {
            _ = rounds.tick() => {}
            () = shutdown.wait() => break,
        }
        loop {
            match store::clean(&pool, limits, round % THOROUGH_EVERY == 0).await {
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
