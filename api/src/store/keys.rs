//! API keys, by their digests.

use chrono::{DateTime, Utc};
use schemas::id::{KeyId, UserId};
use serde::Serialize;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::plan::{Plan, Plans};
use crate::store::workspaces;

/// What a key may do.
#[derive(Debug, Clone, Copy, serde::Deserialize, clap::ValueEnum)]
pub(crate) enum Scope {
    /// See links, clicks, statistics.
    #[serde(rename = "read")]
    Read,
    /// Also create, change and delete links and webhook endpoints.
    #[serde(rename = "read,write")]
    #[value(name = "read,write")]
    ReadWrite,
}

impl Scope {
    /// Returns the name in the database and in answers.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::ReadWrite => "read,write",
        }
    }
}

/// A key as members see it, without its value.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct Key {
    #[sqlx(try_from = "Uuid")]
    pub(crate) id: KeyId,
    pub(crate) name: String,
    #[sqlx(rename = "display_prefix")]
    pub(crate) prefix: String,
    pub(crate) scope: String,
    #[serde(with = "schemas::time::millis")]
    pub(crate) created_at: DateTime<Utc>,
    #[serde(with = "schemas::time::optional_millis")]
    pub(crate) expires_at: Option<DateTime<Utc>>,
    #[serde(with = "schemas::time::optional_millis")]
    pub(crate) last_used_at: Option<DateTime<Utc>>,
    #[serde(with = "schemas::time::optional_millis")]
    pub(crate) revoked_at: Option<DateTime<Utc>>,
    /// The member who made it; null for an operator.
    #[serde(serialize_with = "user")]
    pub(crate) created_by: Option<Uuid>,
}

fn user<S: serde::Serializer>(id: &Option<Uuid>, serializer: S) -> Result<S::Ok, S::Error> {
    id.map(UserId::from_uuid).serialize(serializer)
}

/// A valid key, and what its account has used of this minute.
#[derive(sqlx::FromRow)]
pub(crate) struct CountedKey {
    pub(crate) id: Uuid,
    pub(crate) workspace_id: Uuid,
    pub(crate) scope: String,
    pub(crate) account_id: Uuid,
    #[sqlx(try_from = "String")]
    pub(crate) plan: Plan,
    pub(crate) requests_per_minute: Option<i64>,
    pub(crate) owner_id: Uuid,
    pub(crate) is_suspended: bool,
    pub(crate) used: Option<i64>,
    pub(crate) window_end: DateTime<Utc>,
}

/// Finds a key with its account's plan, and counts the request in the account's minute.
///
/// $1: digest of the key; $2 and $3: plans and their requests per minute, null for unlimited. No row: the key is
/// invalid. No `used` in a limited account: the limit is reached, and the request is not counted. A statement that
/// waited for the account's row may carry the minute before; it counts in the row's minute, which `window_end` ends.
/// `last_used_at` is written at most once a minute.
const LOOK_UP_AND_COUNT: &str = "
    WITH caller AS (
        SELECT k.id, k.last_used_at, k.workspace_id, k.scope, a.id AS account_id, a.plan, plans.requests_per_minute,
               a.suspended_at IS NOT NULL AS is_suspended,
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
        RETURNING used, minute
    ), noted AS (
        UPDATE api_keys AS k SET last_used_at = now() FROM caller
        WHERE k.id = caller.id
          AND (caller.last_used_at IS NULL OR caller.last_used_at < now() - interval '1 minute')
    )
    SELECT caller.*, counted.used,
           coalesce(counted.minute, date_trunc('minute', clock_timestamp())) + interval '1 minute' AS window_end
    FROM caller LEFT JOIN counted ON true";

/// Finds a valid key and counts the request in its account's minute.
pub(crate) async fn find_and_count(
    pool: &PgPool,
    digest: &[u8; 32],
    plans: &Plans,
) -> sqlx::Result<Option<CountedKey>> {
    let (plans, limits): (Vec<&str>, Vec<Option<i64>>) =
        Plan::ALL.iter().map(|plan| (plan.as_str(), plans.requests_per_minute(*plan))).unzip();
    sqlx::query_as(LOOK_UP_AND_COUNT).bind(&digest[..]).bind(plans).bind(limits).fetch_optional(pool).await
}

/// Returns whether a key exists, is neither revoked nor expired, and its account is not suspended.
pub(crate) async fn is_valid(pool: &PgPool, digest: &[u8; 32]) -> sqlx::Result<bool> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM api_keys k
                        JOIN workspaces w ON w.id = k.workspace_id
                        JOIN accounts a ON a.id = w.account_id
                        WHERE k.key_sha256 = $1 AND k.revoked_at IS NULL AND a.suspended_at IS NULL
                          AND (k.expires_at IS NULL OR k.expires_at > now()))",
    )
    .bind(&digest[..])
    .fetch_one(pool)
    .await
}

/// Reads a page of the keys of a workspace, the newest first, after the last one of the page before.
pub(crate) async fn page(
    pool: &PgPool,
    workspace: Uuid,
    before: Option<Uuid>,
    limit: i64,
) -> sqlx::Result<Vec<Key>> {
    sqlx::query_as(
        "SELECT id, name, display_prefix, scope, created_at, expires_at, last_used_at, revoked_at, created_by
         FROM api_keys WHERE workspace_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3",
    )
    .bind(workspace)
    .bind(before)
    .bind(limit)
    .fetch_all(pool)
    .await
}

/// Counts a workspace's keys that are neither revoked nor expired. No other member adds one until the transaction ends.
pub(crate) async fn lock_and_count(transaction: &mut PgConnection, workspace: Uuid) -> sqlx::Result<i64> {
    workspaces::lock(transaction, workspace).await?;
    sqlx::query_scalar(
        "SELECT count(*) FROM api_keys
         WHERE workspace_id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())",
    )
    .bind(workspace)
    .fetch_one(transaction)
    .await
}

/// Inserts a key by its digest.
pub(crate) async fn insert(
    transaction: &mut PgConnection,
    workspace: Uuid,
    key: &Key,
    digest: &[u8; 32],
) -> sqlx::Result<()> {
    sqlx::query(
        "INSERT INTO api_keys (id, workspace_id, key_sha256, display_prefix, scope, name, expires_at, created_at,
                               created_by)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(key.id.uuid())
    .bind(workspace)
    .bind(&digest[..])
    .bind(&key.prefix)
    .bind(&key.scope)
    .bind(&key.name)
    .bind(key.expires_at)
    .bind(key.created_at)
    .bind(key.created_by)
    .execute(transaction)
    .await?;
    Ok(())
}

/// Removes a workspace's revoked and expired keys beyond the newest 900.
pub(crate) async fn remove_old(transaction: &mut PgConnection, workspace: Uuid) -> sqlx::Result<()> {
    sqlx::query(
        "DELETE FROM api_keys WHERE id IN (
             SELECT id FROM api_keys WHERE workspace_id = $1 AND (revoked_at IS NOT NULL OR expires_at <= now())
             ORDER BY id DESC OFFSET 900)",
    )
    .bind(workspace)
    .execute(transaction)
    .await?;
    Ok(())
}

/// Revokes a key of a workspace, or of any; false when there is none. A key that is revoked already keeps its time.
pub(crate) async fn revoke(
    transaction: &mut PgConnection,
    workspace: Option<Uuid>,
    key: KeyId,
) -> sqlx::Result<bool> {
    let found = sqlx::query(
        "UPDATE api_keys SET revoked_at = coalesce(revoked_at, now())
         WHERE id = $1 AND ($2::uuid IS NULL OR workspace_id = $2)",
    )
    .bind(key.uuid())
    .bind(workspace)
    .execute(transaction)
    .await?;
    Ok(found.rows_affected() == 1)
}

/// Revokes the keys of an account's workspaces that a member made. Returns how many.
pub(crate) async fn revoke_of_member(
    transaction: &mut PgConnection,
    account: Uuid,
    user: Uuid,
) -> sqlx::Result<u64> {
    let revoked = sqlx::query(
        "UPDATE api_keys SET revoked_at = now()
         WHERE created_by = $2 AND revoked_at IS NULL
           AND workspace_id IN (SELECT id FROM workspaces WHERE account_id = $1)",
    )
    .bind(account)
    .bind(user)
    .execute(transaction)
    .await?;
    Ok(revoked.rows_affected())
}
