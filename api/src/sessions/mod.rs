//! Sessions: who is signed in at the dashboard.
//!
//! A session is a random token in a cookie; the database has its digest. Each sign-in draws a new one, so none that
//! somebody else has put into a browser is ever signed in.

mod cookie;
mod keyed;
mod origin;
mod password;
mod setup;
mod show;
mod sign_in;
mod store;
mod throttle;

use std::time::Duration;

use service::Shutdown;
use service::http::ApiError;
use sqlx::PgPool;
use uuid::Uuid;

pub(crate) use cookie::Cookie;
pub(crate) use password::{Hashing, Password, check as check_password, draw as draw_password};
pub(crate) use setup::{announce, is_needed, set_up, token as setup_token};
pub(crate) use show::show;
pub(crate) use sign_in::{sign_in, sign_out, sign_out_everywhere};
pub(crate) use store::{end_all, is_valid};

use crate::App;
use crate::error::database;
use crate::plan::Plan;
use crate::web::operation::{Access, Principal};
use crate::web::request::{Head, Request};

/// How often ended sessions are removed; they are refused from their end on.
const SWEEP_INTERVAL: Duration = Duration::from_secs(600);

/// A member who is signed in.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) user: Uuid,
    pub(crate) account: Uuid,
    /// The account's plan at this request.
    pub(crate) plan: Plan,
    /// The workspace that was asked for, if it is of the account.
    pub(crate) workspace: Option<Uuid>,
    /// Under which the session is kept.
    pub(crate) digest: [u8; 32],
    is_owner: bool,
}

/// A member who decides about members and workspaces.
#[derive(Debug, Clone)]
pub(crate) struct Owner(pub(crate) Member);

/// A request without a session that the dashboard's own page sent, as far as a browser tells.
pub(crate) struct SentByPage(pub(crate) Head);

impl Principal for SentByPage {
    const ACCESS: Access = Access::Anyone;

    /// Answers 403 to what another site's page may have sent, 429 to an address that asks too often.
    async fn admit(request: &mut Request) -> Result<Self, ApiError> {
        let Request { app, head, .. } = request;
        head.visit.charge_address()?;
        origin::check(&head.method, &head.headers, app.dashboard_url.as_ref())?;
        Ok(Self(head.clone()))
    }
}

impl Principal for Member {
    const ACCESS: Access = Access::Member;

    async fn admit(request: &mut Request) -> Result<Self, ApiError> {
        member_of(&request.app, &request.head, None).await
    }
}

impl Principal for Owner {
    const ACCESS: Access = Access::Owner;

    /// Answers 403 to other members.
    async fn admit(request: &mut Request) -> Result<Self, ApiError> {
        let member = Member::admit(request).await?;
        if member.is_owner {
            return Ok(Self(member));
        }
        Err(ApiError::forbidden("Only an owner of the account can do this."))
    }
}

/// The member whose session the request shows, and whether a workspace is of the member's account.
///
/// # Errors
/// 403 for a change that another site's page may have sent, 401 without a session, 429 to who asks too often.
pub(crate) async fn member_of(app: &App, head: &Head, workspace: Option<Uuid>) -> Result<Member, ApiError> {
    origin::check(&head.method, &head.headers, app.dashboard_url.as_ref())?;
    let found = match cookie::token(&head.headers) {
        Some(token) => {
            let digest = cookie::digest(token);
            store::find(app, &digest, workspace).await.map_err(database)?
        }
        None => None,
    };
    let Some(member) = found else {
        head.visit.charge_address()?;
        return Err(ApiError::unauthorized("Sign in first."));
    };
    head.visit.charge_member(member.user)?;
    Ok(member)
}

/// Removes what has ended, now and then, until shutdown.
pub(crate) async fn sweep(pool: PgPool, shutdown: Shutdown) {
    loop {
        let removed = async { store::remove_ended(&mut *pool.acquire().await?).await };
        if let Err(error) = removed.await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "Ended sessions stay for now; trying again later");
        }
        tokio::select! {
            () = tokio::time::sleep(SWEEP_INTERVAL) => {}
            () = shutdown.wait() => return,
        }
    }
}
