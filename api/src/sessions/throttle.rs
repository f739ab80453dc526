//! How often somebody may try to sign in: by address and by email, over all instances.

use std::time::Duration;

use chrono::{DateTime, Utc};
use service::http::ApiError;

use super::keyed;
use crate::App;
use crate::error::database;
use crate::limits::{Visit, network};

/// Attempts in a quarter of an hour: of an address, behind which an office may be, and of an email.
const OF_ADDRESS: i32 = 60;
const OF_EMAIL: i32 = 10;

/// The two that an attempt counts for, an address and an email, as keyed hashes: of a plain one it could be found out
/// which it was.
pub(super) struct Attempt {
    address: [u8; 32],
    email: [u8; 32],
}

impl Attempt {
    /// Counts an attempt before it is known whether it succeeds: of many at once, no more get through.
    ///
    /// # Errors
    /// 429 when it was one too many. An address that may try no more uses up nobody's email.
    pub(super) async fn count(app: &App, visit: &Visit, email: &str) -> Result<Self, ApiError> {
        let address = keyed::hash(app, "sign-in address", &network(visit.address()).to_be_bytes());
        let email = keyed::hash(app, "sign-in email", email.to_lowercase().as_bytes());
        count(app, &address, OF_ADDRESS).await?;
        count(app, &email, OF_EMAIL).await?;
        Ok(Self { address, email })
    }

    /// Takes the attempt back: it was the right password.
    pub(super) async fn succeeded(self, app: &App) -> sqlx::Result<()> {
        sqlx::query("DELETE FROM sign_in_attempts WHERE who = $1")
            .bind(&self.email[..])
            .execute(&app.pool)
            .await?;
        sqlx::query("UPDATE sign_in_attempts SET attempts = greatest(attempts - 1, 0) WHERE who = $1")
            .bind(&self.address[..])
            .execute(&app.pool)
            .await?;
        Ok(())
    }
}

async fn count(app: &App, who: &[u8; 32], most: i32) -> Result<(), ApiError> {
    let (attempts, until): (i32, DateTime<Utc>) = sqlx::query_as(
        "INSERT INTO sign_in_attempts AS a (who, began_at, attempts) VALUES ($1, now(), 1)
         ON CONFLICT (who) DO UPDATE
         SET began_at = CASE WHEN a.began_at < now() - interval '15 minutes' THEN now() ELSE a.began_at END,
             attempts = CASE WHEN a.began_at < now() - interval '15 minutes' THEN 1
                             ELSE least(a.attempts + 1, 1000000) END
         RETURNING attempts, began_at + interval '15 minutes'",
    )
    .bind(&who[..])
    .fetch_one(&app.pool)
    .await
    .map_err(database)?;
    if attempts <= most {
        return Ok(());
    }
    let wait = (until - Utc::now()).to_std().unwrap_or(Duration::from_secs(1));
    Err(ApiError::rate_limited("Too many attempts to sign in; wait a while and try again")
        .with_retry_after(wait))
}
