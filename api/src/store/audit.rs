//! The audit trail of operators and members.

use chrono::{DateTime, Utc};
use schemas::id::{UserId, WorkspaceId};
use serde::Serialize;
use serde_json::{Map, Value};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// Whose entry it is: the owners of that account read it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Of {
    Account(Uuid),
    Workspace(Uuid),
    /// The account of a member.
    User(Uuid),
    /// The workspace of a key.
    Key(Uuid),
    /// The workspace of a webhook endpoint.
    Endpoint(Uuid),
    /// The whole deployment.
    Nobody,
}

/// Returns a member's name in the trail.
pub(crate) fn member(user: Uuid) -> String {
    UserId::from_uuid(user).to_string()
}

/// Records a change, in its transaction.
pub(crate) async fn record(
    transaction: &mut PgConnection,
    actor: &str,
    action: &str,
    subject: &str,
    of: Of,
    details: Value,
) -> sqlx::Result<()> {
    let only = |id: fn(Of) -> Option<Uuid>| id(of);
    sqlx::query(
        "INSERT INTO audit_trail (actor, action, subject, details, workspace_id, account_id)
         SELECT $1, $2, $3, $4, w.id,
                coalesce($5, w.account_id, (SELECT account_id FROM users WHERE id = $6))
         FROM (SELECT) AS one
         LEFT JOIN workspaces w ON w.id = coalesce($7, (SELECT workspace_id FROM api_keys WHERE id = $8),
                                                   (SELECT workspace_id FROM webhook_endpoints WHERE id = $9))",
    )
    .bind(actor)
    .bind(action)
    .bind(subject)
    .bind(details)
    .bind(only(|of| if let Of::Account(id) = of { Some(id) } else { None }))
    .bind(only(|of| if let Of::User(id) = of { Some(id) } else { None }))
    .bind(only(|of| if let Of::Workspace(id) = of { Some(id) } else { None }))
    .bind(only(|of| if let Of::Key(id) = of { Some(id) } else { None }))
    .bind(only(|of| if let Of::Endpoint(id) = of { Some(id) } else { None }))
    .execute(transaction)
    .await?;
    Ok(())
}

/// Records what a member did to their own sign-in.
pub(crate) async fn record_own(transaction: &mut PgConnection, user: Uuid, action: &str) -> sqlx::Result<()> {
    let member = member(user);
    record(transaction, &member, action, &member, Of::User(user), Value::Object(Map::new())).await
}

/// An entry as owners see it.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct Entry {
    pub(crate) id: i64,
    #[serde(with = "schemas::time::millis")]
    at: DateTime<Utc>,
    actor: String,
    action: String,
    subject: String,
    #[serde(serialize_with = "workspace")]
    workspace_id: Option<Uuid>,
    details: Value,
}

fn workspace<S: serde::Serializer>(id: &Option<Uuid>, serializer: S) -> Result<S::Ok, S::Error> {
    id.map(WorkspaceId::from_uuid).serialize(serializer)
}

/// Reads a page of an account's entries, the newest first, after the last one of the page before.
pub(crate) async fn page(
    pool: &PgPool,
    account: Uuid,
    before: Option<i64>,
    limit: i64,
) -> sqlx::Result<Vec<Entry>> {
    sqlx::query_as(
        "SELECT id, at, actor, action, subject, workspace_id, details FROM audit_trail
         WHERE account_id = $1 AND ($2::bigint IS NULL OR id < $2) ORDER BY id DESC LIMIT $3",
    )
    .bind(account)
    .bind(before)
    .bind(limit)
    .fetch_all(pool)
    .await
}
