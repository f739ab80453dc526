//! Stores clicks in the spool. If the spool rejects a click, drops and counts it.

use std::cell::RefCell;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use metrics::{Counter, counter};
use parking_lot::Mutex;
use schemas::message::Click;
use service::{Check, LogLimit};

use crate::publish::Partitions;
use crate::spool::record::Encoded;
use crate::spool::{AppendError, Spool};

/// How often the next segment is prepared.
const PREPARE_INTERVAL: Duration = Duration::from_millis(50);

/// How often the next segment is prepared after the disk rejected a file.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

thread_local! {
    /// The buffer in which a thread encodes its clicks.
    static RECORD: RefCell<Encoded> = RefCell::default();
}

/// Stores clicks. A redirect never fails because of it.
#[derive(Debug)]
pub struct Intake {
    spool: Arc<Spool>,
    partitions: Arc<Partitions>,
    check: Check,
    /// Whether the last click was rejected. Changes together with `check`, under `changing`.
    rejecting: AtomicBool,
    /// Held while `rejecting` and `check` change, so that they never contradict each other.
    changing: Mutex<()>,
    drop_log: LogLimit,
    sync_log: LogLimit,
    dropped: Counter,
    /// Clicks that were dropped since the last log line about drops.
    unlogged: AtomicU64,
}

/// The thread that syncs the spool.
#[derive(Debug)]
pub struct SyncThread {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl SyncThread {
    /// Seals the spool's last segment, syncs the spool and ends the thread. Blocks until then.
    ///
    /// Call it when no more clicks are stored.
    pub fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        if self.thread.join().is_err() {
            tracing::error!("the thread that syncs the spool panicked");
        }
    }
}

impl Intake {
    /// Creates an intake. `check` is ready while clicks are stored.
    pub fn new(spool: Arc<Spool>, partitions: Arc<Partitions>, check: Check) -> Self {
        check.ready();
        Self {
            spool,
            partitions,
            check,
            rejecting: AtomicBool::new(false),
            changing: Mutex::default(),
            drop_log: LogLimit::default(),
            sync_log: LogLimit::default(),
            dropped: counter!("hopline_clicks_dropped_total"),
            unlogged: AtomicU64::new(0),
        }
    }

    /// Stores a click together with its partition, so that a repeat goes to the same one; false when it was dropped.
    pub fn store(&self, click: &Click) -> bool {
        let at = click.occurred_at.timestamp_millis();
        let partition = self.partitions.for_time(at);
        RECORD.with_borrow_mut(|record| {
            let encoded = record.fill(at, partition, click.click_id.as_bytes(), |bytes| {
                Ok(serde_json::to_writer(bytes, click)?)
            });
            match encoded.map(|()| self.spool.append(record)) {
                Ok(Ok(())) => {
                    if self.rejecting.load(Ordering::Relaxed) {
                        self.recovered();
                    }
                    return true;
                }
                Ok(Err(error)) => {
                    self.rejected(&error);
                    self.drop_click(&error);
                }
                // The click cannot be encoded; the spool still accepts others.
                Err(error) => self.drop_click(&error),
            }
            false
        })
    }

    /// Starts the thread that syncs the spool at an interval, so that clicks survive a power loss, and prepares the
    /// next segment.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start_sync(self: &Arc<Self>, sync_interval: Duration) -> anyhow::Result<SyncThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let (intake, stopped) = (Arc::clone(self), Arc::clone(&stop));
        let run = move || {
            let mut sync_at = Instant::now();
            let mut prepare_at = sync_at;
            while !stopped.load(Ordering::Relaxed) {
                let now = Instant::now();
                if now >= prepare_at {
                    prepare_at = now + intake.prepare();
                }
                if now >= sync_at {
                    sync_at = now + sync_interval;
                    intake.sync();
                }
                thread::park_timeout(sync_at.min(prepare_at).saturating_duration_since(Instant::now()));
            }
            intake.spool.seal();
            intake.sync();
        };
        let thread = thread::Builder::new()
            .name("spool-sync".to_owned())
            .spawn(run)
            .context("cannot start the thread that syncs the spool")?;
        Ok(SyncThread { stop, thread })
    }

    /// Prepares the next segment and returns how long to wait before the next call.
    fn prepare(&self) -> Duration {
        match self.spool.prepare() {
            Ok(()) => {
                if self.rejecting.load(Ordering::Relaxed) {
                    self.recovered();
                }
                PREPARE_INTERVAL
            }
            // Kafka may confirm a segment at any moment.
            Err(AppendError::Full(_)) => PREPARE_INTERVAL,
            Err(AppendError::Disk(_)) => RETRY_INTERVAL,
        }
    }

    fn sync(&self) {
        if let Err(error) = self.spool.sync()
            && self.sync_log.is_due()
        {
            tracing::error!("cannot sync the spool, a power loss would lose clicks: {error}");
        }
    }

    fn rejected(&self, error: &AppendError) {
        // Thousands of clicks a second may be rejected; only the first changes the check.
        if self.rejecting.load(Ordering::Relaxed) {
            return;
        }
        let _changing = self.changing.lock();
        if !self.rejecting.swap(true, Ordering::Relaxed) {
            self.check.unready(format!("clicks are dropped: {error}"));
        }
    }

    fn recovered(&self) {
        let changing = self.changing.lock();
        if self.rejecting.swap(false, Ordering::Relaxed) {
            self.check.ready();
        }
        drop(changing);
        let clicks = self.unlogged.swap(0, Ordering::Relaxed);
        if clicks > 0 {
            tracing::warn!(clicks, "the spool stores clicks again; {clicks} more clicks were dropped before");
        }
    }

    fn drop_click(&self, reason: &dyn Display) {
        self.dropped.increment(1);
        self.unlogged.fetch_add(1, Ordering::Relaxed);
        if self.drop_log.is_due() {
            let clicks = self.unlogged.swap(0, Ordering::Relaxed);
            tracing::error!(clicks, "{clicks} clicks were dropped and counted: {reason}");
        }
    }
}

#[cfg(test)]
mod tests {
    use service::{Health, Shutdown};

    use super::*;
    use crate::spool::tests::Directory;

    #[test]
    fn a_recovery_during_a_rejection_leaves_the_check_ready() {
        let directory = Directory::new();
        let spool = Arc::new(Spool::open(directory.path(), None).unwrap());
        let check = Health::new(&Shutdown::new(Duration::from_secs(1))).check("spool");
        let intake = Intake::new(spool, Arc::default(), check.clone());
        for _ in 0..200 {
            thread::scope(|scope| {
                scope.spawn(|| intake.rejected(&AppendError::Full(1)));
                // Another thread may store a click while the rejection changes the check.
                while !intake.rejecting.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                intake.recovered();
            });
            assert!(check.is_ready());
        }
    }
}
