//! The dispatcher's SQL: one statement or one transaction per function.
//!
//! Times that decide something come from the database, so that the clocks of dispatchers need not agree.

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
