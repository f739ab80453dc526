//! The lanes of the partitions that this process was assigned.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::chunk::Chunk;
use crate::lane::{Lane, Tools};
use crate::log::Log;
use crate::ownership::{Claim, source_of};

/// Bytes waiting in a lane at which its partition is paused; it resumes at half of it.
const INBOX_BYTES: usize = 4 << 20;

/// What a lane lets others know.
#[derive(Debug)]
pub struct Status {
    /// The partition's source; see [`schemas::row::source`].
    pub src: u32,
    queued_bytes: AtomicUsize,
    phase: Mutex<Phase>,
}

/// How far a lane is with its partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It has no right to insert yet, or no longer.
    Taking,
    /// It owns the partition.
    Owned {
        /// Everything below this offset is done.
        next: u64,
        /// The broker's time of the last row that is done, if there was one.
        broker_ts: Option<DateTime<Utc>>,
    },
    /// It must not take the partition; the text says why and what to do.
    Refused(String),
}

impl Status {
    fn new(partition: i32) -> Self {
        Self {
            src: source_of(partition),
            queued_bytes: AtomicUsize::new(0),
            phase: Mutex::new(Phase::Taking),
        }
    }

    /// Returns how far the lane is.
    pub fn phase(&self) -> Phase {
        self.lock().clone()
    }

    /// Notes that the lane has no right to insert.
    pub fn taking(&self) {
        *self.lock() = Phase::Taking;
    }

    /// Notes that the lane owns the partition and that everything below `next` is done.
    ///
    /// Without a new `broker_ts` the former one stands.
    pub fn owned(&self, next: u64, broker_ts: Option<DateTime<Utc>>) {
        let mut phase = self.lock();
        let former = match &*phase {
            Phase::Owned { broker_ts, .. } => *broker_ts,
            _ => None,
        };
        *phase = Phase::Owned { next, broker_ts: broker_ts.or(former) };
    }

    /// Notes that the partition cannot be taken.
    pub fn refuse(&self, reason: String) {
        *self.lock() = Phase::Refused(reason);
    }

    /// Notes that the lane has taken so many bytes out of its inbox.
    pub fn taken_out(&self, bytes: usize) {
        self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Open {
    status: Arc<Status>,
    inbox: UnboundedSender<Chunk>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    paused: bool,
}

/// The lanes of the assigned partitions.
pub struct Lanes {
    tools: Arc<Tools>,
    log: Log,
    runtime: Handle,
    open: Mutex<BTreeMap<i32, Open>>,
}

impl fmt::Debug for Lanes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Lanes")
            .field("open", &self.open().keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Lanes {
    /// Starts without lanes; they will run on the current runtime.
    pub fn new(tools: Tools, log: Log) -> Self {
        Self { tools: Arc::new(tools), log, runtime: Handle::current(), open: Mutex::default() }
    }

    /// Opens the lane of a partition, unless it is open.
    pub fn open_lane(&self, partition: i32) {
        self.open().entry(partition).or_insert_with(|| self.spawn(partition));
    }

    fn spawn(&self, partition: i32) -> Open {
        let status = Arc::new(Status::new(partition));
        let stop = CancellationToken::new();
        let (inbox, receiver) = unbounded_channel();
        let claim = Claim::new(partition, self.tools.store.clone(), self.log.clone(), stop.clone());
        let lane =
            Lane::new(partition, Arc::clone(&self.tools), claim, Arc::clone(&status), receiver, stop.clone());
        Open { status, inbox, stop, task: self.runtime.spawn(lane.run()), paused: false }
    }

    /// Gives records to their lane, and returns whether the partition is to be paused.
    pub fn push(&self, chunk: Chunk) -> bool {
        let mut open = self.open();
        // A partition that was given back meanwhile is another's, who reads them again.
        let Some(lane) = open.get_mut(&chunk.partition()) else { return false };
        let bytes = chunk.memory();
        let queued = lane.status.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // A lane closes its inbox only when it is stopped, and then its records are another's.
        let _ = lane.inbox.send(chunk);
        let pause = queued >= INBOX_BYTES && !lane.paused;
        lane.paused |= pause;
        pause
    }

    /// Returns the paused partitions that have room again, and counts them as not paused.
    pub fn resumable(&self) -> Vec<i32> {
        self.open()
            .iter_mut()
            .filter(|(_, lane)| {
                lane.paused && lane.status.queued_bytes.load(Ordering::Relaxed) < INBOX_BYTES / 2
            })
            .map(|(partition, lane)| {
                lane.paused = false;
                *partition
            })
            .collect()
    }

    /// Returns each partition and how far it is.
    pub fn phases(&self) -> Vec<(i32, Phase)> {
        self.open().iter().map(|(partition, lane)| (*partition, lane.status.phase())).collect()
    }

    /// Returns the partitions whose lanes have ended although nobody stopped them: they have panicked.
    pub fn broken(&self) -> Vec<i32> {
        self.open()
            .iter()
            .filter(|(_, lane)| lane.task.is_finished())
            .map(|(partition, _)| *partition)
            .collect()
    }

    /// Stops lanes, waits until each has finished its insert in flight, and returns how far they came.
    ///
    /// One that has not finished at the deadline is cut off; its insert is then for the next owner to find.
    /// Must not be called on a thread of the runtime.
    pub fn close(&self, partitions: &[i32], deadline: Instant) -> Vec<(i32, Phase)> {
        let closing: Vec<(i32, Open)> = {
            let mut open = self.open();
            partitions.iter().filter_map(|partition| Some((*partition, open.remove(partition)?))).collect()
        };
        for (_, lane) in &closing {
            lane.stop.cancel();
        }
        let (closed, tasks): (Vec<_>, Vec<_>) =
            closing.into_iter().map(|(partition, lane)| ((partition, lane.status), lane.task)).unzip();
        let aborts: Vec<_> = tasks.iter().map(JoinHandle::abort_handle).collect();
        if self.runtime.block_on(async { timeout_at(deadline, join_all(tasks)).await }).is_err() {
            tracing::warn!("gave partitions back with an insert in flight");
            aborts.iter().for_each(tokio::task::AbortHandle::abort);
        }
        closed.into_iter().map(|(partition, status)| (partition, status.phase())).collect()
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<i32, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
