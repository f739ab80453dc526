//! Who calls: a key or a member who is signed in, the workspace, and the plan as it is at this request.
//!
//! The operations of a workspace are mounted twice: below `/api`, where a key says which workspace, and below
//! `/app/api/workspaces/{id}`, where the path names it and the session must belong to a member of its account.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use schemas::id::WorkspaceId;
use service::http::ApiError;
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use crate::account::sessions::member::member_of;
use crate::account::token;
use crate::app::App;
use crate::error::database;
use crate::plan::Plan;
use crate::store::{keys, sessions};
use crate::web::limits::Budget;
use crate::web::operation::{Access, Principal};
use crate::web::request;
use crate::web::request::{Head, Request};

/// A caller with a valid key or a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    /// The workspace the key belongs to, or the path names: all that it sees.
    pub(crate) workspace: Uuid,
    /// The account the workspace belongs to.
    pub(crate) account: Uuid,
    /// In whose name it creates: the member, or the account's owner for a key.
    pub(crate) user: Uuid,
    /// The account's plan at this request.
    pub(crate) plan: Plan,
    credential: Credential,
}

/// What a caller has shown, by its digest.
#[derive(Debug, Clone, Copy)]
enum Credential {
    Key {
        digest: [u8; 32],
        can_write: bool,
    },
    Session {
        digest: [u8; 32],
    },
    /// None any more: the member has asked for it before.
    Import,
}

/// A caller that may write where the plan has write access: for a key, its scope too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writer(pub(crate) Caller);

/// A caller that may change links: a key that may write, or a member, on every plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Editor(pub(crate) Caller);

impl Caller {
    /// The member who has asked for an import, while it is worked off.
    pub(crate) const fn of_import(workspace: Uuid, account: Uuid, user: Uuid, plan: Plan) -> Self {
        Self { workspace, account, user, plan, credential: Credential::Import }
    }

    /// Whether it is a member at the dashboard.
    pub(crate) const fn is_member(&self) -> bool {
        matches!(self.credential, Credential::Session { .. } | Credential::Import)
    }

    /// Refuses a key on a plan whose keys do not write; members change links on every plan.
    pub(crate) fn require_edit(&self, plan: Plan) -> Result<(), ApiError> {
        if self.is_member() { Ok(()) } else { plan.require_write() }
    }

    /// Whether the caller would still be let in, for answers that go on for long.
    pub(crate) async fn is_valid(&self, app: &App) -> sqlx::Result<bool> {
        match &self.credential {
            Credential::Key { digest, .. } => keys::is_valid(&app.pool, digest).await,
            Credential::Session { digest } => Ok(sessions::find(&app.pool, digest, None).await?.is_some()),
            Credential::Import => Ok(true),
        }
    }

    fn require_scope(&self) -> Result<(), ApiError> {
        match self.credential {
            Credential::Key { can_write: false, .. } => {
                Err(ApiError::read_only_key("This key can only read. Use a key with the scope read,write."))
            }
            _ => Ok(()),
        }
    }

    fn may_write(self) -> Result<Writer, ApiError> {
        self.require_scope()?;
        self.plan.require_write()?;
        Ok(Writer(self))
    }

    fn may_edit(self) -> Result<Editor, ApiError> {
        self.require_scope()?;
        self.require_edit(self.plan)?;
        Ok(Editor(self))
    }
}

impl Principal for Caller {
    const ACCESS: Access = Access::Caller;

    /// Answers 401 to anyone else, 429 to a caller that asks too often. A request with a key counts for its account,
    /// one of a session for the member.
    async fn admit(request: &mut Request) -> Result<Self, ApiError> {
        match &request.credentials {
            request::Credentials::SessionIn(workspace) => {
                of_session(&request.app, &request.head, workspace).await
            }
            request::Credentials::Key | request::Credentials::Session => {
                of_key(&request.app, &request.head).await
            }
        }
    }
}

impl Principal for Writer {
    const ACCESS: Access = Access::Writer;

    /// The scope of a key is checked before the plan.
    async fn admit(request: &mut Request) -> Result<Self, ApiError> {
        Caller::admit(request).await?.may_write()
    }
}

impl Principal for Editor {
    const ACCESS: Access = Access::Editor;

    /// The scope of a key is checked before the plan.
    async fn admit(request: &mut Request) -> Result<Self, ApiError> {
        Caller::admit(request).await?.may_edit()
    }
}

/// A caller that shows neither a key nor a session, within what its address may ask.
pub(crate) struct Anyone;

impl Principal for Anyone {
    const ACCESS: Access = Access::Anyone;

    async fn admit(request: &mut Request) -> Result<Self, ApiError> {
        request.head.visit.charge_address().map(|()| Self)
    }
}

/// The member whose session it is, in a workspace of the member's account; any other one is not found.
async fn of_session(app: &App, head: &Head, workspace: &str) -> Result<Caller, ApiError> {
    // What is no id names nothing, and that is found out after who asks.
    let workspace = workspace.parse().map_or(Uuid::nil(), WorkspaceId::uuid);
    let member = member_of(app, head, Some(workspace)).await?;
    Ok(Caller {
        workspace: member
            .workspace
            .ok_or_else(|| ApiError::not_found("There is no such workspace in your account."))?,
        account: member.account,
        user: member.user,
        plan: member.plan,
        credential: Credential::Session { digest: member.digest },
    })
}

/// A missing, unknown, malformed, revoked or expired key is one and the same answer.
async fn of_key(app: &App, Head { headers, visit, .. }: &Head) -> Result<Caller, ApiError> {
    // A malformed key is looked up too: an answer that came sooner would tell it from an unknown one.
    let digest = token::digest(presented_key(headers).unwrap_or_default());
    let row = keys::find_and_count(&app.pool, &digest, &app.plans).await.map_err(database)?;
    let Some(row) = row else {
        visit.charge_address()?;
        return Err(unauthorized());
    };
    let limit = row.requests_per_minute;
    // Nothing counted under a limit: the minute's requests are used up.
    let budget = Budget::of_account(limit, row.used.or(limit).unwrap_or_default(), row.window_end);
    visit.counted(budget);
    if limit.is_some() && row.used.is_none() {
        return Err(budget.exceeded());
    }
    Ok(Caller {
        workspace: row.workspace_id,
        account: row.account_id,
        user: row.owner_id,
        plan: row.plan,
        credential: Credential::Key { digest, can_write: row.scope == "read,write" },
    })
}

fn unauthorized() -> ApiError {
    ApiError::unauthorized("A valid API key is required, as Authorization: Bearer or as X-API-Key.")
}

/// The key of either header; two different keys are none.
fn presented_key(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let bearer = text(AUTHORIZATION.as_str()).map(|value| {
        let (scheme, key) = value.split_once(' ').unwrap_or_default();
        if scheme.eq_ignore_ascii_case("bearer") { key.trim_start() } else { "" }
    });
    match (bearer, text("x-api-key")) {
        (Some(one), Some(other)) => bool::from(one.as_bytes().ct_eq(other.as_bytes())).then_some(one),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn either_header_presents_a_key() {
        assert_eq!(presented_key(&headers(&[("authorization", "Bearer k")])), Some("k"));
        assert_eq!(presented_key(&headers(&[("authorization", "bearer  k")])), Some("k"));
        assert_eq!(presented_key(&headers(&[("x-api-key", "k")])), Some("k"));
        assert_eq!(presented_key(&headers(&[("x-api-key", "k"), ("authorization", "Bearer k")])), Some("k"));
    }

    #[test]
    fn two_different_keys_are_none() {
        assert_eq!(presented_key(&headers(&[("x-api-key", "k"), ("authorization", "Bearer j")])), None);
        assert_eq!(presented_key(&headers(&[("x-api-key", "k"), ("authorization", "Basic k")])), None);
        assert_eq!(presented_key(&headers(&[])), None);
    }
}
