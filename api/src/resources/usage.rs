//! `GET /usage`

use serde::Serialize;
use service::http::ApiError;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::app::App;
use crate::error::database;
use crate::plan::Plan;
use crate::store::links;
use crate::web::caller::Caller;

/// An account's plan, its limits, and how much of them is used:
///
/// `{"plan": "agency", "limits": {"links": 25000, "requests_per_minute": 600, "retention_days": 730},
/// "used": {"links": 17}}`
#[derive(Debug, Serialize)]
pub(crate) struct Usage {
    plan: &'static str,
    limits: Limits,
    used: Used,
}

/// The limits of the plan; null is unlimited.
#[derive(Debug, Serialize)]
struct Limits {
    links: Option<i64>,
    requests_per_minute: Option<i64>,
    retention_days: u64,
}

#[derive(Debug, Serialize)]
struct Used {
    /// Over all workspaces of the account, including locked links.
    links: i64,
}

impl Usage {
    /// Reads the usage of an account.
    pub(crate) async fn of_account(
        app: &App,
        connection: &mut PgConnection,
        account: Uuid,
        plan: Plan,
    ) -> sqlx::Result<Self> {
        Ok(Self {
            plan: plan.as_str(),
            limits: Limits {
                links: app.plans.link_cap(plan),
                requests_per_minute: app.plans.requests_per_minute(plan),
                retention_days: app.plans.retention_days(plan),
            },
            used: Used { links: links::count_of_account(connection, account).await? },
        })
    }
}

/// Returns the usage of the caller's account.
pub(crate) async fn usage(caller: Caller, app: App) -> Result<Usage, ApiError> {
    let mut connection = app.pool.acquire().await.map_err(database)?;
    Usage::of_account(&app, &mut connection, caller.account, caller.plan).await.map_err(database)
}
