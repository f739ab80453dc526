//! Who calls: a key or a member who is signed in, the workspace, and the plan as it is at this request.
//!
//! The operations of a workspace are mounted twice: below `/api`, where a key says which workspace, and below
//! `/app/api/workspaces/{id}`, where the path names it and the session must belong to a member of its account.

use chrono::{DateTime, Utc};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use schemas::id::WorkspaceId;
use service::http::ApiError;
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use crate::App;
use crate::error::database;
use crate::keys;
use crate::limits::Budget;
use crate::plan::Plan;
use crate::sessions;
use crate::web::operation::{Access, Principal};
use crate::web::request::{self, Head, Request};

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
            Credential::Key { digest, .. } => {
                sqlx::query_scalar(
                    "SELECT EXISTS (SELECT FROM api_keys WHERE key_sha256 = $1 AND revoked_at IS NULL
                                    AND (expires_at IS NULL OR expires_at > now()))",
                )
                .bind(&digest[..])
                .fetch_one(&app.pool)
                .await
            }
            Credential::Session { digest } => sessions::is_valid(app, digest).await,
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

/// The member whose session it is, in a workspace of the member's account; any other one is not found.
async fn of_session(app: &App, head: &Head, workspace: &str) -> Result<Caller, ApiError> {
    // What is no id names nothing, and that is found out after who asks.
    let workspace = workspace.parse().map_or(Uuid::nil(), WorkspaceId::uuid);
    let member = sessions::member_of(app, head, Some(workspace)).await?;
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

/// Looks up a key with the plan of its account, and counts the request in the account's minute.
///
/// $1: digest of the key; $2 and $3: plans and their requests per minute, null for unlimited. Without a row the key is
/// not valid. Without `used` a limited account has nothing left: what is refused is not counted. A statement that
/// waited for the account's row may come with the minute before; it counts in the minute that is there. That a key was
/// used is noted once in a minute, so that it costs no write at each request.
const LOOK_UP_AND_COUNT: &str = "
    WITH caller AS (
        SELECT k.id, k.last_used_at, k.workspace_id, k.scope, a.id AS account_id, a.plan, plans.requests_per_minute,
               (SELECT u.id FROM users u WHERE u.account_id = a.id AND u.role = 'owner'
                ORDER BY u.created_at, u.id LIMIT 1) AS owner_id
        FROM api_keys k
        JOIN workspaces w ON w.id = k.workspace_id
        JOIN accounts a ON a.id = w.account_id
        JOIN unnest($2::text[], $3::bigint[]) AS plans (plan, requests_per_minute) ON plans.plan = a.plan
        WHERE k.key_sha256 = $1 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
    ), counted AS (
        INSERT INTO request_windows AS w (account_id, minute, used)
        SELECT account_id, date_trunc('minute', now()), 1 FROM caller WHERE requests_per_minute IS NOT NULL
        ON CONFLICT (account_id) DO UPDATE
        SET minute = greatest(w.minute, excluded.minute),
            used = CASE WHEN w.minute < excluded.minute THEN 1 ELSE w.used + 1 END
        WHERE w.minute < excluded.minute OR w.used < (SELECT requests_per_minute FROM caller)
        RETURNING used
    ), noted AS (
        UPDATE api_keys AS k SET last_used_at = now() FROM caller
        WHERE k.id = caller.id
          AND (caller.last_used_at IS NULL OR caller.last_used_at < now() - interval '1 minute')
    )
    SELECT caller.*, counted.used, date_trunc('minute', now()) + interval '1 minute' AS window_end
    FROM caller LEFT JOIN counted ON true";

/// A missing, unknown, malformed, revoked or expired key is one and the same answer.
async fn of_key(app: &App, Head { headers, visit, .. }: &Head) -> Result<Caller, ApiError> {
    // A malformed key is looked up too: an answer that came sooner would tell it from an unknown one.
    let digest = keys::digest(presented_key(headers).unwrap_or_default());
    let (plans, limits): (Vec<&str>, Vec<Option<i64>>) =
        Plan::ALL.iter().map(|plan| (plan.as_str(), app.plans.requests_per_minute(*plan))).unzip();
    let row: Option<KeyRow> = sqlx::query_as(LOOK_UP_AND_COUNT)
        .bind(&digest[..])
        .bind(plans)
        .bind(limits)
        .fetch_optional(&app.pool)
        .await
        .map_err(database)?;
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

#[derive(sqlx::FromRow)]
struct KeyRow {
    workspace_id: Uuid,
    scope: String,
    account_id: Uuid,
    #[sqlx(try_from = "String")]
    plan: Plan,
    requests_per_minute: Option<i64>,
    owner_id: Uuid,
    used: Option<i64>,
    window_end: DateTime<Utc>,
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
