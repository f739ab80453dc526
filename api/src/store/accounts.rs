//! Accounts: their plans, and the lock for changes of a plan and of what it limits.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::plan::Plan;

/// An account.
#[derive(sqlx::FromRow)]
pub(crate) struct AccountRow {
    pub(crate) name: String,
    #[sqlx(try_from = "String")]
    pub(crate) plan: Plan,
    pub(crate) created_at: DateTime<Utc>,
}

/// Inserts an account and its owner, who cannot sign in yet. Returns the ids of both.
pub(crate) async fn insert(
    transaction: &mut PgConnection,
    name: &str,
    plan: Plan,
) -> sqlx::Result<(Uuid, Uuid)> {
    let (account, owner) = (Uuid::now_v7(), Uuid::now_v7());
    sqlx::query("INSERT INTO accounts (id, name, plan) VALUES ($1, $2, $3)")
        .bind(account)
        .bind(name)
        .bind(plan.as_str())
        .execute(&mut *transaction)
        .await?;
    sqlx::query("INSERT INTO users (id, account_id, role) VALUES ($1, $2, 'owner')")
        .bind(owner)
        .bind(account)
        .execute(transaction)
        .await?;
    Ok((account, owner))
}

/// Reads an account.
pub(crate) async fn find(connection: &mut PgConnection, account: Uuid) -> sqlx::Result<Option<AccountRow>> {
    sqlx::query_as("SELECT name, plan, created_at FROM accounts WHERE id = $1")
        .bind(account)
        .fetch_optional(connection)
        .await
}

/// Changes an account's plan.
pub(crate) async fn set_plan(transaction: &mut PgConnection, account: Uuid, plan: Plan) -> sqlx::Result<()> {
    sqlx::query("UPDATE accounts SET plan = $2 WHERE id = $1")
        .bind(account)
        .bind(plan.as_str())
        .execute(transaction)
        .await?;
    Ok(())
}

/// Suspends an account for a reason, or, without one, resumes it; false when it is so already.
pub(crate) async fn set_suspended(
    transaction: &mut PgConnection,
    account: Uuid,
    reason: Option<&str>,
) -> sqlx::Result<bool> {
    let changed = sqlx::query(
        "UPDATE accounts SET suspended_reason = $2, suspended_at = CASE WHEN $2 IS NULL THEN NULL ELSE now() END
         WHERE id = $1 AND (suspended_at IS NULL) <> ($2::text IS NULL)",
    )
    .bind(account)
    .bind(reason)
    .execute(transaction)
    .await?;
    Ok(changed.rows_affected() == 1)
}

/// Keeps an account's plan unchanged until the transaction ends. Other transactions may share it.
///
/// A transaction that has shared must not take: two of them would deadlock. It must begin again.
///
/// # Errors
/// `RowNotFound` when there is no such account.
pub(crate) async fn share(transaction: &mut PgConnection, account: Uuid) -> sqlx::Result<Plan> {
    hold(
        transaction,
        "WITH queue AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared($2))
         SELECT a.plan FROM queue CROSS JOIN accounts a WHERE a.id = $1 FOR SHARE OF a",
        account,
    )
    .await
}

/// Keeps an account's plan and the number of its links unchanged until the transaction ends, exclusively.
///
/// # Errors
/// `RowNotFound` when there is no such account.
pub(crate) async fn take(transaction: &mut PgConnection, account: Uuid) -> sqlx::Result<Plan> {
    hold(
        transaction,
        "WITH queue AS MATERIALIZED (SELECT pg_advisory_xact_lock($2))
         SELECT a.plan FROM queue CROSS JOIN accounts a WHERE a.id = $1 FOR NO KEY UPDATE OF a",
        account,
    )
    .await
}

/// Waits in the account's queue, then locks its row.
///
/// The lock of the row protects: it is read as it is once locked. The queue is for fairness: Postgres lets shared locks
/// pass a waiting exclusive one, and a stream of writes could keep a plan from ever changing. Advisory locks are
/// granted in order.
async fn hold(transaction: &mut PgConnection, query: &'static str, account: Uuid) -> sqlx::Result<Plan> {
    let plan: String =
        sqlx::query_scalar(query).bind(account).bind(queue(account)).fetch_one(transaction).await?;
    plan.parse().map_err(|unknown| sqlx::Error::Decode(Box::new(unknown)))
}

/// Returns the advisory lock of an account's queue.
pub(crate) fn queue(account: Uuid) -> i64 {
    // Random bits behind the variant's `10`: a negative number, which no other advisory lock has.
    let (_, queue) = account.as_u64_pair();
    queue.cast_signed()
}
