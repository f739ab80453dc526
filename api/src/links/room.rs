//! Room for links: the plan's cap, exact over all workspaces of an account and under concurrency.

use service::http::ApiError;
use sqlx::{Postgres, Transaction};

use super::store;
use crate::App;
use crate::auth::Caller;
use crate::error::database;
use crate::locks;
use crate::plan::Plan;

/// Begins a transaction that changes how many links there are, under a plan that lets the caller do so.
///
/// Where links are capped, no other one of the account does so before this one ends.
pub(super) async fn begin_count(
    app: &App,
    caller: &Caller,
) -> Result<(Transaction<'static, Postgres>, Plan), ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    if app.plans.link_cap(caller.plan).is_none() {
        let plan = locks::share_to_edit(&mut transaction, caller).await?;
        if app.plans.link_cap(plan).is_none() {
            return Ok((transaction, plan));
        }
        // The plan has a cap now. Whoever shares must not take, so this begins again.
        transaction.rollback().await.map_err(database)?;
        transaction = app.pool.begin().await.map_err(database)?;
    }
    let plan = locks::take_to_edit(&mut transaction, caller).await?;
    Ok((transaction, plan))
}

/// How many more links the account may have: its plan's cap, over all its workspaces.
#[derive(Debug)]
pub(super) struct Room {
    plan: Plan,
    cap: i64,
    left: i64,
}

impl Room {
    /// Begins a transaction that adds links and counts how many there is room for.
    pub(super) async fn begin(
        app: &App,
        caller: &Caller,
    ) -> Result<(Transaction<'static, Postgres>, Self), ApiError> {
        let (mut transaction, plan) = begin_count(app, caller).await?;
        let room = match app.plans.link_cap(plan) {
            None => Self { plan, cap: i64::MAX, left: i64::MAX },
            Some(cap) => {
                let links =
                    store::count_of_account(&mut transaction, caller.account).await.map_err(database)?;
                Self { plan, cap, left: cap - links }
            }
        };
        Ok((transaction, room))
    }

    /// The plan, which the transaction holds.
    pub(super) fn plan(&self) -> Plan {
        self.plan
    }

    /// Whether there is room for so many.
    pub(super) fn has(&self, links: usize) -> bool {
        i64::try_from(links).is_ok_and(|links| links <= self.left)
    }

    /// Refuses when nothing is left.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        if self.left <= 0 {
            return Err(ApiError::plan_limit(format!(
                "The {} plan allows {} links in all workspaces of the account together. Delete links or upgrade the plan.",
                self.plan, self.cap
            )));
        }
        Ok(())
    }

    /// Counts links as if they had been added.
    pub(super) fn assume(&mut self, links: i64) {
        self.left = self.left.saturating_sub(links);
    }

    /// Counts a link that was added.
    pub(super) fn take(&mut self) {
        self.left -= 1;
    }
}
