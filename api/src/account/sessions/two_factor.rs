//! `POST` and `DELETE /app/api/two-factor`, `POST /app/api/two-factor/confirm`, and the code at the sign-in.

use chrono::Utc;
use rand::seq::IndexedRandom as _;
use secrecy::ExposeSecret as _;
use serde::{Deserialize, Serialize};
use service::http::ApiError;
use service::sealed::{self, SealError, Sealed};
use sha2::{Digest as _, Sha256};
use sqlx::PgConnection;
use uuid::Uuid;

use super::member::Member;
use super::new_password::require_password;
use super::password::{CLEAR, Password};
use super::throttle::{CountedCode, forget_codes};
use super::totp;
use crate::app::App;
use crate::error::database;
use crate::store::{audit, sessions, two_factor};
use crate::web::qr::{Modules, Qr, svg};
use crate::web::request::{Head, Json, Query};

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

/// The body of a begin.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Current {
    password: Password,
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
/// 403 when the password is wrong, 429 after too many of these, 400 when two-factor sign-in is on.
pub(crate) async fn begin(
    member: Member,
    head: Head,
    Json(Current { password }): Json<Current>,
    app: App,
) -> Result<Begun, ApiError> {
    require_password(&app, &head, &member, password).await?;
    let secret: [u8; totp::SECRET_LEN] = rand::random();
    let text = totp::base32(&secret);
    let sealed = seal(&app, &owner_of_pending(&member), &secret)?;
    let begun = two_factor::begin(&app.pool, member.user, &sealed).await.map_err(database)?;
    if !begun {
        return Err(ApiError::bad_request("Two-factor sign-in is on already. Switch it off first."));
    }
    let mut connection = app.pool.acquire().await.map_err(database)?;
    let email = sessions::member(&mut connection, member.user).await.map_err(database)?.email;
    Ok(Begun { secret: text, otpauth_url: totp::otpauth_url(&secret, &email.unwrap_or_default()) })
}

/// The query of the QR code.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Turn {
    /// A number that changes with the secret, so that the page loads the next one's picture.
    #[serde(rename = "turn")]
    _turn: Option<u32>,
}

/// Answers with the QR code of a secret that is not confirmed yet, for the page.
///
/// # Errors
/// 404 without such a secret.
pub(crate) async fn qr(member: Member, Query(_): Query<Turn>, app: App) -> Result<Qr, ApiError> {
    let mut connection = app.pool.acquire().await.map_err(database)?;
    let secret = pending(&app, &mut connection, &member).await?;
    let secret = secret.ok_or_else(|| ApiError::not_found("There is no secret to confirm."))?;
    let email = sessions::member(&mut connection, member.user).await.map_err(database)?.email;
    svg(&Modules::of(&totp::otpauth_url(&secret, &email.unwrap_or_default()))?, QR_SIZE)
}

/// Switches two-factor sign-in on with a first code, ends the member's other sessions, and answers with the recovery
/// codes.
///
/// # Errors
/// 403 when the code is wrong, 400 when no secret was drawn or it is on already, 429 after too many wrong codes.
pub(crate) async fn confirm(
    member: Member,
    Json(Code { code }): Json<Code>,
    app: App,
) -> Result<Confirmed, ApiError> {
    // Before the code is counted: a session alone must not use up a member's codes.
    let mut connection = app.pool.acquire().await.map_err(database)?;
    pending(&app, &mut connection, &member).await?.ok_or_else(nothing_to_confirm)?;
    drop(connection);
    let code = CountedCode::count(&app, member.user, code).await?;
    let mut transaction = app.pool.begin().await.map_err(database)?;
    let secret = pending(&app, &mut transaction, &member).await?.ok_or_else(nothing_to_confirm)?;
    // A session that a new password has ended meanwhile must not end the others.
    if !sessions::hold(&mut transaction, &member.digest).await.map_err(database)? {
        return Err(ApiError::unauthorized("Sign in first."));
    }
    if !takes_code(&mut transaction, &secret, &code).await? {
        return Err(wrong());
    }
    let sealed = seal(&app, member.user.as_bytes(), &secret)?;
    two_factor::set_secret(&mut transaction, member.user, &sealed).await.map_err(database)?;
    let codes: Vec<String> = (0..RECOVERY_CODES).map(|_| draw_recovery_code()).collect();
    let digests: Vec<Vec<u8>> = codes.iter().map(|code| digest(code)).collect();
    two_factor::confirm(&mut transaction, member.user, &digests).await.map_err(database)?;
    // They began with the password alone.
    sessions::end_others(&mut transaction, member.user, &member.digest).await.map_err(database)?;
    audit::record_own(&mut transaction, member.user, "enable-two-factor").await.map_err(database)?;
    forget_codes(&mut transaction, &app, member.user).await.map_err(database)?;
    transaction.commit().await.map_err(database)?;
    Ok(Confirmed { recovery_codes: codes })
}

/// Switches two-factor sign-in off.
///
/// # Errors
/// 403 when the password or the code is wrong, 429 after too many of these, 400 when it is off.
pub(crate) async fn remove(
    member: Member,
    head: Head,
    Json(proof): Json<Proof>,
    app: App,
) -> Result<(), ApiError> {
    require_password(&app, &head, &member, proof.password).await?;
    if two_factor::confirmed_at(&app.pool, member.user).await.map_err(database)?.is_none() {
        return Err(ApiError::bad_request("Two-factor sign-in is off."));
    }
    let code = CountedCode::count(&app, member.user, proof.code).await?;
    let mut transaction = app.pool.begin().await.map_err(database)?;
    if !is_proven(&mut transaction, &app, &code).await? {
        return Err(wrong());
    }
    two_factor::remove(&mut transaction, member.user).await.map_err(database)?;
    audit::record_own(&mut transaction, member.user, "disable-two-factor").await.map_err(database)?;
    forget_codes(&mut transaction, &app, member.user).await.map_err(database)?;
    transaction.commit().await.map_err(database)
}

/// Removes the second factor of a member who lost it, and ends the member's sessions.
pub(crate) async fn reset(transaction: &mut PgConnection, app: &App, user: Uuid) -> sqlx::Result<()> {
    two_factor::remove(&mut *transaction, user).await?;
    sessions::end_all(&mut *transaction, user).await?;
    forget_codes(transaction, app, user).await
}

/// Takes a code at the sign-in; false when it is wrong.
///
/// # Errors
/// 429 after too many wrong codes.
pub(super) async fn take(app: &App, user: Uuid, code: String) -> Result<bool, ApiError> {
    let code = CountedCode::count(app, user, code).await?;
    let mut transaction = app.pool.begin().await.map_err(database)?;
    let is_proven = is_proven(&mut transaction, app, &code).await?;
    if is_proven {
        forget_codes(&mut transaction, app, user).await.map_err(database)?;
    }
    transaction.commit().await.map_err(database)?;
    Ok(is_proven)
}

/// Takes an authenticator's code or a recovery code, each once; false when it is wrong or the second factor is off.
async fn is_proven(transaction: &mut PgConnection, app: &App, code: &CountedCode) -> Result<bool, ApiError> {
    let factor = two_factor::lock(&mut *transaction, code.user).await.map_err(database)?;
    let Some(factor) = factor.filter(|factor| factor.is_confirmed) else { return Ok(false) };
    let secret = open(app, code.user.as_bytes(), &factor).map_err(ApiError::internal)?;
    if takes_code(&mut *transaction, &secret, code).await? {
        return Ok(true);
    }
    two_factor::take_recovery_code(transaction, code.user, &digest(&code.code)).await.map_err(database)
}

/// Returns whether a code is the authenticator's and was not taken before; it is taken now.
async fn takes_code(
    transaction: &mut PgConnection,
    secret: &[u8],
    CountedCode { user, code }: &CountedCode,
) -> Result<bool, ApiError> {
    let code: String = code.chars().filter(|c| !c.is_whitespace()).collect();
    match totp::step_of(secret, &code, Utc::now().timestamp()) {
        Some(step) => two_factor::take_step(transaction, *user, step).await.map_err(database),
        None => Ok(false),
    }
}

/// Reads the secret that this session drew and nobody has confirmed. Another session of the member, which needed no
/// password, cannot open it.
async fn pending(
    app: &App,
    connection: &mut PgConnection,
    member: &Member,
) -> Result<Option<Vec<u8>>, ApiError> {
    let factor = two_factor::lock(connection, member.user).await.map_err(database)?;
    let factor = factor.filter(|factor| !factor.is_confirmed);
    Ok(factor.and_then(|factor| open(app, &owner_of_pending(member), &factor).ok()))
}

/// Whom an unconfirmed secret is sealed for: the member in the session that drew it.
fn owner_of_pending(member: &Member) -> [u8; 16] {
    let digest = Sha256::new().chain_update(member.user).chain_update(member.digest).finalize();
    std::array::from_fn(|place| digest[place])
}

fn seal(app: &App, owner: &[u8; 16], secret: &[u8]) -> Result<Sealed, ApiError> {
    sealed::seal(&app.secret_keys, owner, &hex(secret), rand::random()).map_err(ApiError::internal)
}

fn open(app: &App, owner: &[u8; 16], factor: &two_factor::Factor) -> Result<Vec<u8>, SealError> {
    let secret = sealed::open(&app.secret_keys, owner, factor.key_id, &factor.sealed)?;
    Ok(unhex(secret.expose_secret()))
}

fn nothing_to_confirm() -> ApiError {
    ApiError::bad_request("There is no secret to confirm. Begin two-factor sign-in first.")
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
