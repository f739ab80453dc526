//! Where answered clicks go: into the spool, or, when the disk refuses them, into a count.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use metrics::{Counter, counter};
use schemas::message::{Click, Message as _};
use service::Check;

use crate::{
    publish::Partitions,
    spool::{Spool, record::Record},
};

/// How long a click may be in the kernel's memory only: what a power loss can cost.
const SYNC_INTERVAL: Duration = Duration::from_millis(50);

/// How often a disk that refused a click is tried again.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Least time between two log lines about one kind of fault.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Takes clicks. A redirect never fails because of it.
#[derive(Debug)]
pub struct Intake {
    spool: Arc<Spool>,
    partitions: Arc<Partitions>,
    check: Check,
    /// Whether the last click was refused.
    refusing: AtomicBool,
    logged: Mutex<Option<Instant>>,
    dropped: Counter,
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
        Self { spool, partitions, check, refusing: AtomicBool::new(false), logged: Mutex::new(None), dropped }
    }

    /// Keeps a click, with the partition that it and any repeat of it go to.
    pub fn keep(&self, click: &Click) {
        let key = click.click_id.as_bytes();
        let record = Record { partition: self.partitions.of(key), key, value: &click.encode() };
        let kept = record.encode().map_err(io::Error::other).and_then(|bytes| self.spool.append(&bytes));
        match kept {
            Ok(()) => {
                if self.refusing.load(Ordering::Relaxed) {
                    self.recovered();
                }
            }
            Err(error) => self.drop_click(&error),
        }
    }

    /// Starts the thread that carries clicks over a power loss and tries a disk again that refused them.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn watch(self: &Arc<Self>) -> anyhow::Result<Watch> {
        let stop = Arc::new(AtomicBool::new(false));
        let (intake, stopped) = (Arc::clone(self), Arc::clone(&stop));
        let run = move || {
            let mut probed = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                intake.sync();
                if intake.refusing.load(Ordering::Relaxed) && probed.elapsed() >= PROBE_INTERVAL {
                    probed = Instant::now();
                    intake.probe();
                }
                thread::park_timeout(SYNC_INTERVAL);
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

    fn sync(&self) {
        if let Err(error) = self.spool.sync()
            && self.may_log()
        {
            tracing::error!("cannot sync the spool, a power loss would cost clicks: {error}");
        }
    }

    fn probe(&self) {
        if self.spool.probe().is_ok() {
            self.recovered();
        }
    }

    fn recovered(&self) {
        self.refusing.store(false, Ordering::Relaxed);
        self.check.ready();
    }

    fn drop_click(&self, error: &io::Error) {
        self.dropped.increment(1);
        if !self.refusing.swap(true, Ordering::Relaxed) {
            self.check.unready(format!("clicks are dropped: {error}"));
        }
        if self.may_log() {
            tracing::error!("the spool takes no clicks, they are dropped and counted: {error}");
        }
    }

    fn may_log(&self) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let due = logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
        if due {
            *logged = Some(Instant::now());
        }
        due
    }
}
