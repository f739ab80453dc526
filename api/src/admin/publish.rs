//! Publishes links and conversions again, after their topics have lost them.

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::{DeletedLink, LinkRecord, Message as _, Version};
use schemas::topic;
use serde::Serialize;
use serde_json::json;
use service::http::ApiError;
use sqlx::PgPool;
use uuid::{Builder, Uuid};

use super::trail::record;
use crate::error::{database, retry_deadlocks};
use crate::store::audit::Of;
use crate::store::edge_tokens::EdgeTokenRow;
use crate::store::outbox::Outgoing;
use crate::store::{conversions, edge_tokens, links, outbox};

/// Links of one transaction, which locks them.
const PAGE: i64 = 500;

/// How far the clock of an API may have been behind.
const CLOCKS: TimeDelta = TimeDelta::hours(1);

/// Conversions of one statement.
const CONVERSIONS: i64 = 2_000;

/// Messages that may wait in the outbox before more are put there.
const WAITING: i64 = 10_000;

/// Time between two checks of the outbox.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Least time between two lines about progress.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Added to the revision of each link after Postgres was restored: more changes than a link had since the backup.
const LOST_CHANGES: i64 = 1_000_000;

/// The revision of deleted links: above every revision a link can have, since its own is not stored.
const AFTER_ALL: u64 = i64::MAX.unsigned_abs();

/// How many messages were published.
#[derive(Debug, Default, Serialize)]
pub(super) struct Published {
    edge_tokens: usize,
    links: usize,
    deleted_links: usize,
}

/// Publishes the record of every edge token, link and deleted link again, and returns when Kafka has them.
///
/// Records carry the link's present revision, so readers that know it change nothing; after Postgres was restored they
/// carry one above those that were lost, so that readers take them instead of later changes. A link is locked until its
/// record is in the outbox; otherwise a newer record could come first, and compaction would keep the older one.
pub(super) async fn publish_links(pool: &PgPool, restored: bool) -> Result<Published, ApiError> {
    let mut outbox = Outbox { pool, logged: Instant::now() };
    let mut published = Published { edge_tokens: publish_edge_tokens(pool).await?, ..Published::default() };
    let mut after = Some(Uuid::nil());
    while let Some(last) = after {
        let (count, next) = retry_deadlocks(|| publish_page(pool, last, restored)).await?;
        published.links += count;
        after = next;
        outbox.drain(WAITING, || links_line(&published)).await?;
    }
    let mut after = Some(Uuid::nil());
    while let Some(last) = after {
        let (count, next) = publish_deleted_page(pool, last).await?;
        published.deleted_links += count;
        after = next;
        outbox.drain(WAITING, || links_line(&published)).await?;
    }
    outbox.drain(0, || links_line(&published)).await?;
    let mut connection = pool.acquire().await.map_err(database)?;
    record(&mut connection, "publish-links", "links", Of::Nobody, json!(published))
        .await
        .map_err(database)?;
    Ok(published)
}

async fn publish_edge_tokens(pool: &PgPool) -> Result<usize, ApiError> {
    let mut transaction = pool.begin().await.map_err(database)?;
    let tokens = edge_tokens::all(&mut transaction).await.map_err(database)?;
    let messages = tokens.iter().map(EdgeTokenRow::message);
    outbox::enqueue_all(&mut transaction, messages).await.map_err(database)?;
    transaction.commit().await.map_err(database)?;
    Ok(tokens.len())
}

/// Queues the links after an id. Returns how many, and the last id.
async fn publish_page(pool: &PgPool, after: Uuid, restored: bool) -> Result<(usize, Option<Uuid>), ApiError> {
    let mut transaction = pool.begin().await.map_err(database)?;
    let mut links = links::page_by_id(&mut transaction, after, PAGE).await.map_err(database)?;
    if restored {
        links::raise_revisions(&mut transaction, &mut links, LOST_CHANGES).await.map_err(database)?;
    }
    let messages = links.iter().map(|link| message(link.link_id(), &link.record()));
    outbox::enqueue_all(&mut transaction, messages).await.map_err(database)?;
    transaction.commit().await.map_err(database)?;
    Ok((links.len(), links.last().map(|link| link.id)))
}

/// Queues the deleted links after an id; they never change. Returns how many, and the last id.
async fn publish_deleted_page(pool: &PgPool, after: Uuid) -> Result<(usize, Option<Uuid>), ApiError> {
    let mut connection = pool.acquire().await.map_err(database)?;
    let links = links::deleted_page_by_id(&mut connection, after, PAGE).await.map_err(database)?;
    let messages = links.iter().map(|&(id, workspace, deleted_at)| {
        let id = LinkId::from_uuid(id);
        let workspace_id = Some(WorkspaceId::from_uuid(workspace));
        let deleted = DeletedLink { version: Version, id, revision: AFTER_ALL, workspace_id, deleted_at };
        message(id, &LinkRecord::Deleted(deleted))
    });
    outbox::enqueue_all(&mut connection, messages).await.map_err(database)?;
    Ok((links.len(), links.last().map(|(id, ..)| *id)))
}

fn message(id: LinkId, record: &LinkRecord) -> Outgoing {
    Outgoing { topic: topic::LINKS, key: id.to_string(), value: record.encode() }
}

fn links_line(Published { links, deleted_links, .. }: &Published) -> String {
    format!("{links} links and {deleted_links} deleted ones")
}

/// Publishes again each conversion that was registered since a time and whose click its plan still keeps, and returns
/// how many when Kafka has them. They are stored once, however often they are published.
pub(super) async fn publish_conversions(pool: &PgPool, since: DateTime<Utc>) -> Result<usize, ApiError> {
    let mut outbox = Outbox { pool, logged: Instant::now() };
    // An id begins with the time of its creation, so a recent time needs no look at older conversions.
    let earliest = (since.timestamp_millis() - CLOCKS.num_milliseconds()).try_into().unwrap_or(0);
    let (mut count, mut after) =
        (0, Some(Builder::from_unix_timestamp_millis(earliest, &[0; 10]).into_uuid()));
    while let Some(last) = after {
        let mut connection = pool.acquire().await.map_err(database)?;
        let page =
            conversions::page_by_id(&mut connection, last, since, CONVERSIONS).await.map_err(database)?;
        after = page.last().map(|(id, _)| *id);
        count += page.len();
        let messages = page.into_iter().map(|(_, message)| message);
        outbox::enqueue_all(&mut connection, messages).await.map_err(database)?;
        drop(connection);
        outbox.drain(WAITING, || format!("{count} conversions")).await?;
    }
    outbox.drain(0, || format!("{count} conversions")).await?;
    let mut connection = pool.acquire().await.map_err(database)?;
    let details = json!({ "conversions": count, "since": since });
    record(&mut connection, "publish-conversions", "conversions", Of::Nobody, details)
        .await
        .map_err(database)?;
    Ok(count)
}

/// The outbox, which an API that runs empties.
struct Outbox<'a> {
    pool: &'a PgPool,
    /// When progress was logged last.
    logged: Instant,
}

impl Outbox<'_> {
    /// Waits until at most `most` of the messages now in the outbox are left. `published` says what was put there.
    async fn drain(&mut self, most: i64, published: impl Fn() -> String) -> Result<(), ApiError> {
        let mut connection = self.pool.acquire().await.map_err(database)?;
        let last = outbox::last(&mut connection).await.map_err(database)?;
        loop {
            let waiting = outbox::waiting(&mut connection, last).await.map_err(database)?;
            if self.logged.elapsed() > LOG_INTERVAL {
                self.logged = Instant::now();
                tracing::info!(waiting, "{}; {waiting} messages wait for an API that runs", published());
            }
            if waiting <= most {
                return Ok(());
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}
