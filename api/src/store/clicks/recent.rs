//! The last state that was read, reused by queries shortly after.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clickhouse::Row;
use parking_lot::Mutex;
use serde::Deserialize;

use super::pieces::Range;

/// A row of one of three tables; the meaning of `number`, `value` and `closes` depends on `of`.
#[derive(Clone, Row, Deserialize)]
pub(super) struct StateRow {
    /// One of [`SOURCE`], [`SLICE`], [`LOG`], [`NEWEST`].
    pub(super) of: u8,
    pub(super) number: u32,
    pub(super) value: i64,
    pub(super) closes: bool,
}

/// `number` is a source, which is complete until `value`, in milliseconds since 1970.
pub(super) const SOURCE: u8 = 1;
/// `number` is a broker day, `value` the newest version of its slice.
pub(super) const SLICE: u8 = 2;
/// `number` is the source of a partition's present log.
pub(super) const LOG: u8 = 3;
/// `value` is the newest version of any slice.
pub(super) const NEWEST: u8 = 4;

/// The last state that holds for every workspace, so that a busy instance does not read it for each request.
#[derive(Default)]
pub(super) struct Recent(Mutex<Option<State>>);

/// Rows, and when they were read.
struct State {
    asked_at: Instant,
    rows: Arc<[StateRow]>,
    conversions: Arc<[Range]>,
}

impl Recent {
    /// Returns the state if it was read at most `age` ago.
    pub(super) fn last(&self, age: Duration) -> Option<Arc<[StateRow]>> {
        let last = self.0.lock();
        last.as_ref().filter(|state| state.asked_at.elapsed() < age).map(|state| Arc::clone(&state.rows))
    }

    /// Returns the numbers of the blocks of conversions that the last state has, if there is one.
    pub(super) fn conversions(&self) -> Option<Arc<[Range]>> {
        self.0.lock().as_ref().map(|state| Arc::clone(&state.conversions))
    }

    /// Replaces the state. A single server counts all conversions, of whatever blocks.
    pub(super) fn keep(&self, asked_at: Instant, rows: Arc<[StateRow]>, conversions: Arc<[Range]>) {
        *self.0.lock() = Some(State { asked_at, rows, conversions });
    }
}
