//! Second factors of members.

use chrono::{DateTime, Utc};
use service::sealed::Sealed;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// A member's second factor.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct Factor {
    pub(crate) key_id: i16,
    pub(crate) sealed: Vec<u8>,
    pub(crate) is_confirmed: bool,
}

/// Stores a secret that is not confirmed yet; false when a confirmed one is there.
pub(crate) async fn begin(pool: &PgPool, user: Uuid, secret: &Sealed) -> sqlx::Result<bool> {
    let begun = sqlx::query(
        "UPDATE users SET totp_key_id = $2, totp_sealed = $3, totp_last_step = 0
         WHERE id = $1 AND totp_confirmed_at IS NULL",
    )
    .bind(user)
    .bind(i16::from(secret.key_id))
    .bind(&secret.bytes)
    .execute(pool)
    .await?;
    Ok(begun.rows_affected() == 1)
}

/// Reads when a member's second factor was confirmed; `None` when it is off.
pub(crate) async fn confirmed_at(pool: &PgPool, user: Uuid) -> sqlx::Result<Option<DateTime<Utc>>> {
    sqlx::query_scalar("SELECT totp_confirmed_at FROM users WHERE id = $1").bind(user).fetch_one(pool).await
}

/// Reads a member's second factor, locked until the transaction ends.
pub(crate) async fn lock(transaction: &mut PgConnection, user: Uuid) -> sqlx::Result<Option<Factor>> {
    sqlx::query_as(
        "SELECT totp_key_id AS key_id, totp_sealed AS sealed, totp_confirmed_at IS NOT NULL AS is_confirmed
         FROM users WHERE id = $1 AND totp_sealed IS NOT NULL FOR NO KEY UPDATE",
    )
    .bind(user)
    .fetch_optional(transaction)
    .await
}

/// Takes the code of a step; false when that step or a later one was taken before.
pub(crate) async fn take_step(transaction: &mut PgConnection, user: Uuid, step: i64) -> sqlx::Result<bool> {
    let taken = sqlx::query("UPDATE users SET totp_last_step = $2 WHERE id = $1 AND totp_last_step < $2")
        .bind(user)
        .bind(step)
        .execute(transaction)
        .await?;
    Ok(taken.rows_affected() == 1)
}

/// Confirms a member's secret, and stores the digests of recovery codes.
pub(crate) async fn confirm(
    transaction: &mut PgConnection,
    user: Uuid,
    recovery_codes: &[Vec<u8>],
) -> sqlx::Result<()> {
    sqlx::query("UPDATE users SET totp_confirmed_at = now() WHERE id = $1")
        .bind(user)
        .execute(&mut *transaction)
        .await?;
    sqlx::query("INSERT INTO recovery_codes (user_id, code_sha256) SELECT $1, * FROM unnest($2::bytea[])")
        .bind(user)
        .bind(recovery_codes)
        .execute(transaction)
        .await?;
    Ok(())
}

/// Takes a recovery code; false when there is no such one.
pub(crate) async fn take_recovery_code(
    transaction: &mut PgConnection,
    user: Uuid,
    digest: &[u8],
) -> sqlx::Result<bool> {
    let taken = sqlx::query("DELETE FROM recovery_codes WHERE user_id = $1 AND code_sha256 = $2")
        .bind(user)
        .bind(digest)
        .execute(transaction)
        .await?;
    Ok(taken.rows_affected() == 1)
}

/// Removes a member's second factor and recovery codes.
pub(crate) async fn remove(transaction: &mut PgConnection, user: Uuid) -> sqlx::Result<()> {
    sqlx::query(
        "UPDATE users SET totp_key_id = NULL, totp_sealed = NULL, totp_confirmed_at = NULL WHERE id = $1",
    )
    .bind(user)
    .execute(&mut *transaction)
    .await?;
    sqlx::query("DELETE FROM recovery_codes WHERE user_id = $1").bind(user).execute(transaction).await?;
    Ok(())
}

/// Reads the members whose confirmed secret another key than `key` sealed. An unconfirmed one is drawn again.
pub(crate) async fn sealed_with_another_key(pool: &PgPool, key: i16) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar(
        "SELECT id FROM users WHERE totp_key_id <> $1 AND totp_confirmed_at IS NOT NULL ORDER BY id",
    )
    .bind(key)
    .fetch_all(pool)
    .await
}

/// Stores the same secret under another seal.
pub(crate) async fn set_secret(
    transaction: &mut PgConnection,
    user: Uuid,
    secret: &Sealed,
) -> sqlx::Result<()> {
    sqlx::query("UPDATE users SET totp_key_id = $2, totp_sealed = $3 WHERE id = $1")
        .bind(user)
        .bind(i16::from(secret.key_id))
        .bind(&secret.bytes)
        .execute(transaction)
        .await?;
    Ok(())
}
