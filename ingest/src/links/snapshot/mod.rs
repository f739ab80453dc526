//! A snapshot of the links on the local disk, so that an edge can start while Kafka is down.
//!
//! The snapshot may be out of date: it may contain links that were deleted while the edge was stopped. Once Kafka is
//! available, the edge reads the topic from its beginning and replaces the snapshot's links in one step.

mod format;
mod writer;

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::time::Instant;

use chrono::{DateTime, Utc};

pub use self::format::{Origin, SnapshotError};
pub use self::writer::{Writer, start};
use crate::links::Links;
use crate::links::table::Table;

/// Serves the links of the snapshot at `path`, if it is one of `topic`, and returns its origin.
///
/// Logs and ignores a snapshot that cannot be used.
pub fn load(path: &Path, topic: &str, links: &Links) -> Option<Origin> {
    let started = Instant::now();
    let shown = path.display();
    match open(path, topic) {
        Ok(None) => {
            tracing::info!("there is no link snapshot at {shown}");
            None
        }
        Ok(Some((table, origin))) => {
            let (count, millis) = (table.len(), started.elapsed().as_millis() as u64);
            let written_at = schemas::time::text(origin.written_at);
            tracing::info!(
                links = count,
                millis,
                "loaded {count} links from the snapshot written at {written_at} in {millis} ms; serving them until \
                 the topic has been read"
            );
            links.serve(table.into());
            Some(origin)
        }
        Err(error) => {
            tracing::error!("ignored the link snapshot {shown}: {error}");
            None
        }
    }
}

fn open(path: &Path, topic: &str) -> Result<Option<(Table, Origin)>, SnapshotError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    format::read(BufReader::with_capacity(1 << 20, file), topic).map(Some)
}

/// Returns the age of a snapshot in a readable unit.
pub(super) fn age(written_at: DateTime<Utc>) -> String {
    let seconds = (Utc::now() - written_at).num_seconds().max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}
