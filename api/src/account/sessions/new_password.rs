//! `POST /app/api/password`

use http::header::SET_COOKIE;
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use service::http::ApiError;
use warp::reply::{Reply as _, Response};

use super::cookie::is_secure;
use super::device;
use super::member::Member;
use super::password::{Client, Password, check_password};
use super::throttle::Attempt;
use crate::app::App;
use crate::error::database;
use crate::store::{audit, members, sessions};
use crate::web::faults::Faults;
use crate::web::operation::Answer;
use crate::web::request::{Head, Json};

/// The body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Passwords {
    current_password: Password,
    new_password: Password,
}

/// A changed password. The browser stays known.
pub(crate) struct Changed {
    device: HeaderValue,
}

impl Answer for Changed {
    fn respond(self, status: StatusCode) -> Response {
        let mut response = status.into_response();
        response.headers_mut().insert(SET_COOKIE, self.device);
        response
    }
}

/// Replaces the member's password and ends the member's other sessions.
///
/// # Errors
/// 403 when the present password is wrong, 429 after too many of these.
pub(crate) async fn change(
    member: Member,
    head: Head,
    Json(passwords): Json<Passwords>,
    app: App,
) -> Result<Changed, ApiError> {
    let mut faults = Faults::default();
    faults.note("new_password", check_password(&passwords.new_password));
    faults.into_result()?;
    let former = require_password(&app, &head, &member, passwords.current_password).await?;
    let hash = app.hashing.hash(Client::Account(member.account), passwords.new_password).await?;
    let mut transaction = app.pool.begin().await.map_err(database)?;
    let replaced = members::replace_password(&mut transaction, member.user, &former, &hash).await;
    if !replaced.map_err(database)? {
        return Err(wrong());
    }
    sessions::end_others(&mut transaction, member.user, &member.digest).await.map_err(database)?;
    audit::record_own(&mut transaction, member.user, "change-password").await.map_err(database)?;
    transaction.commit().await.map_err(database)?;
    Ok(Changed { device: device::cookie(&app, member.user, &hash, is_secure(&app, &head.visit)) })
}

/// Checks the password of a member who is signed in, and returns its hash.
///
/// # Errors
/// 403 when it is wrong, 429 after too many of these.
pub(super) async fn require_password(
    app: &App,
    head: &Head,
    member: &Member,
    password: Password,
) -> Result<String, ApiError> {
    let attempt = Attempt::of_member(app, &head.visit, member.user).await?;
    let hash = members::password_hash(&app.pool, member.user).await.map_err(database)?;
    let is_it = app.hashing.verify(Client::Account(member.account), password, hash.clone()).await?;
    let (Some(hash), true) = (hash, is_it) else { return Err(wrong()) };
    attempt.succeeded(app).await.map_err(database)?;
    Ok(hash)
}

fn wrong() -> ApiError {
    ApiError::forbidden("The password is wrong.")
}
