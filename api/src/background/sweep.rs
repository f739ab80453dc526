//! Removal of rows that nothing reads any more: ended sessions, old sign-in attempts, expired idempotency keys.

use std::time::Duration;

use service::Shutdown;
use sqlx::PgPool;

use crate::store::{idempotency, sessions, sign_in_attempts};

/// Time between two sweeps. Ended rows are ignored at once, swept or not.
const INTERVAL: Duration = Duration::from_secs(600);

/// Sweeps until shutdown. Any number of instances may do so at once.
pub(crate) async fn sweep(pool: PgPool, shutdown: Shutdown) {
    loop {
        if let Err(error) = sweep_once(&pool).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                error,
                "cannot remove ended sessions and expired idempotency keys; trying again later"
            );
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = shutdown.wait() => return,
        }
    }
}

async fn sweep_once(pool: &PgPool) -> sqlx::Result<()> {
    let mut connection = pool.acquire().await?;
    sessions::remove_ended(&mut connection).await?;
    sign_in_attempts::remove_ended(&mut connection).await?;
    idempotency::remove_expired(&mut connection).await
}
