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

use http::{HeaderMap, Method};
use service::Shutdown;
use service::http::ApiError;
use sqlx::PgPool;
use uuid::Uuid;
use warp::{Filter, Rejection};

pub(crate) use cookie::Cookie;
pub(crate) use password::{Hashing, Password, check as check_password, draw as draw_password};
pub(crate) use setup::{announce, is_needed, set_up, token as setup_token};
pub(crate) use show::show;
pub(crate) use sign_in::{SignedIn, sign_in, sign_out, sign_out_everywhere};
pub(crate) use store::{end_all, is_valid};

use crate::App;
use crate::error::database;
use crate::limits::{Visit, visit};
use crate::plan::Plan;

/// Where the operations of a workspace are, in front of its id.
const WORKSPACES: &str = "/app/api/workspaces/";

/// How often ended sessions are removed; they are refused from their end on.
const SWEEP_INTERVAL: Duration = Duration::from_secs(600);

/// What a request shows of who asks.
#[derive(Clone)]
pub(crate) struct Presented {
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) visit: Visit,
}

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

/// Extracts what the request shows.
pub(crate) fn presented() -> impl Filter<Extract = (Presented,), Error = Rejection> + Clone {
    warp::method().and(warp::header::headers_cloned()).and(visit()).map(|method, headers, visit| Presented {
        method,
        headers,
        visit,
    })
}

/// Lets through what this page sent, or nobody's page; answers 403 to what another site's page may have sent.
pub(crate) fn own_page(app: &App) -> impl Filter<Extract = (Presented,), Error = Rejection> + Clone + use<> {
    let app = app.clone();
    presented().and_then(move |presented: Presented| {
        let checked = origin::check(&presented.method, &presented.headers, app.dashboard_url.as_ref());
        async move { checked.map(|()| presented).map_err(warp::reject::custom) }
    })
}

/// Extracts the member; answers 401 to anyone else.
pub(crate) fn member(app: &App) -> impl Filter<Extract = (Member,), Error = Rejection> + Clone + use<> {
    let app = app.clone();
    presented().and_then(move |presented: Presented| {
        let app = app.clone();
        async move { member_of(&app, &presented, None).await.map_err(warp::reject::custom) }
    })
}

/// Extracts an owner; answers 403 to other members.
pub(crate) fn owner(app: &App) -> impl Filter<Extract = (Owner,), Error = Rejection> + Clone + use<> {
    member(app).and_then(|member: Member| async move {
        if member.is_owner {
            return Ok(Owner(member));
        }
        Err(warp::reject::custom(ApiError::forbidden("Only an owner of the account can do this.")))
    })
}

/// The text that stands for a workspace's id in a path of the dashboard.
pub(crate) fn workspace_in(path: &str) -> Option<&str> {
    path.strip_prefix(WORKSPACES).and_then(|rest| rest.split('/').next())
}

/// The member whose session the request shows, and whether a workspace is of the member's account.
///
/// # Errors
/// 403 for a change that another site's page may have sent, 401 without a session, 429 to who asks too often.
pub(crate) async fn member_of(
    app: &App,
    presented: &Presented,
    workspace: Option<Uuid>,
) -> Result<Member, ApiError> {
    origin::check(&presented.method, &presented.headers, app.dashboard_url.as_ref())?;
    let found = match cookie::token(&presented.headers) {
        Some(token) => {
            let digest = cookie::digest(token);
            store::find(app, &digest, workspace).await.map_err(database)?
        }
        None => None,
    };
    let Some(member) = found else {
        presented.visit.charge_address()?;
        return Err(ApiError::unauthorized("Sign in first."));
    };
    presented.visit.charge_member(member.user)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_path_of_a_workspace_names_one() {
        assert_eq!(workspace_in("/app/api/workspaces/wsp_1/links"), Some("wsp_1"));
        assert_eq!(workspace_in("/app/api/workspaces/wsp_1"), Some("wsp_1"));
        for path in [
            "/api/links",
            "/api/v1/links",
            "/app/api/workspaces",
            "/app/api/session",
            "//app/api/workspaces/a",
        ] {
            assert_eq!(workspace_in(path), None, "{path}");
        }
    }
}
