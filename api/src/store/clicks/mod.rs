//! Queries on clicks, rollups and conversions in ClickHouse.
//!
//! A query first reads a [`Snapshot`] of the tables' state in one small statement, and uses it as literals. Rollups
//! answer up to the last closed slice (a broker's day), raw rows after it and for what is not a whole unit of the
//! rollups.

mod breakdowns;
mod conversions;
mod counts;
mod list;
pub(crate) mod pieces;
mod query_pool;
mod question;
mod recent;
mod replicas;
pub(crate) mod retention;
mod snapshot;
mod source;

pub(crate) use breakdowns::{Dimension, Item, breakdown};
pub(crate) use conversions::{Converted, are_of_class, conversions, conversions_by_link};
pub(crate) use counts::{Count, by_link, by_link_and_day, series, totals_of_all};
pub(crate) use list::{ClickRow, NewestFirst, Position};
pub(crate) use query_pool::{QueryPool, known};
pub(crate) use question::{Classes, Of, Question};
pub(crate) use replicas::follow_replicas;
pub(crate) use snapshot::Snapshot;

use std::sync::Arc;
use std::time::Duration;

use self::recent::Recent;

use service::clickhouse::Clickhouse;

/// Memory of one query for the counters of links, in bytes.
const COUNTERS_MEMORY: u64 = 512 << 20;

/// Memory of one query of a report, in bytes: a thousand points of a series may have 100 KB of visitors each.
const REPORTS_MEMORY: u64 = 1 << 30;

/// Access to the tables, shared by all requests.
pub(crate) struct ClickStore {
    /// For counters of links, with a short timeout.
    pub(crate) counters: QueryPool,
    /// For statistics, clicks and exports.
    pub(crate) reports: QueryPool,
    /// Without the pools' limits, of the replica that both use.
    client: Clickhouse,
}

impl ClickStore {
    /// Creates both pools. Each allows a workspace `per_workspace` concurrent requests; an operation on links waits for
    /// counters at most `counters_bound`, a report takes at most `reports_bound`.
    pub(crate) fn new(
        client: &Clickhouse,
        per_workspace: usize,
        counters_bound: Duration,
        reports_bound: Duration,
    ) -> Self {
        // Both read the replica whose state is known, which changes with that state.
        let client = client.pinned();
        let recent = Arc::new(Recent::default());
        let pool = |bound, memory| QueryPool::new(&client, &recent, per_workspace, bound, memory);
        let (counters, reports) =
            (pool(counters_bound, COUNTERS_MEMORY), pool(reports_bound, REPORTS_MEMORY));
        Self { counters, reports, client }
    }
}
