//! The SQL of the lookup. The database user needs only `SELECT` on table `links`.

use chrono::{DateTime, Utc};
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::{ForwardQuery, Link};
use service::postgres::{DatabaseUrl, pool};
use sqlx::PgPool;
use uuid::Uuid;

/// The maximum number of connections.
const CONNECTIONS: u32 = 4;

#[derive(Debug)]
pub(super) struct Store(PgPool);

#[derive(sqlx::FromRow)]
struct Row {
    id: Uuid,
    workspace_id: Uuid,
    slug: String,
    destination: String,
    is_active: bool,
    is_blocked: bool,
    redirect_status: i16,
    forward_query: String,
    append_click_id: bool,
    expires_at: Option<DateTime<Utc>>,
    revision: i64,
}

impl Store {
    pub(super) fn new(url: DatabaseUrl) -> Self {
        Self(pool(&url.into(), "hopline-ingest", CONNECTIONS))
    }

    /// Returns the link with this slug.
    pub(super) async fn link(&self, slug: &str) -> sqlx::Result<Option<Link>> {
        let row: Option<Row> = sqlx::query_as(
            "SELECT id, workspace_id, slug, destination, is_active, is_blocked, redirect_status,
                    forward_query, append_click_id, expires_at, revision
             FROM links WHERE slug = $1",
        )
        .bind(slug)
        .fetch_optional(&self.0)
        .await?;
        Ok(row.map(|row| Link {
            version: Default::default(),
            id: LinkId::from_uuid(row.id),
            // `api` writes no negative values.
            revision: row.revision.unsigned_abs(),
            redirect_status: row.redirect_status.unsigned_abs(),
            workspace_id: WorkspaceId::from_uuid(row.workspace_id),
            slug: row.slug,
            destination: row.destination,
            is_active: row.is_active,
            forward_query: ForwardQuery::of_column(&row.forward_query),
            append_click_id: row.append_click_id,
            expires_at: row.expires_at,
            is_blocked: row.is_blocked,
        }))
    }
}
