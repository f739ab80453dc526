//! Who calls: a key, its workspace, and the plan as it is at this request.

use chrono::{DateTime, Utc};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use service::http::ApiError;
use subtle::ConstantTimeEq as _;
use uuid::Uuid;
use warp::{Filter, Rejection};

use crate::App;
use crate::error::database;
use crate::keys;
use crate::limits::{Budget, Visit, visit};
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

/// Extracts the caller and counts the request for its account; answers 401 to anyone else, 429 to who asks too often.
pub(crate) fn caller(app: &App) -> impl Filter<Extract = (Caller,), Error = Rejection> + Clone + use<> {
    let app = app.clone();
    warp::header::headers_cloned().and(visit()).and_then(move |headers: HeaderMap, visit: Visit| {
        let app = app.clone();
        async move { authenticate(&app, &headers, &visit).await.map_err(warp::reject::custom) }
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
    caller.plan.require_write()?;
    Ok(Writer(caller))
}

/// Looks up a key with the plan of its account, and counts the request in the account's minute.
///
/// $1: digest of the key; $2 and $3: plans and their requests per minute, null for unlimited. Without a row the key is
/// not valid. Without `used` a limited account has nothing left: what is refused is not counted. A statement that
/// waited for the account's row may come with the minute before; it counts in the minute that is there.
const LOOK_UP_AND_COUNT: &str = "
    WITH caller AS (
        SELECT k.workspace_id, k.scope, a.id AS account_id, a.plan, plans.requests_per_minute,
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
    )
    SELECT caller.*, counted.used, date_trunc('minute', now()) + interval '1 minute' AS window_end
    FROM caller LEFT JOIN counted ON true";

/// A missing, unknown, malformed, revoked or expired key is one and the same answer.
async fn authenticate(app: &App, headers: &HeaderMap, visit: &Visit) -> Result<Caller, ApiError> {
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
        can_write: row.scope == "read,write",
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
