//! Removal of rows that nothing reads any more, and of personal fields that are no longer kept.

use std::time::Duration;

use serde::Serialize;

use crate::app::App;
use crate::store::{conversions, former_slugs, idempotency, imports, sessions, sign_in_attempts};

/// Time between two sweeps. Ended rows are ignored at once, swept or not.
const INTERVAL: Duration = Duration::from_secs(600);

/// How many rows a sweep removed.
#[derive(Debug, Serialize)]
pub(crate) struct Swept {
    sessions: u64,
    sign_in_attempts: u64,
    idempotency_keys: u64,
    former_slugs: u64,
    imports: u64,
    /// Conversions that lost their personal fields.
    conversions_without_personal_fields: u64,
}

/// Sweeps until shutdown. Any number of instances may do so at once.
pub(crate) async fn sweep(app: App) {
    loop {
        if let Err(error) = sweep_once(&app).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "cannot remove ended rows; trying again later");
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = app.shutdown.wait() => return,
        }
    }
}

/// Removes all that has ended.
pub(crate) async fn sweep_once(app: &App) -> sqlx::Result<Swept> {
    let connection = &mut app.pool.acquire().await?;
    Ok(Swept {
        sessions: sessions::remove_ended(connection).await?,
        sign_in_attempts: sign_in_attempts::remove_ended(connection).await?,
        idempotency_keys: idempotency::remove_expired(connection).await?,
        former_slugs: former_slugs::remove_ended(connection).await?,
        imports: imports::sweep(connection).await?,
        conversions_without_personal_fields: conversions::remove_personal_fields(connection, &app.plans)
            .await?,
    })
}
