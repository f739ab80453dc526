//! Which dispatchers are running, and the leases of dead ones.
//!
//! A dispatcher holds an advisory lock on its number as long as its connection lasts. Postgres notices the end of a
//! killed process's connection immediately, so its leases can be released before they expire.

use sqlx::{PgConnection, PgPool};

/// The class of these advisory locks, different from all others in the database.
const CLASS: i32 = 0x0d15;

/// Ensures that this dispatcher is registered and holds the lock on its number, and returns the number: a new one if it
/// was not registered any more.
pub(crate) async fn register(connection: &mut PgConnection, number: Option<i32>) -> sqlx::Result<i32> {
    // Session locks are counted, so a lock that is held already is taken once more and released once. If another
    // dispatcher holds it, that one is removing this dispatcher right now.
    if let Some(number) = number {
        let held: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM dispatchers WHERE number = $2)
                    AND EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
                                AND classid = $1::integer::oid AND objid = $2::integer::oid AND objsubid = 2)",
        )
        .bind(CLASS)
        .bind(number)
        .fetch_one(&mut *connection)
        .await?;
        if held {
            return Ok(number);
        }
        let retaken: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM dispatchers WHERE number = $2) AND pg_try_advisory_lock($1, $2)",
        )
        .bind(CLASS)
        .bind(number)
        .fetch_one(&mut *connection)
        .await?;
        if retaken {
            return Ok(number);
        }
    }
    // The row becomes visible to others only after the lock is held.
    sqlx::query_scalar(
        "WITH new AS (INSERT INTO dispatchers DEFAULT VALUES RETURNING number)
         SELECT number FROM new WHERE pg_advisory_lock($1, number) IS NOT NULL",
    )
    .bind(CLASS)
    .fetch_one(connection)
    .await
}

/// Returns the registered dispatchers that do not hold their lock.
pub(crate) async fn dead(connection: &mut PgConnection) -> sqlx::Result<Vec<i32>> {
    sqlx::query_scalar(
        "SELECT number FROM dispatchers d
         WHERE NOT EXISTS (
             SELECT FROM pg_locks l
             WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = $1::integer::oid
               AND l.objid = d.number::oid
               AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
         )",
    )
    .bind(CLASS)
    .fetch_all(connection)
    .await
}

/// Releases the leases of a dead dispatcher and removes its row; `None` when it is running after all.
pub(crate) async fn remove_dead(pool: &PgPool, number: i32) -> sqlx::Result<Option<u64>> {
    let mut transaction = pool.begin().await?;
    let is_dead: bool = sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1, $2)")
        .bind(CLASS)
        .bind(number)
        .fetch_one(&mut *transaction)
        .await?;
    if !is_dead {
        return Ok(None);
    }
    let freed = sqlx::query(
        "UPDATE webhook_deliveries SET lease_until = NULL, lease_token = NULL, leased_by = NULL
         WHERE leased_by = $1",
    )
    .bind(number)
    .execute(&mut *transaction)
    .await?;
    sqlx::query("DELETE FROM dispatchers WHERE number = $1").bind(number).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(Some(freed.rows_affected()))
}
