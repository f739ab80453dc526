//! The SQL of what only the dashboard asks.

use chrono::{DateTime, Utc};
use schemas::id::KeyId;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::keys::Key;

/// Most tags of an answer.
const MAX_TAGS: i64 = 1_000;

#[derive(sqlx::FromRow)]
struct KeyRow {
    id: Uuid,
    name: String,
    display_prefix: String,
    scope: String,
    created_at: DateTime<Utc>,
    expires_at: Option<DateTime<Utc>>,
    last_used_at: Option<DateTime<Utc>>,
    revoked_at: Option<DateTime<Utc>>,
}

impl From<KeyRow> for Key {
    fn from(row: KeyRow) -> Self {
        Self {
            id: KeyId::from_uuid(row.id),
            name: row.name,
            prefix: row.display_prefix,
            scope: row.scope,
            created_at: row.created_at,
            expires_at: row.expires_at,
            last_used_at: row.last_used_at,
            revoked_at: row.revoked_at,
        }
    }
}

/// Reads the keys of a workspace, the newest first.
pub(super) async fn keys(pool: &PgPool, workspace: Uuid) -> sqlx::Result<Vec<Key>> {
    let rows: Vec<KeyRow> = sqlx::query_as(
        "SELECT id, name, display_prefix, scope, created_at, expires_at, last_used_at, revoked_at
         FROM api_keys WHERE workspace_id = $1 ORDER BY created_at DESC, id DESC",
    )
    .bind(workspace)
    .fetch_all(pool)
    .await?;
    Ok(rows.into_iter().map(Key::from).collect())
}

/// Stores a key by its digest.
pub(super) async fn insert_key(
    transaction: &mut PgConnection,
    workspace: Uuid,
    key: &Key,
    digest: &[u8; 32],
) -> sqlx::Result<()> {
    sqlx::query(
        "INSERT INTO api_keys (id, workspace_id, key_sha256, display_prefix, scope, name, expires_at, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(key.id.uuid())
    .bind(workspace)
    .bind(&digest[..])
    .bind(&key.prefix)
    .bind(&key.scope)
    .bind(&key.name)
    .bind(key.expires_at)
    .bind(key.created_at)
    .execute(transaction)
    .await?;
    Ok(())
}

/// Revokes a key of a workspace; false when there is none. A key that was revoked before keeps its time.
pub(super) async fn revoke_key(
    transaction: &mut PgConnection,
    workspace: Uuid,
    key: KeyId,
) -> sqlx::Result<bool> {
    let found = sqlx::query(
        "UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1 AND workspace_id = $2",
    )
    .bind(key.uuid())
    .bind(workspace)
    .execute(transaction)
    .await?;
    Ok(found.rows_affected() == 1)
}

/// Reads every tag of a workspace's links, sorted.
pub(super) async fn tags(pool: &PgPool, workspace: Uuid) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar(include_str!("tags.sql")).bind(workspace).bind(MAX_TAGS).fetch_all(pool).await
}

/// Whether a link has the slug, of whichever workspace: a slug belongs to the host.
pub(super) async fn is_slug_taken(pool: &PgPool, slug: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM links WHERE slug = $1)").bind(slug).fetch_one(pool).await
}
