//! How often somebody may try to sign in: by address, by email, and by both together, over all instances.

use std::time::Duration;

use chrono::{DateTime, Utc};
use service::http::ApiError;

use super::keyed;
use crate::App;
use crate::error::database;
use crate::limits::{Visit, network};

/// Attempts in a quarter of an hour: of an address, behind which an office may be; of an email from one address; of an
/// email from everywhere, which is more, so that a stranger at one address cannot keep its owner out.
const OF_ADDRESS: i32 = 60;
const OF_EMAIL_AT_ADDRESS: i32 = 10;
const OF_EMAIL: i32 = 100;

/// What an attempt counts for, as keyed hashes: of a plain address or email it could be found out which it was.
pub(super) struct Attempt {
    address: [u8; 32],
    email_at_address: [u8; 32],
    email: [u8; 32],
}

impl Attempt {
    /// Counts an attempt before it is known whether it succeeds: of many at once, no more get through.
    ///
    /// # Errors
    /// 429 when it was one too many. An address that may try no more uses up nobody's email.
    pub(super) async fn count(app: &App, visit: &Visit, email: &str) -> Result<Self, ApiError> {
        let network = network(visit.address()).to_be_bytes();
        let email = email.to_lowercase();
        let both = [&network[..], email.as_bytes()].concat();
        let attempt = Self {
            address: keyed::hash(app, "sign-in address", &network),
            email_at_address: keyed::hash(app, "sign-in email at address", &both),
            email: keyed::hash(app, "sign-in email", email.as_bytes()),
        };
        count(app, &attempt.address, OF_ADDRESS).await?;
        count(app, &attempt.email_at_address, OF_EMAIL_AT_ADDRESS).await?;
        count(app, &attempt.email, OF_EMAIL).await?;
        Ok(attempt)
    }

    /// Takes the attempt back: it was the right password.
    pub(super) async fn succeeded(self, app: &App) -> sqlx::Result<()> {
        sqlx::query("DELETE FROM sign_in_attempts WHERE who IN ($1, $2)")
            .bind(&self.email[..])
            .bind(&self.email_at_address[..])
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
    Err(ApiError::rate_limited("Too many attempts to sign in. Wait a while and try again.")
        .with_retry_after(wait))
}
