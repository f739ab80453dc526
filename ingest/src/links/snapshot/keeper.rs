//! Writing a snapshot now and then.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, Weak},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use chrono::Utc;
use metrics::{Counter, Gauge, counter, gauge};

use super::{
    super::{Links, Table},
    Origin, write,
};

/// How often to look whether a snapshot is due.
const LOOK: Duration = Duration::from_secs(1);

/// How many times longer than the last one took no other is begun: a disk under ten million links has other work.
const REST: u32 = 20;

/// How long one may take while the process runs.
const PATIENCE: Duration = Duration::from_secs(600);

/// The thread that writes snapshots.
#[derive(Debug)]
pub struct Keeper {
    thread: thread::JoinHandle<()>,
    stop: Arc<OnceLock<Instant>>,
}

impl Keeper {
    /// Writes a last snapshot, if there is something to tell and it is done by `deadline`; blocks until then.
    pub fn finish(self, deadline: Instant) {
        self.stop.get_or_init(|| deadline);
        self.thread.thread().unpark();
        if self.thread.join().is_err() {
            tracing::error!("the thread that writes snapshots of links panicked");
        }
    }
}

/// Starts to write a snapshot whenever links have changed, at most one per `interval`.
///
/// # Errors
/// When no thread can be started.
pub fn keep(links: Links, path: PathBuf, topic: String, interval: Duration) -> anyhow::Result<Keeper> {
    let stop = Arc::new(OnceLock::new());
    let mut keep = Keep {
        links,
        path,
        topic,
        written: None,
        stop: Arc::clone(&stop),
        written_at: gauge!("hopline_snapshot_written_timestamp_seconds"),
        errors: counter!("hopline_snapshot_errors_total"),
    };
    let thread = thread::Builder::new()
        .name("snapshot".to_owned())
        .spawn(move || keep.run(interval))
        .context("cannot start the thread that writes snapshots of links")?;
    Ok(Keeper { thread, stop })
}

struct Keep {
    links: Links,
    path: PathBuf,
    topic: String,
    /// The table that was written, and how many changes it had seen.
    written: Option<(Weak<Table>, u64)>,
    stop: Arc<OnceLock<Instant>>,
    written_at: Gauge,
    errors: Counter,
}

impl Keep {
    fn run(&mut self, interval: Duration) {
        let mut due = Instant::now();
        loop {
            let stop = self.stop.get().copied();
            if stop.is_some() || Instant::now() >= due {
                let started = Instant::now();
                if self.write_if_changed(stop.unwrap_or(started + PATIENCE)) {
                    let took = started.elapsed();
                    due = Instant::now() + interval.max(took * REST);
                }
            }
            if stop.is_some() {
                return;
            }
            thread::park_timeout(LOOK);
        }
    }

    /// Returns whether there was something to write.
    fn write_if_changed(&mut self, until: Instant) -> bool {
        // What stands in for the topic says nothing that is not in the file already.
        if !self.links.is_caught_up() {
            return false;
        }
        let table = self.links.table();
        // Before the writing: what changes meanwhile is for the next one.
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
        let path: &Path = &self.path;
        match write(path, &table, &origin, until) {
            Ok(()) => {
                self.written_at.set(origin.written_at.timestamp_millis() as f64 / 1e3);
                self.written = Some((Arc::downgrade(&table), changes));
            }
            Err(error) => {
                self.errors.increment(1);
                let shown = path.display();
                tracing::error!(
                    "cannot write the snapshot of links at {shown}, the former one stays: {error}"
                );
            }
        }
        true
    }
}
