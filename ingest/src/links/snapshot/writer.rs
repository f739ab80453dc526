//! Writes snapshots in a thread.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use chrono::Utc;
use metrics::{Counter, Gauge, counter, gauge};
use service::metrics::UNKNOWN;

use crate::links::Links;
use crate::links::snapshot::format::{self, Origin};
use crate::links::table::Table;

/// How often to check whether a snapshot is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between two snapshots, as a multiple of how long the last one took. Writing ten million links must not
/// keep the disk busy.
const MIN_PAUSE: u32 = 20;

/// How long writing a snapshot may take, except during shutdown.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The thread that writes snapshots.
#[derive(Debug)]
pub struct Writer {
    thread: thread::JoinHandle<()>,
    stop: Arc<OnceLock<Instant>>,
}

impl Writer {
    /// Writes a last snapshot if links have changed, gives up at `deadline`, and ends the thread. Blocks until then.
    pub fn finish(self, deadline: Instant) {
        self.stop.get_or_init(|| deadline);
        self.thread.thread().unpark();
        if self.thread.join().is_err() {
            tracing::error!("the thread that writes link snapshots panicked");
        }
    }
}

/// Starts to write a snapshot whenever links have changed, at most one per `interval`.
///
/// # Errors
/// When the thread cannot be started.
pub fn start(links: Links, path: PathBuf, topic: String, interval: Duration) -> anyhow::Result<Writer> {
    let stop = Arc::new(OnceLock::new());
    let written_at = gauge!("hopline_snapshot_written_timestamp_seconds");
    written_at.set(UNKNOWN);
    let mut state = State {
        links,
        path,
        topic,
        written: None,
        stop: Arc::clone(&stop),
        written_at,
        errors: counter!("hopline_snapshot_errors_total"),
    };
    let thread = thread::Builder::new()
        .name("snapshot".to_owned())
        .spawn(move || state.run(interval))
        .context("cannot start the thread that writes link snapshots")?;
    Ok(Writer { thread, stop })
}

struct State {
    links: Links,
    path: PathBuf,
    topic: String,
    /// The table that was written last, and its number of changes.
    written: Option<(Weak<Table>, u64)>,
    stop: Arc<OnceLock<Instant>>,
    written_at: Gauge,
    errors: Counter,
}

impl State {
    fn run(&mut self, interval: Duration) {
        let mut due = Instant::now();
        loop {
            let stop = self.stop.get().copied();
            if stop.is_some() || Instant::now() >= due {
                let started = Instant::now();
                if self.write_if_changed(stop.unwrap_or(started + TIMEOUT)) {
                    let took = started.elapsed();
                    due = Instant::now() + interval.max(took * MIN_PAUSE);
                }
            }
            if stop.is_some() {
                return;
            }
            thread::park_timeout(CHECK_INTERVAL);
        }
    }

    /// Returns whether there was something to write.
    fn write_if_changed(&mut self, until: Instant) -> bool {
        // Until then the links come from the snapshot, or only some of them are loaded.
        if !self.links.is_caught_up() {
            return false;
        }
        let table = self.links.table();
        // Read before writing: changes during the writing are for the next snapshot.
        let changes = table.changes();
        let same = |(written, at): &(Weak<Table>, u64)| {
            std::ptr::eq(written.as_ptr(), Arc::as_ptr(&table)) && *at == changes
        };
        if self.written.as_ref().is_some_and(same) {
            return false;
        }
        let origin = Origin {
            topic: self.topic.clone(),
            cluster_id: self.links.shared.cluster_id.get().cloned(),
            written_at: Utc::now(),
        };
        match write(&self.path, &table, &origin, until) {
            Ok(()) => {
                self.written_at.set(origin.written_at.timestamp_millis() as f64 / 1e3);
                self.written = Some((Arc::downgrade(&table), changes));
            }
            Err(error) => {
                self.errors.increment(1);
                let shown = self.path.display();
                tracing::error!("cannot write the link snapshot {shown}, the previous one remains: {error}");
            }
        }
        true
    }
}

/// Replaces the snapshot at `path` atomically. Gives up at `until` and leaves the previous one.
fn write(path: &Path, table: &Table, origin: &Origin, until: Instant) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let created = File::options().write(true).create(true).truncate(true).mode(0o600).open(&partial);
    let written = created.and_then(|file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        format::write(&mut file, table, origin, until)?;
        file.flush()?;
        // Before the rename: after a power loss the name must not refer to a file without its bytes.
        file.get_ref().sync_all()
    });
    if let Err(error) = written {
        // The next attempt overwrites the file if it cannot be removed.
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    fs::rename(&partial, path)?;
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(directory) => OpenOptions::new().read(true).open(directory)?.sync_all(),
        None => Ok(()),
    }
}
