//! The plan's cap on links: locked links, and how many more an account may create.
//!
//! Of an account's links over all its workspaces, the oldest up to the cap are unlocked and the others locked. A locked
//! link redirects and can be deleted, but not edited. [`settle`] locks and unlocks links after a change of the plan or
//! of their number.
//!
//! A transaction that writes for an account first holds its plan: with [`accounts::share`] beside others, with
//! [`accounts::take`] alone, if it counts links or changes their number. The plan may have changed since the caller's
//! key was looked up; the one returned here decides. Every transaction locks the account before any of its links, so
//! that no two deadlock.

use chrono::Utc;
use service::http::ApiError;
use sqlx::{PgConnection, Postgres, Transaction};
use uuid::Uuid;

use crate::app::App;
use crate::error::database;
use crate::plan::Plan;
use crate::resources::links::object;
use crate::store::{accounts, links, outbox};
use crate::web::caller::Caller;

/// Links changed by one statement, which bounds memory.
const BATCH: usize = 1_000;

/// Shares the account for a caller that needs a plan with write access.
pub(crate) async fn share_to_write(transaction: &mut PgConnection, account: Uuid) -> Result<Plan, ApiError> {
    let plan = accounts::share(transaction, account).await.map_err(database)?;
    plan.require_write()?;
    Ok(plan)
}

/// Shares the account for a caller that changes links; see [`Caller::require_edit`].
pub(crate) async fn share_to_edit(transaction: &mut PgConnection, caller: &Caller) -> Result<Plan, ApiError> {
    let plan = accounts::share(transaction, caller.account).await.map_err(database)?;
    caller.require_edit(plan)?;
    Ok(plan)
}

/// Takes the account for a caller that changes links; see [`Caller::require_edit`].
pub(crate) async fn take_to_edit(transaction: &mut PgConnection, caller: &Caller) -> Result<Plan, ApiError> {
    let plan = accounts::take(transaction, caller.account).await.map_err(database)?;
    caller.require_edit(plan)?;
    Ok(plan)
}

/// How many links were locked and unlocked.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) locked: usize,
    pub(crate) unlocked: usize,
}

/// Locks an account's newest links above the plan's cap, unlocks all others, and queues messages about each changed
/// link. The transaction must have taken the account.
pub(crate) async fn settle(
    transaction: &mut PgConnection,
    app: &App,
    account: Uuid,
    plan: Plan,
) -> sqlx::Result<Settled> {
    let misplaced: Vec<(Uuid, bool)> =
        links::misplaced(&mut *transaction, account, app.plans.link_cap(plan)).await?;
    let those = |lock: bool| -> Vec<Uuid> {
        misplaced.iter().filter(|(_, to_lock)| *to_lock == lock).map(|(id, _)| *id).collect()
    };
    Ok(Settled {
        locked: set_locked(transaction, app, &those(true), true).await?,
        unlocked: set_locked(transaction, app, &those(false), false).await?,
    })
}

/// Unlocks the oldest locked link after a deletion. The transaction must have taken the account.
pub(crate) async fn settle_after_delete(
    transaction: &mut PgConnection,
    app: &App,
    account: Uuid,
    plan: Plan,
) -> sqlx::Result<()> {
    // Most accounts have none, and need no ranking of all their links.
    let has_locked: bool = links::has_locked(&mut *transaction, account).await?;
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
        let rows = links::set_locked(&mut *transaction, batch, is_locked, now).await?;
        changed += rows.len();
        let messages = rows.iter().flat_map(|row| object::change_messages(row, app, "is_locked"));
        outbox::enqueue_all(transaction, messages).await?;
    }
    Ok(changed)
}

/// Begins a transaction that changes the number of links, if the plan allows the caller to.
///
/// With a cap, other such transactions of the account wait until this one ends.
pub(crate) async fn begin_count(
    app: &App,
    caller: &Caller,
) -> Result<(Transaction<'static, Postgres>, Plan), ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    if app.plans.link_cap(caller.plan).is_none() {
        let plan = share_to_edit(&mut transaction, caller).await?;
        if app.plans.link_cap(plan).is_none() {
            return Ok((transaction, plan));
        }
        // The plan has a cap now. A transaction that shares must not take, so a new one begins.
        transaction.rollback().await.map_err(database)?;
        transaction = app.pool.begin().await.map_err(database)?;
    }
    let plan = take_to_edit(&mut transaction, caller).await?;
    Ok((transaction, plan))
}

/// How many more links an account may have, over all its workspaces.
#[derive(Debug)]
pub(crate) struct LinkQuota {
    plan: Plan,
    cap: i64,
    left: i64,
}

impl LinkQuota {
    /// Begins a transaction that adds links, and counts how many more are allowed.
    pub(crate) async fn begin(
        app: &App,
        caller: &Caller,
    ) -> Result<(Transaction<'static, Postgres>, Self), ApiError> {
        let (mut transaction, plan) = begin_count(app, caller).await?;
        let quota = match app.plans.link_cap(plan) {
            None => Self { plan, cap: i64::MAX, left: i64::MAX },
            Some(cap) => {
                let links =
                    links::count_of_account(&mut transaction, caller.account).await.map_err(database)?;
                Self { plan, cap, left: cap - links }
            }
        };
        Ok((transaction, quota))
    }

    /// Returns the plan that the transaction holds.
    pub(crate) fn plan(&self) -> Plan {
        self.plan
    }

    /// Returns whether this number of further links is allowed.
    pub(crate) fn has(&self, links: usize) -> bool {
        i64::try_from(links).is_ok_and(|links| links <= self.left)
    }

    /// Fails with `PLAN_LIMIT` when no further link is allowed.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        if self.left <= 0 {
            return Err(ApiError::plan_limit(format!(
                "The {} plan allows {} links in all workspaces of the account together. \
                    Delete links or upgrade the plan.",
                self.plan, self.cap
            )));
        }
        Ok(())
    }

    /// Counts links as if they had been added.
    pub(crate) fn assume(&mut self, links: i64) {
        self.left = self.left.saturating_sub(links);
    }

    /// Counts a link that was added.
    pub(crate) fn take(&mut self) {
        self.left -= 1;
    }
}
