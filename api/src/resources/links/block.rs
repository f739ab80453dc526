//! Blocks links whose destination is on a blocked host, and ends such blocks.

use chrono::Utc;
use sqlx::PgConnection;
use uuid::Uuid;

use super::object;
use crate::app::App;
use crate::store::links::LinkRow;
use crate::store::{blocked_hosts, links, outbox};

/// Links that are read at a time.
const PAGE: i64 = 5_000;

/// How many links are blocked now that were not, and the other way round.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Blocked {
    pub(crate) blocked: usize,
    pub(crate) unblocked: usize,
}

/// Compares every link's destination with the blocked hosts, and notes what differs.
///
/// Reads all links, because destinations are stored as their owners wrote them, and a host has many spellings. May be
/// interrupted and run again.
pub(crate) async fn compare_all(app: &App) -> sqlx::Result<Blocked> {
    app.destinations.set_blocked(blocked_hosts::all(&app.pool).await?);
    let (mut counted, mut after) = (Blocked::default(), Uuid::nil());
    loop {
        let page = links::destinations_by_id(&app.pool, after, PAGE).await?;
        let Some((last, ..)) = page.last() else { return Ok(counted) };
        after = *last;
        for (id, destination, known) in &page {
            let host = app.destinations.blocked_host(destination);
            if host == *known {
                continue;
            }
            let mut transaction = app.pool.begin().await?;
            let now = schemas::time::to_millis(Utc::now());
            let set = links::set_blocked_host(&mut transaction, *id, destination, host.as_deref(), now);
            if let Some(row) = set.await? {
                tell(&mut transaction, &row, app).await?;
                transaction.commit().await?;
                match host {
                    Some(_) => counted.blocked += 1,
                    None => counted.unblocked += 1,
                }
            }
        }
    }
}

/// Queues the messages about a link that was blocked or unblocked.
pub(crate) async fn tell(transaction: &mut PgConnection, row: &LinkRow, app: &App) -> sqlx::Result<()> {
    outbox::enqueue_all(transaction, object::change_messages(row, app, "is_blocked")).await
}
