//! The queries on clicks, rollups and conversions in ClickHouse: the one module that knows the tables.
//!
//! A query first reads a [`Snapshot`], the state of the tables in one small statement, and then takes it as literals.
//! Up to the last closed slice (a slice is a day of the broker) the rollups answer, from there on the raw rows, and
//! for what is no whole unit of the rollups the raw rows of just that part.

mod breakdowns;
mod conversions;
mod counts;
mod list;
mod permits;
pub(crate) mod pieces;
mod query_pool;
mod question;
mod recent;
pub(crate) mod retention;
mod snapshot;
mod source;

pub(crate) use breakdowns::{Dimension, Item, breakdown};
pub(crate) use conversions::{Converted, are_of_class, conversions, conversions_by_link};
pub(crate) use counts::{Count, by_link, by_link_and_day, series, totals_of_all};
pub(crate) use list::{ClickRow, NewestFirst, Position};
pub(crate) use query_pool::{QueryPool, known};
pub(crate) use question::{Classes, Of, Question};
pub(crate) use snapshot::Snapshot;

use std::time::Duration;

/// Memory of one query for the counters of links, in bytes.
const COUNTERS_MEMORY: u64 = 512 << 20;

/// Memory of one query of a report, in bytes: a thousand points of a series may have 100 KB of visitors each.
const REPORTS_MEMORY: u64 = 1 << 30;

/// How long an operation on links waits for its counters before it answers without them.
const COUNTERS_BOUND: Duration = Duration::from_secs(2);

/// Access to the tables, shared by all requests.
pub(crate) struct ClickStore {
    /// For the counters of links, which an operation on links does not wait long for.
    pub(crate) counters: QueryPool,
    /// For what is asked on its own: statistics, clicks, exports.
    pub(crate) reports: QueryPool,
}

impl ClickStore {
    /// Makes the two desks. Each lets a workspace have `per_workspace` requests at a time; a report takes at most
    /// `reports_bound`.
    pub(crate) fn new(client: &clickhouse::Client, per_workspace: usize, reports_bound: Duration) -> Self {
        Self {
            counters: QueryPool::new(client, per_workspace, COUNTERS_BOUND, COUNTERS_MEMORY),
            reports: QueryPool::new(client, per_workspace, reports_bound, REPORTS_MEMORY),
        }
    }
}
