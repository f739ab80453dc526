//! Links. Every change writes its outbox rows in the same transaction, after the link's row: when a slug moves to
//! another link, the order of the messages is the order of the moves.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use schemas::id::{LinkId, UserId, WorkspaceId};
use schemas::message::{
    DeletedLink, ForwardQuery, Link, LinkEvent, LinkEventKind, LinkRecord, Message as _, Version,
};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use sqlx::types::Json;
use sqlx::{PgConnection, PgExecutor, PgPool};
use uuid::Uuid;

use crate::plan::Plan;
use crate::store::outbox;
use crate::store::outbox::Outgoing;
use crate::store::{accounts, former_slugs};

mod page;

pub(crate) use page::{Filter, Place, page, page_by_totals};

/// A row of table `links`.
#[derive(Debug, Clone, Serialize, sqlx::FromRow)]
pub(crate) struct LinkRow {
    pub(crate) id: Uuid,
    pub(crate) workspace_id: Uuid,
    pub(crate) user_id: Uuid,
    pub(crate) slug: String,
    pub(crate) name: String,
    pub(crate) destination: String,
    pub(crate) is_active: bool,
    pub(crate) is_locked: bool,
    pub(crate) is_blocked: bool,
    pub(crate) blocked_reason: Option<String>,
    pub(crate) blocked_host: Option<String>,
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
    /// Returns the link's public id.
    pub(crate) fn link_id(&self) -> LinkId {
        LinkId::from_uuid(self.id)
    }

    /// Returns the owner's public id.
    pub(crate) fn owner_id(&self) -> UserId {
        UserId::from_uuid(self.user_id)
    }

    /// Returns the record for the edges.
    pub(crate) fn record(&self) -> LinkRecord {
        LinkRecord::Live(Link {
            version: Version,
            id: self.link_id(),
            revision: self.revision.unsigned_abs(),
            workspace_id: WorkspaceId::from_uuid(self.workspace_id),
            slug: self.slug.clone(),
            destination: self.destination.clone(),
            is_active: self.is_active,
            redirect_status: self.redirect_status.unsigned_abs(),
            forward_query: ForwardQuery::of_column(&self.forward_query),
            append_click_id: self.append_click_id,
            expires_at: self.expires_at,
            is_blocked: self.is_blocked,
        })
    }
}

/// The kind of a link event, and its data for webhook receivers.
pub(crate) struct EventPayload {
    pub(crate) kind: LinkEventKind,
    pub(crate) data: serde_json::Value,
}

/// Inserts a link and queues its messages, with one statement. Returns whether the link was inserted.
///
/// It shares the account as [`accounts::share`] does, and does nothing when the account has another plan, or the slug
/// or the external id is taken.
pub(crate) async fn insert(
    executor: impl PgExecutor<'_>,
    account: Uuid,
    plan: Plan,
    link: &LinkRow,
    told: EventPayload,
) -> sqlx::Result<bool> {
    let (topics, keys, values) = outbox::columns(messages(link, &link.record(), told));
    sqlx::query_scalar(
        "WITH queue AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared($17)),
              held AS MATERIALIZED (
             SELECT a.plan FROM queue CROSS JOIN accounts a WHERE a.id = $16 FOR SHARE OF a
         ), link AS (
             INSERT INTO links (id, workspace_id, user_id, slug, name, destination, is_active, redirect_status,
                                forward_query, append_click_id, expires_at, external_id, tags, created_at, updated_at)
             SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15 FROM held
             WHERE held.plan = $18
               AND NOT EXISTS (SELECT FROM former_slugs f
                               WHERE f.slug = $4 AND f.until > now() AND f.workspace_id IS DISTINCT FROM $2)
             ON CONFLICT DO NOTHING
             RETURNING id
         ), queued AS (
             INSERT INTO outbox (topic, key, value)
             SELECT topic, key, value
             FROM link
             CROSS JOIN unnest($19::text[], $20::text[], $21::bytea[]) WITH ORDINALITY AS m (topic, key, value, place)
             ORDER BY place
             RETURNING seq
         )
         SELECT count(pg_notify($22, '')) > 0 FROM queued",
    )
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
    .bind(account)
    .bind(accounts::queue(account))
    .bind(plan.as_str())
    .bind(topics)
    .bind(keys)
    .bind(values)
    .bind(outbox::CHANNEL)
    .fetch_one(executor)
    .await
}

/// Returns whether another link of a workspace has this external id.
pub(crate) async fn has_external_id(
    transaction: &mut PgConnection,
    workspace: Uuid,
    external_id: Option<&str>,
) -> sqlx::Result<bool> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM links WHERE workspace_id = $1 AND external_id = $2)")
        .bind(workspace)
        .bind(external_id)
        .fetch_one(transaction)
        .await
}

/// Inserts links, queues their messages, and returns the ids of the inserted ones. Links whose slug or external id is
/// taken, also by one before them in the list, are left out.
///
/// Each link comes with its event data.
pub(crate) async fn insert_all(
    transaction: &mut PgConnection,
    links: &[(LinkRow, serde_json::Value)],
) -> sqlx::Result<HashSet<Uuid>> {
    let rows: Vec<&LinkRow> = links.iter().map(|(link, _)| link).collect();
    let inserted: Vec<Uuid> = sqlx::query_scalar(
        "INSERT INTO links (id, workspace_id, user_id, slug, name, destination, is_active, redirect_status,
                            forward_query, append_click_id, expires_at, external_id, tags, created_at, updated_at)
         SELECT id, workspace_id, user_id, slug, name, destination, is_active, redirect_status,
                forward_query, append_click_id, expires_at, external_id, tags, created_at, updated_at
         FROM jsonb_to_recordset($1) AS link (
             id uuid, workspace_id uuid, user_id uuid, slug text, name text, destination text, is_active boolean,
             redirect_status smallint, forward_query text, append_click_id boolean, expires_at timestamptz,
             external_id text, tags text[], created_at timestamptz, updated_at timestamptz
         )
         WHERE NOT EXISTS (SELECT FROM former_slugs f WHERE f.slug = link.slug AND f.until > now()
                           AND f.workspace_id IS DISTINCT FROM link.workspace_id)
         ON CONFLICT DO NOTHING
         RETURNING id",
    )
    .bind(Json(rows))
    .fetch_all(&mut *transaction)
    .await?;
    let inserted = HashSet::from_iter(inserted);
    let told = links.iter().filter(|(link, _)| inserted.contains(&link.id)).flat_map(|(link, data)| {
        messages(link, &link.record(), EventPayload { kind: LinkEventKind::Created, data: data.clone() })
    });
    outbox::enqueue_all(transaction, told).await?;
    Ok(inserted)
}

/// Waits for other such transactions that insert links with the same slugs or external ids.
///
/// Transactions insert many links in the order of their requests; without locking in a common order they would
/// deadlock. `names` are the slug and external id of each link.
pub(crate) async fn queue_for_names<'a>(
    transaction: &mut PgConnection,
    workspace: Uuid,
    names: impl Iterator<Item = (Option<&'a str>, Option<&'a str>)>,
) -> sqlx::Result<()> {
    let places = names
        .flat_map(|(slug, external_id)| {
            let slug = slug.map(|slug| place(&[b"slug", slug.as_bytes()]));
            slug.into_iter().chain(external_id.map(|id| place(&[workspace.as_bytes(), id.as_bytes()])))
        })
        .collect();
    queue(transaction, places).await
}

/// Waits for other transactions that assign one of these slugs.
///
/// Two links that swap their slugs would otherwise deadlock in the index.
pub(crate) async fn queue_for_slugs(transaction: &mut PgConnection, slugs: [&str; 2]) -> sqlx::Result<()> {
    queue(transaction, slugs.map(|slug| place(&[b"slug", slug.as_bytes()])).into()).await
}

async fn queue(transaction: &mut PgConnection, mut places: Vec<i64>) -> sqlx::Result<()> {
    places.sort_unstable();
    sqlx::query("SELECT pg_advisory_xact_lock(place) FROM unnest($1::bigint[]) AS place")
        .bind(places)
        .execute(transaction)
        .await?;
    Ok(())
}

/// The advisory lock of a name: 62 bits above 2^62, where no other lock is. A collision only makes two names wait for
/// each other.
fn place(name: &[&[u8]]) -> i64 {
    let digest = name.iter().fold(Sha256::new(), |digest, part| digest.chain_update(part)).finalize();
    let bytes = digest.iter().take(8).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    ((bytes >> 2) | 1 << 62).cast_signed()
}

/// Counts an account's links. The number holds while the transaction has taken the account ([`accounts::take`]).
pub(crate) async fn count_of_account(connection: &mut PgConnection, account: Uuid) -> sqlx::Result<i64> {
    sqlx::query_scalar(
        "SELECT count(*) FROM links WHERE workspace_id IN (SELECT id FROM workspaces WHERE account_id = $1)",
    )
    .bind(account)
    .fetch_one(connection)
    .await
}

/// Reads a link of a workspace.
pub(crate) async fn find(
    executor: impl PgExecutor<'_>,
    workspace: Uuid,
    id: Uuid,
) -> sqlx::Result<Option<LinkRow>> {
    sqlx::query_as("SELECT * FROM links WHERE id = $1 AND workspace_id = $2")
        .bind(id)
        .bind(workspace)
        .fetch_optional(executor)
        .await
}

/// Reads a link and locks it until the transaction ends.
pub(crate) async fn find_for_update(
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

/// Reads the link with an external id and locks it until the transaction ends.
pub(crate) async fn find_external_for_update(
    transaction: &mut PgConnection,
    workspace: Uuid,
    external_id: &str,
) -> sqlx::Result<Option<LinkRow>> {
    sqlx::query_as("SELECT * FROM links WHERE workspace_id = $1 AND external_id = $2 FOR UPDATE")
        .bind(workspace)
        .bind(external_id)
        .fetch_optional(transaction)
        .await
}

/// Writes a changed link under its next revision, and queues its messages.
pub(crate) async fn update(
    transaction: &mut PgConnection,
    link: &LinkRow,
    told: EventPayload,
) -> sqlx::Result<()> {
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

/// Deletes a link and its conversions, records the id as deleted, and queues the messages.
pub(crate) async fn delete(
    transaction: &mut PgConnection,
    link: &LinkRow,
    deleted_at: DateTime<Utc>,
    told: EventPayload,
) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM links WHERE id = $1").bind(link.id).execute(&mut *transaction).await?;
    sqlx::query("INSERT INTO deleted_links (id, workspace_id, deleted_at) VALUES ($1, $2, $3)")
        .bind(link.id)
        .bind(link.workspace_id)
        .bind(deleted_at)
        .execute(&mut *transaction)
        .await?;
    // Nobody takes over the visitors of a blocked link.
    let keeper = (!link.is_blocked).then_some(link.workspace_id);
    former_slugs::hold(&mut *transaction, &[&link.slug], keeper).await?;
    sqlx::query("DELETE FROM conversions WHERE link_id = $1")
        .bind(link.id)
        .execute(&mut *transaction)
        .await?;
    let record = LinkRecord::Deleted(DeletedLink {
        version: Version,
        id: link.link_id(),
        revision: link.revision.unsigned_abs() + 1,
        workspace_id: Some(WorkspaceId::from_uuid(link.workspace_id)),
        deleted_at,
    });
    tell(transaction, link, &record, told).await
}

async fn tell(
    transaction: &mut PgConnection,
    link: &LinkRow,
    record: &LinkRecord,
    told: EventPayload,
) -> sqlx::Result<()> {
    outbox::enqueue_all(transaction, messages(link, record, told)).await
}

/// Returns the messages about a change, for edges and for webhook receivers.
pub(crate) fn messages(link: &LinkRow, record: &LinkRecord, told: EventPayload) -> [Outgoing; 2] {
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
    [
        Outgoing { topic: schemas::topic::LINKS, key: key.clone(), value: record.encode() },
        Outgoing { topic: schemas::topic::LINK_EVENTS, key, value: event.encode() },
    ]
}

/// Lists the links of an account whose lock differs from what the cap requires: id, and whether to lock it.
///
/// The oldest links over all workspaces, up to the cap, must be unlocked.
pub(crate) async fn misplaced(
    transaction: &mut PgConnection,
    account: Uuid,
    cap: Option<i64>,
) -> sqlx::Result<Vec<(Uuid, bool)>> {
    sqlx::query_as(
        "SELECT id, NOT is_locked FROM (
             SELECT l.id, l.is_locked, row_number() OVER (ORDER BY l.created_at, l.id) > $2 AS is_over
             FROM links l JOIN workspaces w ON w.id = l.workspace_id
             WHERE w.account_id = $1
         ) AS ranked
         WHERE is_over <> is_locked",
    )
    .bind(account)
    .bind(cap.unwrap_or(i64::MAX))
    .fetch_all(transaction)
    .await
}

/// Returns whether an account has a locked link.
pub(crate) async fn has_locked(transaction: &mut PgConnection, account: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM links l JOIN workspaces w ON w.id = l.workspace_id
                        WHERE w.account_id = $1 AND l.is_locked)",
    )
    .bind(account)
    .fetch_one(transaction)
    .await
}

/// Locks or unlocks links under their next revisions, and returns them.
pub(crate) async fn set_locked(
    transaction: &mut PgConnection,
    links: &[Uuid],
    is_locked: bool,
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<LinkRow>> {
    // Never before the creation, also when the clock was set back.
    sqlx::query_as(
        "UPDATE links SET is_locked = $2, revision = revision + 1, updated_at = greatest(created_at, $3)
         WHERE id = ANY($1) RETURNING *",
    )
    .bind(links)
    .bind(is_locked)
    .bind(now)
    .fetch_all(transaction)
    .await
}

/// Reads links in the order of their ids after `after`, locked until the transaction ends.
pub(crate) async fn page_by_id(
    transaction: &mut PgConnection,
    after: Uuid,
    limit: i64,
) -> sqlx::Result<Vec<LinkRow>> {
    sqlx::query_as("SELECT * FROM links WHERE id > $1 ORDER BY id LIMIT $2 FOR SHARE")
        .bind(after)
        .bind(limit)
        .fetch_all(transaction)
        .await
}

/// Adds to the revisions of links.
pub(crate) async fn raise_revisions(
    transaction: &mut PgConnection,
    links: &mut [LinkRow],
    by: i64,
) -> sqlx::Result<()> {
    let ids: Vec<Uuid> = links.iter().map(|link| link.id).collect();
    sqlx::query("UPDATE links SET revision = revision + $2 WHERE id = ANY($1)")
        .bind(ids)
        .bind(by)
        .execute(transaction)
        .await?;
    for link in links {
        link.revision += by;
    }
    Ok(())
}

/// Reads deleted links, their workspaces, and when they were deleted, in the order of their ids after `after`.
pub(crate) async fn deleted_page_by_id(
    connection: &mut PgConnection,
    after: Uuid,
    limit: i64,
) -> sqlx::Result<Vec<(Uuid, Uuid, DateTime<Utc>)>> {
    sqlx::query_as(
        "SELECT id, workspace_id, deleted_at FROM deleted_links WHERE id > $1 ORDER BY id LIMIT $2",
    )
    .bind(after)
    .bind(limit)
    .fetch_all(connection)
    .await
}

/// Reads links and their destinations in the order of their ids after `after`: id, destination, blocked host.
pub(crate) async fn destinations_by_id(
    pool: &PgPool,
    after: Uuid,
    limit: i64,
) -> sqlx::Result<Vec<(Uuid, String, Option<String>)>> {
    sqlx::query_as("SELECT id, destination, blocked_host FROM links WHERE id > $1 ORDER BY id LIMIT $2")
        .bind(after)
        .bind(limit)
        .fetch_all(pool)
        .await
}

/// Returns whether a link exists.
pub(crate) async fn exists(connection: &mut PgConnection, link: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM links WHERE id = $1)")
        .bind(link)
        .fetch_one(connection)
        .await
}

/// Returns whether a link is blocked, for whatever reason.
pub(crate) async fn is_blocked(pool: &PgPool, link: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM links WHERE id = $1 AND is_blocked)")
        .bind(link)
        .fetch_one(pool)
        .await
}

/// Blocks a link for a reason, or, without one, ends that block, under the link's next revision. `None` when nothing
/// changed.
pub(crate) async fn set_blocked_reason(
    transaction: &mut PgConnection,
    link: Uuid,
    reason: Option<&str>,
    now: DateTime<Utc>,
) -> sqlx::Result<Option<LinkRow>> {
    sqlx::query_as(
        "UPDATE links SET blocked_reason = $2, revision = revision + 1, updated_at = greatest(created_at, $3)
         WHERE id = $1 AND blocked_reason IS DISTINCT FROM $2 RETURNING *",
    )
    .bind(link)
    .bind(reason)
    .bind(now)
    .fetch_optional(transaction)
    .await
}

/// Notes which blocked host, if any, a link's destination is on, under the link's next revision. `None` when the
/// destination or the host has changed meanwhile.
pub(crate) async fn set_blocked_host(
    transaction: &mut PgConnection,
    link: Uuid,
    destination: &str,
    host: Option<&str>,
    now: DateTime<Utc>,
) -> sqlx::Result<Option<LinkRow>> {
    sqlx::query_as(
        "UPDATE links SET blocked_host = $3, revision = revision + 1, updated_at = greatest(created_at, $4)
         WHERE id = $1 AND destination = $2 AND blocked_host IS DISTINCT FROM $3 RETURNING *",
    )
    .bind(link)
    .bind(destination)
    .bind(host)
    .bind(now)
    .fetch_optional(transaction)
    .await
}

/// Blocks up to `limit` links of a suspended account, or ends that block, under the links' next revisions. Returns
/// those that changed.
pub(crate) async fn set_suspended(
    transaction: &mut PgConnection,
    account: Uuid,
    is_suspended: bool,
    limit: i64,
) -> sqlx::Result<Vec<LinkRow>> {
    sqlx::query_as(
        "UPDATE links SET is_suspended = $2, revision = revision + 1
         WHERE id IN (SELECT l.id FROM links l JOIN workspaces w ON w.id = l.workspace_id
                      WHERE w.account_id = $1 AND l.is_suspended <> $2 ORDER BY l.id LIMIT $3 FOR UPDATE OF l)
         RETURNING *",
    )
    .bind(account)
    .bind(is_suspended)
    .bind(limit)
    .fetch_all(transaction)
    .await
}

/// Reads every tag of a workspace's links, sorted, up to a limit.
pub(crate) async fn tags(pool: &PgPool, workspace: Uuid, limit: i64) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar(include_str!("../tags.sql")).bind(workspace).bind(limit).fetch_all(pool).await
}

/// Returns whether a workspace cannot take a slug: a link of any workspace has it, because a slug belongs to the host,
/// or it is held for another one.
pub(crate) async fn is_slug_taken(pool: &PgPool, workspace: Uuid, slug: &str) -> sqlx::Result<bool> {
    let has_link: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM links WHERE slug = $1)")
        .bind(slug)
        .fetch_one(pool)
        .await?;
    Ok(has_link || former_slugs::is_held(pool, workspace, slug).await?)
}
