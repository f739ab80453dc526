//! The state for appending clicks to the newest segment.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::spool::segment::Active;
use crate::spool::spare::Spare;

/// Why a click cannot be appended.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// The spool has reached its limit. It accepts clicks again once Kafka has confirmed a segment.
    #[error("the spool is full: its limit is {0} bytes (HOPLINE_SPOOL_MAX_BYTES)")]
    Full(u64),
    /// The disk is full or fails.
    #[error("the disk takes no clicks: {0}")]
    Disk(#[source] Arc<io::Error>),
}

impl From<io::Error> for AppendError {
    fn from(error: io::Error) -> Self {
        Self::Disk(error.into())
    }
}

/// The active segment and the files around it.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) active: Option<Active>,
    /// The prepared file for the next segment.
    pub(super) spare: Option<Spare>,
    pub(super) next_number: u64,
    /// Segments that were sealed since the last sync.
    pub(super) unsynced: Vec<Arc<File>>,
    /// Whether a segment was created since the last sync.
    pub(super) created: bool,
    /// Why the last attempt to create a segment failed. Cleared by `Spool::prepare`.
    pub(super) error: Option<AppendError>,
}

impl Writer {
    pub(super) fn new(next_number: u64) -> Self {
        Self { active: None, spare: None, next_number, unsynced: Vec::new(), created: false, error: None }
    }

    /// Returns the number for a new segment.
    pub(super) fn take_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Seals the active segment.
    pub(super) fn seal(&mut self) {
        if let Some(active) = self.active.take() {
            active.segment.seal();
            self.unsynced.push(active.file);
        }
    }
}
