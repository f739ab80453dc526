//! The links on the local disk: a stand-in for topic `links`, so that an edge starts while Kafka is down.
//!
//! It is never the truth. When Kafka answers, the topic is read from its beginning and takes the snapshot's place in
//! one step; what was deleted while the edge was away is gone then.

mod format;
mod keeper;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, BufWriter, Write as _},
    path::{Path, PathBuf},
    time::Instant,
};

use chrono::{DateTime, Utc};

use super::{Links, Table};
pub use format::Unusable;
pub use keeper::{Keeper, keep};

/// What a snapshot is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The topic's full name.
    pub topic: String,
    /// The cluster's id, where Kafka told it.
    pub cluster_id: Option<String>,
    /// When it was written.
    pub written_at: DateTime<Utc>,
}

/// Serves the links of a snapshot, if there is one of that topic, and returns what it is of.
///
/// A snapshot that cannot be used is told of in the log and otherwise as good as none.
pub fn load(path: &Path, topic: &str, links: &Links) -> Option<Origin> {
    let started = Instant::now();
    let shown = path.display();
    match open(path, topic) {
        Ok(None) => {
            tracing::info!("there is no snapshot of links at {shown}");
            None
        }
        Ok(Some((table, origin))) => {
            let (count, millis) = (table.len(), started.elapsed().as_millis() as u64);
            let written_at = schemas::time::text(origin.written_at);
            tracing::info!(
                links = count,
                millis,
                "serving {count} links of a snapshot of {written_at} until Kafka has been read; loaded in {millis} ms"
            );
            links.serve(table.into());
            Some(origin)
        }
        Err(error) => {
            tracing::error!("ignored the snapshot of links at {shown}: {error}");
            None
        }
    }
}

fn open(path: &Path, topic: &str) -> Result<Option<(Table, Origin)>, Unusable> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    format::read(BufReader::with_capacity(1 << 20, file), topic).map(Some)
}

/// Writes a snapshot in the place of the former one: all of it or none.
///
/// Gives up at `until`, and leaves the former one.
fn write(path: &Path, table: &Table, origin: &Origin, until: Instant) -> io::Result<()> {
    let partial = partial(path);
    let written = File::create(&partial).and_then(|file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        format::write(&mut file, table, origin, until)?;
        file.flush()?;
        // Before the name: after a power loss it must not lead to a file without its bytes.
        file.get_ref().sync_all()
    });
    if let Err(error) = written {
        // The name is used again by the next try, so a failure here is its to tell.
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    fs::rename(&partial, path)?;
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(directory) => OpenOptions::new().read(true).open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// Returns the name under which a snapshot is written.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Returns an age as people say it.
pub(super) fn age(written_at: DateTime<Utc>) -> String {
    let seconds = (Utc::now() - written_at).num_seconds().max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}
