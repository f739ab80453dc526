//! Attempts to sign in of the last quarter of an hour, by the keyed hash of an address, an email, a browser, or a
//! member whose password or code was asked.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor, PgPool};

/// Counts an attempt. Returns the number of attempts, and when it is reset.
pub(crate) async fn count(pool: &PgPool, who: &[u8; 32]) -> sqlx::Result<(i32, DateTime<Utc>)> {
    sqlx::query_as(
        "INSERT INTO sign_in_attempts AS a (who, began_at, attempts) VALUES ($1, now(), 1)
         ON CONFLICT (who) DO UPDATE
         SET began_at = CASE WHEN a.began_at < now() - interval '15 minutes' THEN now() ELSE a.began_at END,
             attempts = CASE WHEN a.began_at < now() - interval '15 minutes' THEN 1
                             ELSE least(a.attempts + 1, 1000000) END
         RETURNING attempts, began_at + interval '15 minutes'",
    )
    .bind(&who[..])
    .fetch_one(pool)
    .await
}

/// Removes all attempts of `who`.
pub(crate) async fn clear(executor: impl PgExecutor<'_>, who: &[[u8; 32]]) -> sqlx::Result<()> {
    let who: Vec<&[u8]> = who.iter().map(|who| &who[..]).collect();
    sqlx::query("DELETE FROM sign_in_attempts WHERE who = ANY($1)").bind(who).execute(executor).await?;
    Ok(())
}

/// Removes one attempt.
pub(crate) async fn take_back(pool: &PgPool, who: &[u8; 32]) -> sqlx::Result<()> {
    sqlx::query("UPDATE sign_in_attempts SET attempts = greatest(attempts - 1, 0) WHERE who = $1")
        .bind(&who[..])
        .execute(pool)
        .await?;
    Ok(())
}

/// Removes attempts that no longer count. Returns how many.
pub(crate) async fn remove_ended(connection: &mut PgConnection) -> sqlx::Result<u64> {
    let removed = sqlx::query("DELETE FROM sign_in_attempts WHERE began_at < now() - interval '15 minutes'")
        .execute(connection)
        .await?;
    Ok(removed.rows_affected())
}
