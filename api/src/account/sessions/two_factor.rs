//! `POST` and `DELETE /app/api/two-factor`, `POST /app/api/two-factor/confirm`, and the code at the sign-in.

use chrono::Utc;
use rand::seq::IndexedRandom as _;
use schemas::id::UserId;
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use serde_json::json;
use service::http::ApiError;
use service::sealed;
use sha2::{Digest as _, Sha256};
use sqlx::PgConnection;
use uuid::Uuid;

use super::member::Member;
use super::new_password::require_password;
use super::password::{CLEAR, Password};
use super::throttle::Attempt;
use super::totp;
use crate::app::App;
use crate::error::database;
use crate::store::audit::Of;
use crate::store::{audit, sessions, two_factor};
use crate::web::qr::{Modules, Qr, svg};
use crate::web::request::{Head, Json};

/// Recovery codes of a member.
const RECOVERY_CODES: usize = 10;

/// Pixels of the QR code.
const QR_SIZE: usize = 240;

/// Characters of a recovery code, without its hyphens: 80 bits.
const RECOVERY_LEN: usize = 16;

/// A secret for an authenticator.
#[derive(Serialize)]
pub(crate) struct Begun {
    secret: String,
    otpauth_url: String,
}

/// The body of a confirmation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Code {
    code: String,
}

/// The codes that replace one of the authenticator, which are not shown again.
#[derive(Serialize)]
pub(crate) struct Confirmed {
    recovery_codes: Vec<String>,
}

/// The body of a removal.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Proof {
    password: Password,
    code: String,
}

/// Draws a secret, which counts once a code of it is confirmed. Drawing again replaces it.
///
/// # Errors
/// 400 when two-factor sign-in is on.
pub(crate) async fn begin(member: Member, app: App) -> Result<Begun, ApiError> {
    let secret: [u8; totp::SECRET_LEN] = rand::random();
    let text = totp::base32(&secret);
    let sealed = sealed::seal(&app.secret_keys, member.user.as_bytes(), &hex(&secret), rand::random())
        .map_err(ApiError::internal)?;
    let begun = two_factor::begin(&app.pool, member.user, &sealed).await.map_err(database)?;
    if !begun {
        return Err(ApiError::bad_request("Two-factor sign-in is on already. Switch it off first."));
    }
    let mut connection = app.pool.acquire().await.map_err(database)?;
    let email = sessions::member(&mut connection, member.user).await.map_err(database)?.email;
    Ok(Begun { secret: text, otpauth_url: totp::otpauth_url(&secret, &email.unwrap_or_default()) })
}

/// Answers with the QR code of a secret that is not confirmed yet, for the page.
///
/// # Errors
/// 404 without such a secret.
pub(crate) async fn qr(member: Member, app: App) -> Result<Qr, ApiError> {
    let mut connection = app.pool.acquire().await.map_err(database)?;
    let factor = two_factor::lock(&mut connection, member.user).await.map_err(database)?;
    let factor = factor
        .filter(|factor| !factor.is_confirmed)
        .ok_or_else(|| ApiError::not_found("There is no secret to confirm."))?;
    let secret = open(&app, member.user, &factor)?;
    let email = sessions::member(&mut connection, member.user).await.map_err(database)?.email;
    svg(&Modules::of(&totp::otpauth_url(&secret, &email.unwrap_or_default()))?, QR_SIZE)
}

/// Switches two-factor sign-in on with a first code, and answers with the recovery codes.
///
/// # Errors
/// 403 when the code is wrong, 400 when no secret was drawn or it is on already, 429 after too many wrong codes.
pub(crate) async fn confirm(
    member: Member,
    head: Head,
    Json(Code { code }): Json<Code>,
    app: App,
) -> Result<Confirmed, ApiError> {
    let attempt = Attempt::of_member(&app, &head.visit, member.user).await?;
    let mut transaction = app.pool.begin().await.map_err(database)?;
    let factor = two_factor::lock(&mut transaction, member.user).await.map_err(database)?;
    let factor = factor.filter(|factor| !factor.is_confirmed).ok_or_else(|| {
        ApiError::bad_request("There is no secret to confirm. Begin two-factor sign-in first.")
    })?;
    if !takes_code(&mut transaction, &app, member.user, &factor, &code).await? {
        return Err(wrong());
    }
    let codes: Vec<String> = (0..RECOVERY_CODES).map(|_| draw_recovery_code()).collect();
    let digests: Vec<Vec<u8>> = codes.iter().map(|code| digest(code)).collect();
    two_factor::confirm(&mut transaction, member.user, &digests).await.map_err(database)?;
    record(&mut transaction, member.user, "enable-two-factor").await.map_err(database)?;
    transaction.commit().await.map_err(database)?;
    attempt.succeeded(&app).await.map_err(database)?;
    Ok(Confirmed { recovery_codes: codes })
}

/// Switches two-factor sign-in off.
///
/// # Errors
/// 403 when the password or the code is wrong, 429 after too many of these.
pub(crate) async fn remove(
    member: Member,
    head: Head,
    Json(proof): Json<Proof>,
    app: App,
) -> Result<(), ApiError> {
    require_password(&app, &head, &member, proof.password).await?;
    let attempt = Attempt::of_member(&app, &head.visit, member.user).await?;
    let mut transaction = app.pool.begin().await.map_err(database)?;
    if !is_proven(&mut transaction, &app, member.user, Some(&proof.code)).await?.unwrap_or(false) {
        return Err(wrong());
    }
    two_factor::remove(&mut transaction, member.user).await.map_err(database)?;
    record(&mut transaction, member.user, "disable-two-factor").await.map_err(database)?;
    transaction.commit().await.map_err(database)?;
    attempt.succeeded(&app).await.map_err(database)
}

/// Checks the second factor of a member: an authenticator's code or a recovery code, each once. `None` when one is
/// needed and none is given; true when none is needed.
pub(super) async fn is_proven(
    transaction: &mut PgConnection,
    app: &App,
    user: Uuid,
    code: Option<&str>,
) -> Result<Option<bool>, ApiError> {
    let factor = two_factor::lock(&mut *transaction, user).await.map_err(database)?;
    let Some(factor) = factor.filter(|factor| factor.is_confirmed) else { return Ok(Some(true)) };
    let Some(code) = code else { return Ok(None) };
    if takes_code(&mut *transaction, app, user, &factor, code).await? {
        return Ok(Some(true));
    }
    two_factor::take_recovery_code(transaction, user, &digest(code)).await.map(Some).map_err(database)
}

/// Returns whether a code is the authenticator's and was not taken before; it is taken now.
async fn takes_code(
    transaction: &mut PgConnection,
    app: &App,
    user: Uuid,
    factor: &two_factor::Factor,
    code: &str,
) -> Result<bool, ApiError> {
    let secret = open(app, user, factor)?;
    let code: String = code.chars().filter(|c| !c.is_whitespace()).collect();
    match totp::step_of(&secret, &code, Utc::now().timestamp()) {
        Some(step) => two_factor::take_step(transaction, user, step).await.map_err(database),
        None => Ok(false),
    }
}

fn open(app: &App, user: Uuid, factor: &two_factor::Factor) -> Result<Vec<u8>, ApiError> {
    let secret = sealed::open(&app.secret_keys, user.as_bytes(), factor.key_id, &factor.sealed)
        .map_err(ApiError::internal)?;
    Ok(unhex(secret.expose_secret()))
}

async fn record(transaction: &mut PgConnection, user: Uuid, action: &str) -> sqlx::Result<()> {
    let subject = UserId::from_uuid(user).to_string();
    audit::record(transaction, &audit::member(user), action, &subject, Of::User(user), json!({})).await
}

fn wrong() -> ApiError {
    ApiError::forbidden("The code is wrong, or it was used already.")
}

/// Draws a recovery code: four groups of four characters.
fn draw_recovery_code() -> String {
    let rng = &mut rand::rng();
    let characters: Vec<char> =
        (0..RECOVERY_LEN).filter_map(|_| CLEAR.choose(rng)).map(|byte| char::from(*byte)).collect();
    characters.chunks(4).map(|group| group.iter().collect::<String>()).collect::<Vec<_>>().join("-")
}

/// Returns the digest of a recovery code, however it is typed.
fn digest(code: &str) -> Vec<u8> {
    let code: String = code.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    Sha256::digest(code.to_ascii_lowercase()).to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovery_code_is_recognized_however_it_is_typed() {
        let code = draw_recovery_code();
        assert_eq!(code.len(), RECOVERY_LEN + 3);
        assert_ne!(code, draw_recovery_code());
        assert_eq!(digest(&code), digest(&format!(" {} ", code.to_uppercase().replace('-', " "))));
        assert_eq!(unhex(&hex(&[0, 255, 16])), [0, 255, 16]);
    }
}
