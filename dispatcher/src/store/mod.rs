//! The dispatcher's SQL: one statement or one transaction per function.
//!
//! Times that decide something come from the database, so that the clocks of dispatchers need not agree.

/// Begins a statement with the ids of the endpoints that have rows in a table, as `endpoint`, and a null.
///
/// It steps from one endpoint to the next over the index. `DISTINCT` would read the million rows of a dead endpoint.
macro_rules! with_endpoints_of {
    ($table:literal) => {
        concat!(
            "WITH RECURSIVE endpoint (id) AS (
                 (SELECT endpoint_id FROM ",
            $table,
            " ORDER BY endpoint_id LIMIT 1)
                 UNION ALL
                 SELECT (SELECT endpoint_id FROM ",
            $table,
            " WHERE endpoint_id > endpoint.id ORDER BY endpoint_id LIMIT 1)
                 FROM endpoint WHERE endpoint.id IS NOT NULL
             )"
        )
    };
}

mod cleaning;
mod endpoints;
mod enqueue;
mod failures;
mod finished;
mod health;
mod presence;
mod queue;
mod settle;
mod streaks;

pub(crate) use cleaning::{Limits, clean, note_full};
pub(crate) use endpoints::{Endpoint, enabled_endpoints, targets, targets_of, version_and_full};
pub(crate) use enqueue::{
    Fenced, Move, NewDelivery, Partition, Position, add_positions, insert, move_positions, positions,
};
pub(crate) use finished::Finished;
pub(crate) use health::Health;
pub(crate) use presence::{dead, register, remove_dead};
pub(crate) use queue::{Grant, Lease, Waiting, backlog, claim, release};
pub(crate) use settle::{Settled, settle};
pub(crate) use streaks::DISABLED_AT;
