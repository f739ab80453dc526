//! Where answered clicks go: into the spool, or, when the disk refuses them, into a count.

use std::{
    cell::RefCell,
    fmt::Display,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use metrics::{Counter, counter};
use schemas::message::Click;
use service::Check;

use crate::{
    publish::Partitions,
    spool::{Refused, Spool, record::Encoded},
};

/// How long the next segment is waited for at most, whatever the interval of syncs.
const PREPARE_INTERVAL: Duration = Duration::from_millis(50);

/// How often a disk that refused a file is tried again.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Least time between two log lines about one kind of fault.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

thread_local! {
    /// Where a thread encodes its clicks, one after the other.
    static RECORD: RefCell<Encoded> = RefCell::default();
}

/// Takes clicks. A redirect never fails because of it.
#[derive(Debug)]
pub struct Intake {
    spool: Arc<Spool>,
    partitions: Arc<Partitions>,
    check: Check,
    /// Whether the last click was refused; read by itself, changed with the check under `telling`.
    refusing: AtomicBool,
    /// Held while flag and check change: a recovery in the middle of a refusal would leave them at odds.
    telling: Mutex<()>,
    drops_logged: Interval,
    syncs_logged: Interval,
    dropped: Counter,
    /// Dropped since the last line in the log about it.
    unlogged: AtomicU64,
}

/// The thread that syncs the spool.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Watch {
    /// Ends the spool's last segment, brings everything onto the disk and ends the thread; blocks until then.
    ///
    /// Call it when no more clicks come.
    pub fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        if self.thread.join().is_err() {
            tracing::error!("the thread that syncs the spool panicked");
        }
    }
}

impl Intake {
    /// Makes an intake that tells `check` whether clicks are kept.
    pub fn new(spool: Arc<Spool>, partitions: Arc<Partitions>, check: Check) -> Self {
        check.ready();
        let dropped = counter!("hopline_clicks_dropped_total");
        // So that an alarm finds the series before the first drop.
        dropped.increment(0);
        Self {
            spool,
            partitions,
            check,
            refusing: AtomicBool::new(false),
            telling: Mutex::default(),
            drops_logged: Interval::default(),
            syncs_logged: Interval::default(),
            dropped,
            unlogged: AtomicU64::new(0),
        }
    }

    /// Keeps a click, with the partition that it and any repeat of it go to.
    pub fn keep(&self, click: &Click) {
        let at = click.occurred_at.timestamp_millis();
        let partition = self.partitions.at(at);
        RECORD.with_borrow_mut(|record| {
            let encoded = record.fill(at, partition, click.click_id.as_bytes(), |bytes| {
                Ok(serde_json::to_writer(bytes, click)?)
            });
            match encoded.map(|()| self.spool.append(record)) {
                Ok(Ok(())) => {
                    if self.refusing.load(Ordering::Relaxed) {
                        self.recovered();
                    }
                }
                Ok(Err(refused)) => {
                    self.refused(&refused);
                    self.drop_click(&refused);
                }
                // The spool is not at fault, and takes the next one.
                Err(error) => self.drop_click(&error),
            }
        });
    }

    /// Starts the thread that carries clicks over a power loss, at that interval, and keeps the next segment ready.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn watch(self: &Arc<Self>, sync_interval: Duration) -> anyhow::Result<Watch> {
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
        Ok(Watch { stop, thread })
    }

    /// Makes sure that the next segment is ready; returns how long to wait before the next look.
    fn prepare(&self) -> Duration {
        match self.spool.prepare() {
            Ok(()) => {
                if self.refusing.load(Ordering::Relaxed) {
                    self.recovered();
                }
                PREPARE_INTERVAL
            }
            // Kafka may confirm a segment at any moment.
            Err(Refused::Full(_)) => PREPARE_INTERVAL,
            Err(Refused::Disk(_)) => PROBE_INTERVAL,
        }
    }

    fn sync(&self) {
        if let Err(error) = self.spool.sync()
            && self.syncs_logged.is_over()
        {
            tracing::error!("cannot sync the spool, a power loss would cost clicks: {error}");
        }
    }

    fn refused(&self, refused: &Refused) {
        // Thousands of clicks a second may come here: only the first has something to tell.
        if self.refusing.load(Ordering::Relaxed) {
            return;
        }
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.refusing.swap(true, Ordering::Relaxed) {
            self.check.unready(format!("clicks are dropped: {refused}"));
        }
    }

    fn recovered(&self) {
        let telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        if self.refusing.swap(false, Ordering::Relaxed) {
            self.check.ready();
        }
        drop(telling);
        let clicks = self.unlogged.swap(0, Ordering::Relaxed);
        if clicks > 0 {
            tracing::warn!(clicks, "{clicks} more clicks were dropped before the spool took clicks again");
        }
    }

    fn drop_click(&self, reason: &dyn Display) {
        self.dropped.increment(1);
        self.unlogged.fetch_add(1, Ordering::Relaxed);
        if self.drops_logged.is_over() {
            let clicks = self.unlogged.swap(0, Ordering::Relaxed);
            tracing::error!(clicks, "{clicks} clicks were dropped and counted: {reason}");
        }
    }
}

/// Keeps [`LOG_INTERVAL`] between two log lines.
#[derive(Debug, Default)]
struct Interval(Mutex<Option<Instant>>);

impl Interval {
    /// Returns whether it is over, and begins the next one then.
    fn is_over(&self) -> bool {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let over = logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
        if over {
            *logged = Some(Instant::now());
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use service::{Health, Shutdown};

    use super::*;
    use crate::spool::tests::Directory;

    #[test]
    fn readiness_says_that_clicks_are_kept_when_the_spool_recovers_in_the_middle_of_a_refusal() {
        let directory = Directory::new();
        let spool = Arc::new(Spool::open(directory.path(), None).unwrap());
        let check = Health::new(&Shutdown::new(Duration::from_secs(1))).check("spool");
        let intake = Intake::new(spool, Arc::default(), check.clone());
        for _ in 0..200 {
            thread::scope(|scope| {
                scope.spawn(|| intake.refused(&Refused::Full(1)));
                // As the next click does that is kept, which may come in the middle of the refusal.
                while !intake.refusing.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                intake.recovered();
            });
            assert!(check.is_ready());
        }
    }
}
