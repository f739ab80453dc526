//! Limits on attempts to sign in, over all instances: by address, by email, and by both together; and on codes of a
//! second factor, by member.

use std::time::Duration;

use chrono::Utc;
use service::http::{ApiError, client_network};
use sqlx::PgConnection;
use uuid::Uuid;

use super::deployment_hash::deployment_hash;
use crate::app::App;
use crate::error::database;
use crate::store::sign_in_attempts;
use crate::web::limits::Visit;

/// Attempts in a quarter of an hour: from an address, which may be an office; for an email from one address; for an
/// email from everywhere, which is more, so that one address cannot lock its owner out.
const OF_ADDRESS: i32 = 60;
const OF_EMAIL_AT_ADDRESS: i32 = 10;
const OF_EMAIL: i32 = 100;

/// Codes of a member's second factor in a quarter of an hour, after the last right one. Three of a million codes are
/// right at any time, so somebody who has the password and never stops trying finds one in about a year.
const OF_CODE: i32 = 10;

/// What an attempt counts for, as keyed hashes, so that the table reveals neither addresses nor emails.
pub(super) struct Attempt {
    address: [u8; 32],
    others: Vec<[u8; 32]>,
}

impl Attempt {
    /// Counts an attempt before the password is checked, so that concurrent attempts cannot exceed the limit.
    ///
    /// # Errors
    /// 429 above a limit. An address above its limit is not counted for the email.
    pub(super) async fn count(app: &App, visit: &Visit, email: &str) -> Result<Self, ApiError> {
        let network = client_network(visit.address()).to_be_bytes();
        let email = email.to_lowercase();
        let both = [&network[..], email.as_bytes()].concat();
        let of_address = ("sign-in email at address", &both[..], OF_EMAIL_AT_ADDRESS);
        Self::count_for(app, visit, &[of_address, ("sign-in email", email.as_bytes(), OF_EMAIL)]).await
    }

    /// Counts an attempt in a browser where the email's member signed in before. Others cannot use up its attempts.
    pub(super) async fn of_device(app: &App, visit: &Visit, device: &str) -> Result<Self, ApiError> {
        Self::count_for(app, visit, &[("sign-in device", device.as_bytes(), OF_EMAIL_AT_ADDRESS)]).await
    }

    /// Counts an attempt of a member who is signed in.
    pub(super) async fn of_member(app: &App, visit: &Visit, user: Uuid) -> Result<Self, ApiError> {
        Self::count_for(app, visit, &[("password of member", user.as_bytes(), OF_EMAIL_AT_ADDRESS)]).await
    }

    async fn count_for(app: &App, visit: &Visit, others: &[(&str, &[u8], i32)]) -> Result<Self, ApiError> {
        let network = client_network(visit.address()).to_be_bytes();
        let mut attempt =
            Self { address: deployment_hash(app, "sign-in address", &network), others: Vec::new() };
        count(app, &attempt.address, OF_ADDRESS).await?;
        for (purpose, who, most) in others {
            let who = deployment_hash(app, purpose, who);
            count(app, &who, *most).await?;
            attempt.others.push(who);
        }
        Ok(attempt)
    }

    /// Takes the attempt back after the right password.
    pub(super) async fn succeeded(self, app: &App) -> sqlx::Result<()> {
        sign_in_attempts::clear(&app.pool, &self.others).await?;
        sign_in_attempts::take_back(&app.pool, &self.address).await
    }
}

/// A code that was counted for its member, over all addresses and sessions. Only a counted code can be checked.
pub(super) struct CountedCode {
    pub(super) user: Uuid,
    pub(super) code: String,
}

impl CountedCode {
    /// Counts a code before it is checked, so that concurrent ones cannot exceed the limit.
    ///
    /// # Errors
    /// 429 above the limit, even if the code is right.
    pub(super) async fn count(app: &App, user: Uuid, code: String) -> Result<Self, ApiError> {
        count(app, &of_codes(app, user), OF_CODE).await?;
        Ok(Self { user, code })
    }
}

/// Forgets the codes of a member, after a right one, or when the second factor is removed.
pub(super) async fn forget_codes(connection: &mut PgConnection, app: &App, user: Uuid) -> sqlx::Result<()> {
    sign_in_attempts::clear(connection, &[of_codes(app, user)]).await
}

fn of_codes(app: &App, user: Uuid) -> [u8; 32] {
    deployment_hash(app, "code of member", user.as_bytes())
}

async fn count(app: &App, who: &[u8; 32], most: i32) -> Result<(), ApiError> {
    let (attempts, until) = sign_in_attempts::count(&app.pool, who).await.map_err(database)?;
    if attempts <= most {
        return Ok(());
    }
    let wait = (until - Utc::now()).to_std().unwrap_or(Duration::from_secs(1));
    Err(ApiError::rate_limited("Too many attempts to sign in. Wait a while and try again.")
        .with_retry_after(wait))
}
