//! Which dispatchers are running, and what those that are not have left behind.
//!
//! A dispatcher holds an advisory lock under its number for as long as its connection lasts. Postgres knows of the
//! end of a connection at once, so the leases of a killed process need not run out.

use sqlx::{PgConnection, PgPool};

/// Keeps these locks apart from all others in the database.
const CLASS: i32 = 0x0d15;

/// Makes sure that this dispatcher is known and holds the lock of its number; a new number when it is not, or no more.
pub(crate) async fn register(connection: &mut PgConnection, number: Option<i32>) -> sqlx::Result<i32> {
    // Locks of a session count: holding it already is one more, given back at once. A lock that somebody else holds
    // for the moment means that this dispatcher is being buried.
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
    // The row is seen by others only when the lock is held.
    sqlx::query_scalar(
        "WITH new AS (INSERT INTO dispatchers DEFAULT VALUES RETURNING number)
         SELECT number FROM new WHERE pg_advisory_lock($1, number) IS NOT NULL",
    )
    .bind(CLASS)
    .fetch_one(connection)
    .await
}

/// Returns the dispatchers whose lock nobody holds.
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

/// Frees what a dead dispatcher had leased, and forgets it; none when it is not dead after all.
pub(crate) async fn bury(pool: &PgPool, number: i32) -> sqlx::Result<Option<u64>> {
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
