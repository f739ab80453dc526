//! `GET /app/api/session`

use schemas::id::{AccountId, UserId};
use serde::Serialize;
use service::http::ApiError;
use uuid::Uuid;

use super::member::Member;
use crate::app::{App, CountrySource};
use crate::error::database;
use crate::store::workspaces::Workspace;
use crate::store::{sessions, workspaces};

/// The member who is signed in, as the page shows it.
#[derive(Debug, Serialize)]
pub(crate) struct Session {
    user: SessionUser,
    account: SessionAccount,
    workspaces: Vec<Workspace>,
    public_url: String,
    /// The attribution to show beside countries, if their source requires one.
    attribution: Option<Attribution>,
}

#[derive(Debug, Serialize)]
struct Attribution {
    text: &'static str,
    url: &'static str,
}

impl Attribution {
    const fn of(source: CountrySource) -> Option<Self> {
        match source {
            // The wording that the licence requires; see NOTICE.
            CountrySource::DbIp => Some(Self { text: "IP Geolocation by DB-IP", url: "https://db-ip.com" }),
            CountrySource::Other => None,
        }
    }
}

#[derive(Debug, Serialize)]
struct SessionUser {
    id: UserId,
    name: String,
    email: String,
    role: String,
    /// Whether a code is asked for at the sign-in.
    two_factor: bool,
}

#[derive(Debug, Serialize)]
struct SessionAccount {
    id: AccountId,
    name: String,
    plan: String,
}

/// Answers with the member who is signed in, the account and its workspaces.
pub(crate) async fn show(member: Member, app: App) -> Result<Session, ApiError> {
    Session::read(&app, member.user).await.map_err(database)
}

impl Session {
    /// Reads what the page shows of a member.
    pub(super) async fn read(app: &App, user: Uuid) -> sqlx::Result<Self> {
        let mut connection = app.pool.acquire().await?;
        let row = sessions::member(&mut connection, user).await?;
        let workspaces = workspaces::of_account(&mut connection, row.account_id).await?;
        Ok(Self {
            user: SessionUser {
                id: UserId::from_uuid(user),
                name: row.name,
                email: row.email.unwrap_or_default(),
                role: row.role,
                two_factor: row.has_two_factor,
            },
            account: SessionAccount {
                id: AccountId::from_uuid(row.account_id),
                name: row.account_name,
                plan: row.plan,
            },
            workspaces,
            public_url: app.public_url.as_str().trim_end_matches('/').to_owned(),
            attribution: Attribution::of(app.country_source),
        })
    }
}
