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
use sqlx::{PgConnection, Postgres, Transaction};
use uuid::Uuid;

use crate::app::App;
use crate::error::database;
use crate::plan::Plan;
use crate::resources::links::object;
use crate::store::{accounts, links, outbox};
use crate::web::caller::Caller;

/// Links that one statement changes and one more tells of: what is in memory at a time.
const BATCH: usize = 1_000;

/// [`share`]s the account for a caller that needs a plan with write access, which it may have lost since it was looked
/// up.
pub(crate) async fn share_to_write(transaction: &mut PgConnection, account: Uuid) -> Result<Plan, ApiError> {
    let plan = accounts::share(transaction, account).await.map_err(database)?;
    plan.require_write()?;
    Ok(plan)
}

/// [`share`]s the account for a caller that changes links; see [`Caller::require_edit`].
pub(crate) async fn share_to_edit(transaction: &mut PgConnection, caller: &Caller) -> Result<Plan, ApiError> {
    let plan = accounts::share(transaction, caller.account).await.map_err(database)?;
    caller.require_edit(plan)?;
    Ok(plan)
}

/// [`take`]s the account for a caller that changes links; see [`Caller::require_edit`].
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

/// Locks an account's newest links above the plan's cap and unlocks every other, and tells the edges and the
/// receivers of each link that changed. The transaction must have taken the account.
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

/// Unlocks the oldest locked link for one that was deleted; the transaction must have taken the account.
pub(crate) async fn settle_after_delete(
    transaction: &mut PgConnection,
    app: &App,
    account: Uuid,
    plan: Plan,
) -> sqlx::Result<()> {
    // Nearly always there is none, and then no account is ranked for a deletion.
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
        let messages = rows.iter().flat_map(|row| object::lock_messages(row, app));
        outbox::enqueue_all(transaction, messages).await?;
    }
    Ok(changed)
}

/// Begins a transaction that changes how many links there are, under a plan that lets the caller do so.
///
/// Where links are capped, no other one of the account does so before this one ends.
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
        // The plan has a cap now. Whoever shares must not take, so this begins again.
        transaction.rollback().await.map_err(database)?;
        transaction = app.pool.begin().await.map_err(database)?;
    }
    let plan = take_to_edit(&mut transaction, caller).await?;
    Ok((transaction, plan))
}

/// How many more links the account may have: its plan's cap, over all its workspaces.
#[derive(Debug)]
pub(crate) struct LinkQuota {
    plan: Plan,
    cap: i64,
    left: i64,
}

impl LinkQuota {
    /// Begins a transaction that adds links and counts how many there is room for.
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

    /// The plan, which the transaction holds.
    pub(crate) fn plan(&self) -> Plan {
        self.plan
    }

    /// Whether there is room for so many.
    pub(crate) fn has(&self, links: usize) -> bool {
        i64::try_from(links).is_ok_and(|links| links <= self.left)
    }

    /// Refuses when nothing is left.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        if self.left <= 0 {
            return Err(ApiError::plan_limit(format!(
                "The {} plan allows {} links in all workspaces of the account together. Delete links or upgrade the plan.",
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
