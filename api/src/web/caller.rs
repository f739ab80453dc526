//! The caller of an operation: a key or a member, with the workspace and the present plan.
//!
//! The operations of a workspace are mounted twice: below `/api`, where a key says which workspace, and below
//! `/app/api/workspaces/{id}`, where the path names it and the session must belong to a member of its account.

use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use schemas::id::{KeyId, WorkspaceId};
use service::http::ApiError;
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use crate::account::sessions::member::{member_of, suspended};
use crate::account::token;
use crate::app::App;
use crate::plan::Plan;
use crate::store::role::Role;
use crate::store::{audit, keys, sessions};
use crate::web::limits::Budget;
use crate::web::operation::{Access, Principal};
use crate::web::request;
use crate::web::request::{Head, Request};

/// A caller with a valid key or a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    /// The workspace of the key, or of the path: all that the caller sees.
    pub(crate) workspace: Uuid,
    /// The account the workspace belongs to.
    pub(crate) account: Uuid,
    /// The creator of new resources: the member, or the account's owner for a key.
    pub(crate) user: Uuid,
    /// The account's plan at this request.
    pub(crate) plan: Plan,
    /// Whether the request is `HEAD`, so that nothing but headers leaves.
    pub(crate) is_head: bool,
    credential: Credential,
}

/// The credential of a caller, by its digest.
#[derive(Debug, Clone, Copy)]
enum Credential {
    Key {
        id: KeyId,
        digest: [u8; 32],
        can_write: bool,
    },
    Session {
        digest: [u8; 32],
        is_viewer: bool,
    },
    /// An import that a member started earlier.
    Import,
}

/// A caller that may write: on a plan with write access, and a key with write scope. A viewer is not a writer, not even
/// for reading: the URL of an endpoint is often a secret.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writer(pub(crate) Caller);

/// A caller that may change links: a key that may write, or a member on any plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Editor(pub(crate) Caller);

impl Caller {
    /// Returns the member who started an import.
    pub(crate) const fn of_import(workspace: Uuid, account: Uuid, user: Uuid, plan: Plan) -> Self {
        Self { workspace, account, user, plan, is_head: false, credential: Credential::Import }
    }

    /// Returns whether the caller is a member.
    pub(crate) const fn is_member(&self) -> bool {
        matches!(self.credential, Credential::Session { .. } | Credential::Import)
    }

    /// Returns whether the caller is a member who sees no personal fields.
    pub(crate) const fn is_viewer(&self) -> bool {
        matches!(self.credential, Credential::Session { is_viewer: true, .. })
    }

    /// Returns the caller's name in the audit trail.
    pub(crate) fn actor(&self) -> String {
        match self.credential {
            Credential::Key { id, .. } => id.to_string(),
            Credential::Session { .. } | Credential::Import => audit::member(self.user),
        }
    }

    /// Rejects a key on a plan without write access. Members change links on every plan.
    pub(crate) fn require_edit(&self, plan: Plan) -> Result<(), ApiError> {
        if self.is_member() { Ok(()) } else { plan.require_write() }
    }

    /// Returns whether the caller would still be accepted, for long answers.
    pub(crate) async fn is_valid(&self, app: &App) -> sqlx::Result<bool> {
        match &self.credential {
            Credential::Key { digest, .. } => keys::is_valid(&app.pool, digest).await,
            Credential::Session { digest, is_viewer } => {
                let found = sessions::find(&app.pool, digest, None).await?;
                // A viewer gets other fields, so a changed role ends the answer.
                Ok(found
                    .is_some_and(|row| !row.is_suspended && matches!(row.role, Role::Viewer) == *is_viewer))
            }
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
        if self.is_viewer() {
            return Err(ApiError::forbidden(
                "Viewers cannot see webhooks. Ask an owner of the account for another role.",
            ));
        }
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

    /// Rejects an invalid key or session with 401, and a caller above its limit with 429. A request with a key counts
    /// for its account, one of a session for the member.
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

/// Anyone, within the limit of the client's address.
pub(crate) struct Anyone;

impl Principal for Anyone {
    const ACCESS: Access = Access::Anyone;

    async fn admit(request: &mut Request) -> Result<Self, ApiError> {
        request.head.visit.charge_address().map(|()| Self)
    }
}

/// Finds the member of the session, in a workspace of the member's account. Other workspaces are not found.
async fn of_session(app: &App, head: &Head, workspace: &str) -> Result<Caller, ApiError> {
    // An invalid id is not found either, after the session is checked.
    let workspace = workspace.parse().map_or(Uuid::nil(), WorkspaceId::uuid);
    let member = member_of(app, head, Some(workspace)).await?;
    let is_viewer = matches!(member.role, Role::Viewer);
    // Every change has another method, whatever it changes.
    if is_viewer && head.method != Method::GET {
        return Err(ApiError::forbidden("Viewers cannot change anything."));
    }
    Ok(Caller {
        workspace: member
            .workspace
            .ok_or_else(|| ApiError::not_found("There is no such workspace in your account."))?,
        account: member.account,
        user: member.user,
        plan: member.plan,
        is_head: head.is_head,
        credential: Credential::Session { digest: member.digest, is_viewer },
    })
}

/// Finds the caller of a key. A missing, unknown, malformed, revoked or expired key gets the same answer.
async fn of_key(app: &App, Head { headers, visit, is_head, .. }: &Head) -> Result<Caller, ApiError> {
    let Some(digest) = presented_key(headers).and_then(token::digest_of_api_key) else {
        visit.charge_address()?;
        return Err(unauthorized());
    };
    let found = keys::find_and_count(&app.pool, &digest, &app.plans);
    let row = visit.look_up(&digest, found).await?.ok_or_else(unauthorized)?;
    let limit = row.requests_per_minute;
    // Not counted under a limit: the limit is reached.
    let budget = Budget::of_account(limit, row.used.or(limit).unwrap_or_default(), row.window_end);
    visit.counted(budget);
    if limit.is_some() && row.used.is_none() {
        return Err(budget.exceeded());
    }
    if row.is_suspended {
        return Err(suspended());
    }
    Ok(Caller {
        workspace: row.workspace_id,
        account: row.account_id,
        user: row.owner_id,
        plan: row.plan,
        is_head: *is_head,
        credential: Credential::Key {
            id: KeyId::from_uuid(row.id),
            digest,
            can_write: row.scope == "read,write",
        },
    })
}

fn unauthorized() -> ApiError {
    ApiError::unauthorized("A valid API key is required, as Authorization: Bearer or as X-API-Key.")
}

/// Returns the key of all headers that present one; different keys count as none.
fn presented_key(headers: &HeaderMap) -> Option<&str> {
    let texts = |name: &str| headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default());
    let bearer = texts(AUTHORIZATION.as_str()).map(|value| {
        let (scheme, key) = value.split_once(' ').unwrap_or_default();
        if scheme.eq_ignore_ascii_case("bearer") { key.trim_start() } else { "" }
    });
    let mut keys = bearer.chain(texts("x-api-key"));
    let first = keys.next()?;
    keys.all(|other| first.as_bytes().ct_eq(other.as_bytes()).into()).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn either_header_presents_a_key() {
        assert_eq!(presented_key(&headers(&[("authorization", "Bearer k")])), Some("k"));
        assert_eq!(presented_key(&headers(&[("authorization", "bearer  k")])), Some("k"));
        assert_eq!(presented_key(&headers(&[("x-api-key", "k")])), Some("k"));
        assert_eq!(presented_key(&headers(&[("x-api-key", "k"), ("authorization", "Bearer k")])), Some("k"));
        assert_eq!(presented_key(&headers(&[("x-api-key", "k"), ("x-api-key", "k")])), Some("k"));
    }

    #[test]
    fn two_different_keys_count_as_none() {
        assert_eq!(presented_key(&headers(&[("x-api-key", "k"), ("authorization", "Bearer j")])), None);
        assert_eq!(presented_key(&headers(&[("x-api-key", "k"), ("authorization", "Basic k")])), None);
        assert_eq!(presented_key(&headers(&[("x-api-key", "k"), ("x-api-key", "j")])), None);
        let bearers = [("authorization", "Bearer k"), ("authorization", "Bearer j")];
        assert_eq!(presented_key(&headers(&bearers)), None);
        assert_eq!(presented_key(&headers(&[])), None);
    }
}
