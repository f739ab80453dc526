//! The members who may call the operations of the dashboard.

use service::http::ApiError;
use uuid::Uuid;

use super::{cookie, origin};
use crate::app::App;
use crate::plan::Plan;
use crate::store::role::Role;
use crate::store::sessions;
use crate::web::operation::{Access, Principal};
use crate::web::request::{Head, Request};

/// A member who is signed in.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) user: Uuid,
    pub(crate) account: Uuid,
    /// The account's plan at this request.
    pub(crate) plan: Plan,
    /// The requested workspace, if the account owns it.
    pub(crate) workspace: Option<Uuid>,
    /// The digest of the session's token.
    pub(crate) digest: [u8; 32],
    /// What the member may do.
    pub(crate) role: Role,
}

/// A member who may change members and workspaces.
#[derive(Debug, Clone)]
pub(crate) struct Owner(pub(crate) Member);

/// A request that needs no session and comes from the dashboard's own page.
pub(crate) struct SentByPage(pub(crate) Head);

impl Principal for SentByPage {
    const ACCESS: Access = Access::Anyone;

    /// Rejects a request of another site's page with 403, and an address above its limit with 429.
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

    /// Rejects other members with 403.
    async fn admit(request: &mut Request) -> Result<Self, ApiError> {
        let member = Member::admit(request).await?;
        if matches!(member.role, Role::Owner) {
            return Ok(Self(member));
        }
        Err(ApiError::forbidden("Only an owner of the account can do this."))
    }
}

fn not_signed_in() -> ApiError {
    ApiError::unauthorized("Sign in first.")
}

/// The error of every operation of a suspended account.
pub(crate) fn suspended() -> ApiError {
    ApiError::account_suspended("The operator of this service has suspended the account.")
}

/// Finds the member of a request's session, and the workspace if the member's account owns it.
///
/// # Errors
/// 403 for a change of another site's page or in a suspended account, 401 without a session, 429 above the limit of the
/// member, or of the address for a session that this instance does not know, 503 without Postgres.
pub(crate) async fn member_of(app: &App, head: &Head, workspace: Option<Uuid>) -> Result<Member, ApiError> {
    origin::check(&head.method, &head.headers, app.dashboard_url.as_ref())?;
    let Some(digest) = cookie::token(&head.headers).map(cookie::digest) else {
        head.visit.charge_address()?;
        return Err(not_signed_in());
    };
    let found = sessions::find(&app.pool, &digest, workspace);
    let row = head.visit.look_up(&digest, found).await?.ok_or_else(not_signed_in)?;
    head.visit.charge_member(row.user_id)?;
    if row.is_suspended {
        return Err(suspended());
    }
    Ok(Member {
        user: row.user_id,
        account: row.account_id,
        plan: row.plan,
        workspace: row.workspace_id,
        digest,
        role: row.role,
    })
}
