//! Deletes all rows of an account.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use schemas::id::WorkspaceId;
use schemas::message::{DeletedLink, LinkRecord, Message as _, Version};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::store::links::LinkRow;
use crate::store::outbox::Outgoing;
use crate::store::{former_slugs, outbox};

/// Deletes up to `limit` links of an account and their conversions, and queues their records for the edges. Their slugs
/// are nobody's for 90 days. Returns how many.
pub(crate) async fn delete_links(
    transaction: &mut PgConnection,
    account: Uuid,
    limit: i64,
    now: DateTime<Utc>,
) -> sqlx::Result<usize> {
    let rows: Vec<LinkRow> = sqlx::query_as(
        "DELETE FROM links WHERE id IN (
             SELECT l.id FROM links l JOIN workspaces w ON w.id = l.workspace_id
             WHERE w.account_id = $1 ORDER BY l.id LIMIT $2 FOR UPDATE OF l)
         RETURNING *",
    )
    .bind(account)
    .bind(limit)
    .fetch_all(&mut *transaction)
    .await?;
    let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
    let workspaces: Vec<Uuid> = rows.iter().map(|row| row.workspace_id).collect();
    sqlx::query(
        "INSERT INTO deleted_links (id, workspace_id, deleted_at)
         SELECT *, $3 FROM unnest($1::uuid[], $2::uuid[])",
    )
    .bind(&ids)
    .bind(workspaces)
    .bind(now)
    .execute(&mut *transaction)
    .await?;
    sqlx::query("DELETE FROM conversions WHERE link_id = ANY($1)")
        .bind(ids)
        .execute(&mut *transaction)
        .await?;
    let slugs: Vec<&str> = rows.iter().map(|row| row.slug.as_str()).collect();
    former_slugs::hold(&mut *transaction, &slugs, None).await?;
    let messages = rows.iter().map(|row| {
        let record = LinkRecord::Deleted(DeletedLink {
            version: Version,
            id: row.link_id(),
            revision: row.revision.unsigned_abs() + 1,
            workspace_id: Some(WorkspaceId::from_uuid(row.workspace_id)),
            deleted_at: now,
        });
        Outgoing { topic: schemas::topic::LINKS, key: row.link_id().to_string(), value: record.encode() }
    });
    outbox::enqueue_all(transaction, messages).await?;
    Ok(rows.len())
}

/// Deletes all rows of an account that has no links, and the account. Returns how many rows of each table.
///
/// Deliveries and failed attempts of its endpoints are removed by the dispatcher, because there may be millions.
pub(crate) async fn delete_rest(
    transaction: &mut PgConnection,
    account: Uuid,
) -> sqlx::Result<BTreeMap<&'static str, u64>> {
    const OF_WORKSPACE: &str = "workspace_id IN (SELECT id FROM workspaces WHERE account_id = $1)";
    // Rows before those that they refer to.
    let tables = [
        ("link_imports", OF_WORKSPACE),
        ("idempotency_keys", OF_WORKSPACE),
        ("webhook_endpoints", OF_WORKSPACE),
        ("api_keys", OF_WORKSPACE),
        ("edge_tokens", OF_WORKSPACE),
        ("sessions", "user_id IN (SELECT id FROM users WHERE account_id = $1)"),
        ("users", "account_id = $1"),
        ("workspaces", "account_id = $1"),
        ("request_windows", "account_id = $1"),
        ("conversion_days", "account_id = $1"),
        ("import_bytes", "account_id = $1"),
        ("accounts", "id = $1"),
    ];
    forget_names(&mut *transaction, account).await?;
    former_slugs::give_to_nobody(&mut *transaction, account).await?;
    let mut deleted = BTreeMap::new();
    for (table, condition) in tables {
        let sql = format!("DELETE FROM {table} WHERE {condition}");
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(account).execute(&mut *transaction).await?;
        deleted.insert(table, rows.rows_affected());
    }
    Ok(deleted)
}

/// Removes names, email addresses, reasons of blocks and webhooks' hosts from the account's entries of the audit trail.
async fn forget_names(transaction: &mut PgConnection, account: Uuid) -> sqlx::Result<()> {
    sqlx::query(
        "UPDATE audit_trail SET details = details - ARRAY['name', 'email', 'reason', 'sends_to'] \
         WHERE account_id = $1",
    )
    .bind(account)
    .execute(transaction)
    .await?;
    Ok(())
}
