//! The last state of the tables that was read, for queries that follow it closely.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clickhouse::Row;
use parking_lot::Mutex;
use serde::Deserialize;

/// A row of one of the three tables that the state is in; what `number`, `value` and `closes` are depends on which.
#[derive(Row, Deserialize)]
pub(super) struct StateRow {
    /// One of [`SOURCE`], [`SLICE`], [`LOG`].
    pub(super) of: u8,
    pub(super) number: u32,
    pub(super) value: i64,
    pub(super) closes: bool,
}

/// `number` is a source, and it is complete until `value`, in milliseconds since 1970.
pub(super) const SOURCE: u8 = 1;
/// `number` is a day of the broker, `value` the newest version of its slice.
pub(super) const SLICE: u8 = 2;
/// `number` is the source of the log that a partition has.
pub(super) const LOG: u8 = 3;

/// How old a state may be that is used again. It is as true as when it was read: what it promises is never taken
/// back. Clicks that came since are counted all the same; only `as_of` and newly closed slices wait for the next one.
const RECENT: Duration = Duration::from_millis(100);

/// The last state that holds for every workspace, so that a busy instance does not ask for it with each request.
#[derive(Default)]
pub(super) struct Recent(Mutex<Option<State>>);

/// The rows that were there when they were asked for.
struct State {
    asked_at: Instant,
    rows: Arc<[StateRow]>,
}

impl Recent {
    pub(super) fn last(&self) -> Option<Arc<[StateRow]>> {
        let last = self.0.lock();
        last.as_ref().filter(|state| state.asked_at.elapsed() < RECENT).map(|state| Arc::clone(&state.rows))
    }

    pub(super) fn keep(&self, asked_at: Instant, rows: Arc<[StateRow]>) {
        *self.0.lock() = Some(State { asked_at, rows });
    }
}
