//! Locked links: what of an account is over its plan's cap, and the account's lock under which that is decided.
//!
//! Of an account's links over all its workspaces the oldest, up to the cap, are free and the rest are locked.
//! [`settle`] makes that so, whichever way a plan or the number of links changed. A locked link keeps redirecting;
//! it cannot be edited, and it can be deleted.
//!
//! Whoever writes for an account first holds its plan: with [`share`] where writers need not know of each other,
//! with [`take`] where they count links or change what is counted. Then neither plan nor count changes until the
//! transaction ends. The plan may have changed since the caller's key was looked up: what counts is the one that
//! these return. The account comes before any of its links in every transaction, so that none wait crosswise.

use chrono::Utc;
use service::http::ApiError;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::App;
use crate::auth::Caller;
use crate::error::database;
use crate::links::{self, LinkRow};
use crate::outbox;
use crate::plan::Plan;

/// Links that one statement changes and one more tells of: what is in memory at a time.
const BATCH: usize = 1_000;

/// Keeps an account's plan as it is until the transaction ends, beside others that do the same.
///
/// A transaction that shares must not take afterwards: two that did would wait for each other. It starts again.
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

/// Keeps an account's plan and the number of its links as they are until the transaction ends, alone.
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

/// [`share`]s the account for a caller that needs a plan with write access, which it may have lost since it was looked
/// up.
pub(crate) async fn share_to_write(transaction: &mut PgConnection, account: Uuid) -> Result<Plan, ApiError> {
    let plan = share(transaction, account).await.map_err(database)?;
    plan.require_write()?;
    Ok(plan)
}

/// [`share`]s the account for a caller that changes links; see [`Caller::require_edit`].
pub(crate) async fn share_to_edit(transaction: &mut PgConnection, caller: &Caller) -> Result<Plan, ApiError> {
    let plan = share(transaction, caller.account).await.map_err(database)?;
    caller.require_edit(plan)?;
    Ok(plan)
}

/// [`take`]s the account for a caller that changes links; see [`Caller::require_edit`].
pub(crate) async fn take_to_edit(transaction: &mut PgConnection, caller: &Caller) -> Result<Plan, ApiError> {
    let plan = take(transaction, caller.account).await.map_err(database)?;
    caller.require_edit(plan)?;
    Ok(plan)
}

/// Waits in the account's queue, then locks its row.
///
/// The row's lock is what protects: it reads the row as it is once it is locked, not as it was when the statement
/// began. The queue is for fairness: Postgres lets those who share a row past one who waits to take it, so a storm of
/// writes would keep a plan from ever changing. Advisory locks are given in the order in which they are asked for.
async fn hold(transaction: &mut PgConnection, query: &'static str, account: Uuid) -> sqlx::Result<Plan> {
    let plan: String =
        sqlx::query_scalar(query).bind(account).bind(queue(account)).fetch_one(transaction).await?;
    plan.parse().map_err(|unknown| sqlx::Error::Decode(Box::new(unknown)))
}

/// Returns the advisory lock that is an account's queue.
pub(crate) fn queue(account: Uuid) -> i64 {
    // Random bits below the variant's `10`, so as a number below zero, where no other advisory lock of ours is.
    let (_, queue) = account.as_u64_pair();
    queue.cast_signed()
}

/// How many links were locked and unlocked.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) locked: usize,
    pub(crate) unlocked: usize,
}

/// Locks an account's newest links above the plan's cap and unlocks every other, and tells the edges and the
/// receivers of each link that changed. The transaction must have taken the account.
pub(crate) async fn settle(
    transaction: &mut PgConnection,
    app: &App,
    account: Uuid,
    plan: Plan,
) -> sqlx::Result<Settled> {
    let misplaced: Vec<(Uuid, bool)> = sqlx::query_as(
        "SELECT id, NOT is_locked FROM (
             SELECT l.id, l.is_locked, row_number() OVER (ORDER BY l.created_at, l.id) > $2 AS is_over
             FROM links l JOIN workspaces w ON w.id = l.workspace_id
             WHERE w.account_id = $1
         ) AS ranked
         WHERE is_over <> is_locked",
    )
    .bind(account)
    .bind(app.plans.link_cap(plan).unwrap_or(i64::MAX))
    .fetch_all(&mut *transaction)
    .await?;
    let those = |lock: bool| -> Vec<Uuid> {
        misplaced.iter().filter(|(_, to_lock)| *to_lock == lock).map(|(id, _)| *id).collect()
    };
    Ok(Settled {
        locked: set_locked(transaction, app, &those(true), true).await?,
        unlocked: set_locked(transaction, app, &those(false), false).await?,
    })
}

/// Unlocks the oldest locked link for one that was deleted; the transaction must have taken the account.
pub(crate) async fn settle_after_delete(
    transaction: &mut PgConnection,
    app: &App,
    account: Uuid,
    plan: Plan,
) -> sqlx::Result<()> {
    // Nearly always there is none, and then no account is ranked for a deletion.
    let has_locked: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM links l JOIN workspaces w ON w.id = l.workspace_id
                        WHERE w.account_id = $1 AND l.is_locked)",
    )
    .bind(account)
    .fetch_one(&mut *transaction)
    .await?;
    if has_locked {
        settle(transaction, app, account, plan).await?;
    }
    Ok(())
}

async fn set_locked(
    transaction: &mut PgConnection,
    app: &App,
    links: &[Uuid],
    is_locked: bool,
) -> sqlx::Result<usize> {
    let now = schemas::time::to_millis(Utc::now());
    let mut changed = 0;
    for batch in links.chunks(BATCH) {
        // Never before the creation, whatever the clock did in between.
        let rows: Vec<LinkRow> = sqlx::query_as(
            "UPDATE links SET is_locked = $2, revision = revision + 1, updated_at = greatest(created_at, $3)
             WHERE id = ANY($1) RETURNING *",
        )
        .bind(batch)
        .bind(is_locked)
        .bind(now)
        .fetch_all(&mut *transaction)
        .await?;
        changed += rows.len();
        let messages = rows.iter().flat_map(|row| links::told_of_lock(row, app));
        outbox::enqueue_all(transaction, messages).await?;
    }
    Ok(changed)
}
