//! The lanes of the partitions that this process was assigned.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::chunk::Chunk;
use crate::lane::{Lane, Tools};
use crate::log::Log;
use crate::ownership::Claim;

/// Bytes waiting in a lane at which its partition is paused; it resumes at half of it.
const INBOX_BYTES: usize = 4 << 20;

/// What a lane lets others know.
#[derive(Debug)]
pub struct Status {
    queued_bytes: AtomicUsize,
    phase: Mutex<Phase>,
    /// Up to when ClickHouse has said that the source's clicks are counted.
    as_of: Mutex<Option<DateTime<Utc>>>,
    seek: Mutex<Option<Seek>>,
    lost: Notify,
}

/// A lane's wish to be given the records from an offset on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seek {
    /// The offset.
    pub to: u64,
    /// Tells one wish from the next.
    pub number: u64,
}

/// What comes into a lane.
#[derive(Debug)]
pub enum Inbound {
    /// Records of the partition.
    Chunk(Chunk),
    /// What follows is what the [`Seek`] of this number asked for.
    Sought(u64),
}

impl Inbound {
    /// The memory that it takes, as it was counted when it came in.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Chunk(chunk) => chunk.memory(),
            Self::Sought(_) => 0,
        }
    }
}

/// How far a lane is with its partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It has no right to insert yet, or no longer.
    Taking,
    /// It owns the partition.
    Owned {
        /// The source that its clicks have.
        src: u32,
        /// Everything below this offset is done.
        next: u64,
        /// The broker's time of the last row that is done, if there was one.
        broker_ts: Option<DateTime<Utc>>,
    },
    /// It must not take the partition; the text says why and what to do.
    Refused(String),
}

impl Status {
    fn new() -> Self {
        Self {
            queued_bytes: AtomicUsize::new(0),
            phase: Mutex::new(Phase::Taking),
            as_of: Mutex::default(),
            seek: Mutex::default(),
            lost: Notify::new(),
        }
    }

    /// Returns how far the lane is.
    pub fn phase(&self) -> Phase {
        self.lock().clone()
    }

    /// Notes that the lane has no right to insert. One that was refused stays so until it has the right.
    pub fn taking(&self) {
        let mut phase = self.lock();
        if !matches!(*phase, Phase::Refused(_)) {
            *phase = Phase::Taking;
        }
    }

    /// Notes that the lane has taken the partition, up to when its clicks are counted as ClickHouse says, and that
    /// everything below `next` is done.
    pub fn taken(&self, src: u32, next: u64, broker_ts: Option<DateTime<Utc>>, as_of: Option<DateTime<Utc>>) {
        *self.as_of.lock().unwrap_or_else(PoisonError::into_inner) = as_of;
        self.owned(src, next, broker_ts);
    }

    /// Returns up to when ClickHouse is known to have said that the source's clicks are counted.
    pub fn as_of(&self) -> Option<DateTime<Utc>> {
        *self.as_of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the lane owns the partition and that everything below `next` is done.
    ///
    /// Without a new `broker_ts` the former one of the same source stands.
    pub fn owned(&self, src: u32, next: u64, broker_ts: Option<DateTime<Utc>>) {
        let mut phase = self.lock();
        let former = match &*phase {
            Phase::Owned { src: former, broker_ts, .. } if *former == src => *broker_ts,
            _ => None,
        };
        *phase = Phase::Owned { src, next, broker_ts: broker_ts.or(former) };
    }

    /// Asks for the records from an offset on.
    pub fn seek(&self, seek: Seek) {
        *self.seek.lock().unwrap_or_else(PoisonError::into_inner) = Some(seek);
    }

    /// Returns when Kafka or ClickHouse has less than the lane has done.
    pub async fn lost(&self) {
        self.lost.notified().await;
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
    inbox: UnboundedSender<Inbound>,
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
        let status = Arc::new(Status::new());
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
        let _ = lane.inbox.send(Inbound::Chunk(chunk));
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

    /// Returns the partitions that have to be read from an offset on.
    pub fn seeks(&self) -> Vec<(i32, Seek)> {
        let wish = |lane: &Open| *lane.status.seek.lock().unwrap_or_else(PoisonError::into_inner);
        self.open().iter().filter_map(|(partition, lane)| Some((*partition, wish(lane)?))).collect()
    }

    /// Tells a lane that the records which it is given from now on are those that it asked for.
    pub fn sought(&self, partition: i32, seek: Seek) {
        if let Some(lane) = self.open().get(&partition) {
            let mut wish = lane.status.seek.lock().unwrap_or_else(PoisonError::into_inner);
            // It may have asked for something else meanwhile.
            if *wish == Some(seek) {
                *wish = None;
            }
            let _ = lane.inbox.send(Inbound::Sought(seek.number));
        }
    }

    /// Tells a lane that Kafka or ClickHouse has less than the lane has done.
    pub fn lose(&self, partition: i32) {
        if let Some(lane) = self.open().get(&partition) {
            lane.status.lost.notify_one();
        }
    }

    /// Returns up to when ClickHouse is known to have said that a partition's clicks are counted.
    pub fn as_of(&self, partition: i32) -> Option<DateTime<Utc>> {
        self.open().get(&partition)?.status.as_of()
    }

    /// Notes up to when ClickHouse has said so now.
    pub fn wrote_as_of(&self, partition: i32, as_of: DateTime<Utc>) {
        if let Some(lane) = self.open().get(&partition) {
            let mut known = lane.status.as_of.lock().unwrap_or_else(PoisonError::into_inner);
            *known = (*known).max(Some(as_of));
        }
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
