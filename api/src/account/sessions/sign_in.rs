//! `POST /app/api/sign-in`, `/sign-out` and `/sign-out-everywhere`

use chrono::{DateTime, Utc};
use http::header::{SET_COOKIE, USER_AGENT};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use service::http::{ApiError, json as answer};
use uuid::Uuid;
use warp::reply::{Reply as _, Response};

use super::cookie::{self, Cookie, is_secure};
use super::member::Member;
use super::show::Session;
use super::throttle::Attempt;
use super::{device, two_factor};
use crate::account::members::MAX_EMAIL;
use crate::account::sessions::member::{SentByPage, suspended};
use crate::account::sessions::password::{Client, Password};
use crate::app::App;
use crate::error::database;
use crate::store::members::SignInRow;
use crate::store::{audit, members, sessions};
use crate::web::faults::check_text;
use crate::web::operation::Answer;
use crate::web::request::{Head, Json};
use crate::web::text::is_exact;

/// Longest stored `User-Agent`, in characters.
const MAX_USER_AGENT: usize = 300;

/// The body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    email: String,
    password: Password,
    /// Of the authenticator, or a recovery code.
    code: Option<String>,
}

/// A new session and its cookie.
pub(crate) struct SignedIn {
    session: Session,
    cookie: Cookie,
    device: HeaderValue,
}

impl Answer for SignedIn {
    fn respond(self, status: StatusCode) -> Response {
        let mut response = answer(status, &self.session);
        response.headers_mut().insert(SET_COOKIE, self.cookie.header());
        response.headers_mut().append(SET_COOKIE, self.device);
        response
    }
}

/// An answer without a body that sets the cookie.
impl Answer for Cookie {
    fn respond(self, status: StatusCode) -> Response {
        let mut response = status.into_response();
        response.headers_mut().insert(SET_COOKIE, self.header());
        response
    }
}

/// Signs a member in. An unknown email and a wrong password get the same answer after the same time.
pub(crate) async fn sign_in(
    SentByPage(head): SentByPage,
    Json(credentials): Json<Credentials>,
    app: App,
) -> Result<SignedIn, ApiError> {
    let Credentials { email, password, code } = credentials;
    // Attempts are counted by the same lower-case email that is looked up. An impossible email belongs to nobody.
    let found = match check_text(&email, MAX_EMAIL) {
        Ok(()) => members::find(&app.pool, &email.to_lowercase()).await.map_err(database)?,
        Err(_) => None,
    };
    let hash = found.as_ref().and_then(|found| found.password_hash.clone());
    let known = found
        .as_ref()
        .zip(hash.as_ref())
        .and_then(|(found, hash)| Some((found.id, device::known(&app, found.id, hash, &head.headers)?)));
    let (attempt, client) = match known {
        Some((user, device)) => (Attempt::of_device(&app, &head.visit, device).await?, Client::Member(user)),
        None => (Attempt::count(&app, &head.visit, &email).await?, Client::email(&email)),
    };
    let is_it = app.hashing.verify(client, password, hash).await?;
    let (Some(SignInRow { id: user, password_hash: Some(hash), totp_confirmed_at, is_suspended }), true) =
        (found, is_it)
    else {
        return Err(wrong());
    };
    let is_proven = match (totp_confirmed_at, code) {
        (None, _) => Ok(true),
        // The page asks for the code then; that is not another attempt.
        (Some(_), None) => Err(ApiError::two_factor_required("Enter the code of your authenticator.")),
        (Some(_), Some(code)) => two_factor::take(&app, user, code).await,
    };
    if matches!(is_proven, Ok(false)) {
        return Err(ApiError::unauthorized("The code is wrong, or it was used already."));
    }
    // The password was right.
    attempt.succeeded(&app).await.map_err(database)?;
    is_proven?;
    if is_suspended {
        return Err(suspended());
    }
    begin(&app, &head, user, &hash, totp_confirmed_at).await
}

fn wrong() -> ApiError {
    ApiError::unauthorized("The email or the password is wrong.")
}

/// Begins a session under a new token, and ends the one the browser had.
///
/// # Errors
/// 401 when the password or the second factor was changed since it was checked, or the member was removed.
pub(super) async fn begin(
    app: &App,
    head: &Head,
    user: Uuid,
    password_hash: &str,
    two_factor_since: Option<DateTime<Utc>>,
) -> Result<SignedIn, ApiError> {
    let cookie = Cookie::draw(is_secure(app, &head.visit));
    let former = cookie::token(&head.headers).map(cookie::digest);
    let mut transaction = app.pool.begin().await.map_err(database)?;
    let digest = cookie.digest();
    let user_agent = user_agent(&head.headers);
    let begun = sessions::begin(
        &mut transaction,
        &digest,
        user,
        password_hash,
        two_factor_since,
        former,
        &user_agent,
    );
    if !begun.await.map_err(database)? {
        return Err(ApiError::unauthorized(
            "Your password or second factor has just changed. Sign in again.",
        ));
    }
    audit::record_own(&mut transaction, user, "sign-in").await.map_err(database)?;
    transaction.commit().await.map_err(database)?;
    let session = Session::read(app, user).await.map_err(database)?;
    let device = device::cookie(app, user, password_hash, is_secure(app, &head.visit));
    Ok(SignedIn { session, cookie, device })
}

/// Returns the `User-Agent` as it is shown in the list of sessions.
fn user_agent(headers: &HeaderMap) -> String {
    let text = headers.get(USER_AGENT).map(|value| String::from_utf8_lossy(value.as_bytes()));
    text.unwrap_or_default().chars().filter(|&c| is_exact(c)).take(MAX_USER_AGENT).collect()
}

/// Ends the browser's session, if it has one, and removes its cookie.
pub(crate) async fn sign_out(SentByPage(head): SentByPage, app: App) -> Result<Cookie, ApiError> {
    if let Some(token) = cookie::token(&head.headers) {
        let mut connection = app.pool.acquire().await.map_err(database)?;
        sessions::end(&mut connection, &cookie::digest(token)).await.map_err(database)?;
    }
    Ok(Cookie::removed(is_secure(&app, &head.visit)))
}

/// Ends every session of the member.
pub(crate) async fn sign_out_everywhere(member: Member, head: Head, app: App) -> Result<Cookie, ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    sessions::end_all(&mut transaction, member.user).await.map_err(database)?;
    audit::record_own(&mut transaction, member.user, "sign-out-everywhere").await.map_err(database)?;
    transaction.commit().await.map_err(database)?;
    Ok(Cookie::removed(is_secure(&app, &head.visit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_user_agent_shows_what_it_is() {
        let long = format!("Phone\u{202e}\u{200b}\u{e000} é{}", "x".repeat(400));
        let value = HeaderValue::from_bytes(long.as_bytes()).unwrap();
        let stored = user_agent(&HeaderMap::from_iter([(USER_AGENT, value)]));
        assert_eq!(stored, format!("Phone é{}", "x".repeat(MAX_USER_AGENT - 7)));
        assert_eq!(user_agent(&HeaderMap::new()), "");
    }
}
