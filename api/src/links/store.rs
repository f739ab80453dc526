//! The SQL of links. Whatever changes a link writes its outbox rows in the same transaction, after the link's
//! own row: when a slug moves to another link, the order of the rows is the order of the moves.

use chrono::{DateTime, Utc};
use schemas::id::{LinkId, UserId, WorkspaceId};
use schemas::message::{
    DeletedLink, ForwardQuery, Link, LinkEvent, LinkEventKind, LinkRecord, Message as _, Version,
};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::outbox;

/// A row of table `links`.
#[derive(Debug, Clone, sqlx::FromRow)]
pub(crate) struct LinkRow {
    pub(crate) id: Uuid,
    pub(crate) workspace_id: Uuid,
    pub(crate) user_id: Uuid,
    pub(crate) slug: String,
    pub(crate) name: String,
    pub(crate) destination: String,
    pub(crate) is_active: bool,
    pub(crate) is_locked: bool,
    pub(crate) redirect_status: i16,
    pub(crate) forward_query: String,
    pub(crate) append_click_id: bool,
    pub(crate) expires_at: Option<DateTime<Utc>>,
    pub(crate) external_id: Option<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) revision: i64,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) updated_at: DateTime<Utc>,
}

impl LinkRow {
    /// The link's id in its outside form.
    pub(crate) fn link_id(&self) -> LinkId {
        LinkId::from_uuid(self.id)
    }

    /// The owner's id in its outside form.
    pub(crate) fn owner_id(&self) -> UserId {
        UserId::from_uuid(self.user_id)
    }

    /// What edges need of the link.
    fn record(&self) -> LinkRecord {
        LinkRecord::Live(Link {
            version: Version,
            id: self.link_id(),
            revision: self.revision.unsigned_abs(),
            workspace_id: WorkspaceId::from_uuid(self.workspace_id),
            slug: self.slug.clone(),
            destination: self.destination.clone(),
            is_active: self.is_active,
            redirect_status: self.redirect_status.unsigned_abs(),
            forward_query: if self.forward_query == ForwardQuery::Off.as_str() {
                ForwardQuery::Off
            } else {
                ForwardQuery::Append
            },
            append_click_id: self.append_click_id,
            expires_at: self.expires_at,
        })
    }
}

/// What a link event carries beside the link: its kind and what receivers are to see.
pub(super) struct Told {
    pub(super) kind: LinkEventKind,
    pub(super) data: serde_json::Value,
}

const INSERT: &str = "
    INSERT INTO links (id, workspace_id, user_id, slug, name, destination, is_active, redirect_status, forward_query,
                       append_click_id, expires_at, external_id, tags, created_at, updated_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";

/// How many links an account may have over all its workspaces.
pub(super) struct Cap {
    pub(super) account: Uuid,
    pub(super) links: i64,
}

/// Inserts a link and tells the edges and the receivers, in one transaction.
///
/// Returns false and changes nothing when the account has as many links as `cap` allows.
pub(super) async fn insert(
    pool: &PgPool,
    link: &LinkRow,
    cap: Option<Cap>,
    told: Told,
) -> sqlx::Result<bool> {
    let mut transaction = pool.begin().await?;
    if let Some(cap) = cap
        && lock_and_count(&mut transaction, cap.account).await? >= cap.links
    {
        return Ok(false);
    }
    sqlx::query(INSERT)
        .bind(link.id)
        .bind(link.workspace_id)
        .bind(link.user_id)
        .bind(&link.slug)
        .bind(&link.name)
        .bind(&link.destination)
        .bind(link.is_active)
        .bind(link.redirect_status)
        .bind(&link.forward_query)
        .bind(link.append_click_id)
        .bind(link.expires_at)
        .bind(&link.external_id)
        .bind(&link.tags)
        .bind(link.created_at)
        .bind(link.updated_at)
        .execute(&mut *transaction)
        .await?;
    tell(&mut transaction, link, &link.record(), told).await?;
    transaction.commit().await?;
    Ok(true)
}

/// Counts an account's links while no other transaction adds one: whoever comes here waits for the account's row,
/// so the cap is exact under concurrency. Accounts without a cap do not come here.
async fn lock_and_count(transaction: &mut PgConnection, account: Uuid) -> sqlx::Result<i64> {
    sqlx::query("SELECT 1 FROM accounts WHERE id = $1 FOR NO KEY UPDATE")
        .bind(account)
        .execute(&mut *transaction)
        .await?;
    sqlx::query_scalar(
        "SELECT count(*) FROM links WHERE workspace_id IN (SELECT id FROM workspaces WHERE account_id = $1)",
    )
    .bind(account)
    .fetch_one(transaction)
    .await
}

/// Reads a link of a workspace.
pub(super) async fn find(pool: &PgPool, workspace: Uuid, id: Uuid) -> sqlx::Result<Option<LinkRow>> {
    sqlx::query_as("SELECT * FROM links WHERE id = $1 AND workspace_id = $2")
        .bind(id)
        .bind(workspace)
        .fetch_optional(pool)
        .await
}

/// Reads a page of a workspace's links, newest first, after the place of the last link of the page before.
pub(super) async fn page(
    pool: &PgPool,
    workspace: Uuid,
    after: Option<(DateTime<Utc>, Uuid)>,
    limit: i64,
) -> sqlx::Result<Vec<LinkRow>> {
    let (created_at, id) = after.unzip();
    sqlx::query_as(
        "SELECT * FROM links
         WHERE workspace_id = $1 AND ($2::timestamptz IS NULL OR (created_at, id) < ($2, $3))
         ORDER BY created_at DESC, id DESC
         LIMIT $4",
    )
    .bind(workspace)
    .bind(created_at)
    .bind(id)
    .bind(limit)
    .fetch_all(pool)
    .await
}

/// The link for a change, locked until the transaction ends.
pub(super) async fn find_for_update(
    transaction: &mut PgConnection,
    workspace: Uuid,
    id: Uuid,
) -> sqlx::Result<Option<LinkRow>> {
    sqlx::query_as("SELECT * FROM links WHERE id = $1 AND workspace_id = $2 FOR UPDATE")
        .bind(id)
        .bind(workspace)
        .fetch_optional(transaction)
        .await
}

/// Writes a changed link under its next revision, and tells the edges and the receivers.
pub(super) async fn update(transaction: &mut PgConnection, link: &LinkRow, told: Told) -> sqlx::Result<()> {
    sqlx::query(
        "UPDATE links SET slug = $2, name = $3, destination = $4, is_active = $5, redirect_status = $6,
                forward_query = $7, append_click_id = $8, expires_at = $9, external_id = $10, tags = $11,
                revision = $12, updated_at = $13
         WHERE id = $1",
    )
    .bind(link.id)
    .bind(&link.slug)
    .bind(&link.name)
    .bind(&link.destination)
    .bind(link.is_active)
    .bind(link.redirect_status)
    .bind(&link.forward_query)
    .bind(link.append_click_id)
    .bind(link.expires_at)
    .bind(&link.external_id)
    .bind(&link.tags)
    .bind(link.revision)
    .bind(link.updated_at)
    .execute(&mut *transaction)
    .await?;
    tell(transaction, link, &link.record(), told).await
}

/// Removes a link and its conversions, remembers its id for ever, and tells the edges and the receivers.
pub(super) async fn delete(
    transaction: &mut PgConnection,
    link: &LinkRow,
    deleted_at: DateTime<Utc>,
    told: Told,
) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM links WHERE id = $1").bind(link.id).execute(&mut *transaction).await?;
    sqlx::query("INSERT INTO deleted_links (id, workspace_id, deleted_at) VALUES ($1, $2, $3)")
        .bind(link.id)
        .bind(link.workspace_id)
        .bind(deleted_at)
        .execute(&mut *transaction)
        .await?;
    sqlx::query("DELETE FROM conversions WHERE link_id = $1")
        .bind(link.id)
        .execute(&mut *transaction)
        .await?;
    let record = LinkRecord::Deleted(DeletedLink {
        version: Version,
        id: link.link_id(),
        revision: link.revision.unsigned_abs() + 1,
        deleted_at,
    });
    tell(transaction, link, &record, told).await
}

async fn tell(
    transaction: &mut PgConnection,
    link: &LinkRow,
    record: &LinkRecord,
    told: Told,
) -> sqlx::Result<()> {
    let key = link.link_id().to_string();
    let occurred_at = match record {
        LinkRecord::Live(_) => link.updated_at,
        LinkRecord::Deleted(deleted) => deleted.deleted_at,
    };
    let event = LinkEvent {
        version: Version,
        event_id: Uuid::now_v7(),
        event: told.kind,
        link_id: link.link_id(),
        workspace_id: WorkspaceId::from_uuid(link.workspace_id),
        occurred_at,
        data: told.data,
    };
    outbox::enqueue(transaction, schemas::topic::LINKS, &key, &record.encode()).await?;
    outbox::enqueue(transaction, schemas::topic::LINK_EVENTS, &key, &event.encode()).await
}
