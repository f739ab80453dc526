//! Who calls: a key, its workspace, and the plan as it is at this request.

use chrono::{DateTime, Utc};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use service::http::ApiError;
use sqlx::PgPool;
use subtle::ConstantTimeEq as _;
use uuid::Uuid;
use warp::{Filter, Rejection};

use crate::App;
use crate::error::database;
use crate::keys;
use crate::plan::Plan;

/// A caller with a valid key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    /// The workspace the key belongs to: all that it sees.
    pub(crate) workspace: Uuid,
    /// The account the workspace belongs to.
    pub(crate) account: Uuid,
    /// The account's owner, in whose name a key creates.
    pub(crate) user: Uuid,
    /// The account's plan at this request.
    pub(crate) plan: Plan,
    can_write: bool,
}

/// A caller whose key and plan allow to write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writer(pub(crate) Caller);

/// Extracts the caller; answers 401 to anyone else.
pub(crate) fn caller(app: &App) -> impl Filter<Extract = (Caller,), Error = Rejection> + Clone + use<> {
    let app = app.clone();
    warp::header::headers_cloned().and_then(move |headers: HeaderMap| {
        let app = app.clone();
        async move { authenticate(&app.pool, &headers).await.map_err(warp::reject::custom) }
    })
}

/// Extracts a caller that may write: its scope is looked at before its plan.
pub(crate) fn writer(app: &App) -> impl Filter<Extract = (Writer,), Error = Rejection> + Clone + use<> {
    caller(app).and_then(|caller: Caller| async move { may_write(caller).map_err(warp::reject::custom) })
}

fn may_write(caller: Caller) -> Result<Writer, ApiError> {
    if !caller.can_write {
        return Err(ApiError::read_only_key("This key may only read; the request needs a read,write key"));
    }
    if !caller.plan.has_write() {
        return Err(ApiError::plan_required(format!(
            "The {} plan does not write over the API; Agency and Business do",
            caller.plan
        )));
    }
    Ok(Writer(caller))
}

/// A missing, unknown, malformed, revoked or expired key is one and the same answer.
async fn authenticate(pool: &PgPool, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let key = presented_key(headers).filter(|key| keys::is_well_formed(key)).ok_or_else(unauthorized)?;
    let row: Option<KeyRow> = sqlx::query_as(
        "SELECT k.workspace_id, k.scope, k.expires_at, k.revoked_at, a.id AS account_id, a.plan,
                (SELECT u.id FROM users u WHERE u.account_id = a.id AND u.role = 'owner'
                 ORDER BY u.created_at, u.id LIMIT 1) AS owner_id
         FROM api_keys k
         JOIN workspaces w ON w.id = k.workspace_id
         JOIN accounts a ON a.id = w.account_id
         WHERE k.key_sha256 = $1",
    )
    .bind(&keys::digest(key)[..])
    .fetch_optional(pool)
    .await
    .map_err(database)?;
    let now = Utc::now();
    row.filter(|row| row.revoked_at.is_none() && row.expires_at.is_none_or(|at| at > now))
        .map(|row| Caller {
            workspace: row.workspace_id,
            account: row.account_id,
            user: row.owner_id,
            plan: row.plan,
            can_write: row.scope == "read,write",
        })
        .ok_or_else(unauthorized)
}

#[derive(sqlx::FromRow)]
struct KeyRow {
    workspace_id: Uuid,
    scope: String,
    expires_at: Option<DateTime<Utc>>,
    revoked_at: Option<DateTime<Utc>>,
    account_id: Uuid,
    #[sqlx(try_from = "String")]
    plan: Plan,
    owner_id: Uuid,
}

fn unauthorized() -> ApiError {
    ApiError::unauthorized("A valid API key is required, as Authorization: Bearer or as X-API-Key")
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
