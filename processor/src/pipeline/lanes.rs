//! The lanes of the partitions that this process was assigned.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::clickhouse::Right;
use crate::pipeline::chunk::Chunk;
use crate::pipeline::lane::{Lane, Tools};
use crate::pipeline::log::Log;
use crate::pipeline::ownership::Claim;

/// Bytes waiting in a lane at which its partition is paused; it resumes at half of it.
const INBOX_BYTES: usize = 4 << 20;

/// What a lane lets others know, all at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// How far it is with its partition.
    pub phase: Phase,
    /// What it was to be given last.
    pub seek: Option<Seek>,
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
    Chunk(Chunk, Queued),
    /// What follows is what the [`Seek`] of this number asked for.
    Sought(u64),
}

/// What a lane is let know about what it has done, each with the right that it had.
#[derive(Debug, Default)]
pub struct News {
    /// Up to when ClickHouse has said that its clicks are counted.
    pub counted: Option<(Right, DateTime<Utc>)>,
    /// Kafka or ClickHouse has less than the lane has done.
    pub lost: Option<Right>,
}

impl News {
    /// Returns up to when ClickHouse has said so, if it has.
    pub fn as_of(&self, right: Right) -> Option<DateTime<Utc>> {
        self.counted.filter(|(counted, _)| *counted == right).map(|(_, as_of)| as_of)
    }
}

/// The memory that records take until they are out of a lane.
#[derive(Debug)]
pub struct Queued {
    bytes: usize,
    of_lane: Arc<AtomicUsize>,
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.of_lane.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// How far a lane is with its partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It has no right to insert yet, or no longer.
    Taking,
    /// It owns the partition.
    Owned {
        /// What it inserts with.
        right: Right,
        /// Up to when its clicks are counted, as ClickHouse is known to have said.
        as_of: Option<DateTime<Utc>>,
        /// Everything below this offset is done.
        next: u64,
        /// The broker's time of the last row that is done, if there was one.
        broker_ts: Option<DateTime<Utc>>,
    },
    /// It must not take the partition; the text says why and what to do.
    Refused(String),
}

struct Open {
    state: watch::Receiver<State>,
    news: watch::Sender<News>,
    inbox: UnboundedSender<Inbound>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    queued_bytes: Arc<AtomicUsize>,
    paused: bool,
    /// The number of the last seek that was done.
    sought: u64,
}

impl Open {
    fn phase(&self) -> Phase {
        let mut phase = self.state.borrow().phase.clone();
        if let Phase::Owned { right, as_of, .. } = &mut phase {
            *as_of = self.news.borrow().as_of(*right).max(*as_of);
        }
        phase
    }

    /// Returns the seek that is still to be done.
    fn seek(&self) -> Option<Seek> {
        self.state.borrow().seek.filter(|seek| seek.number > self.sought)
    }
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
        let (states, state) = watch::channel(State { phase: Phase::Taking, seek: None });
        let stop = CancellationToken::new();
        let (inbox, receiver) = unbounded_channel();
        let claim = Claim::new(partition, self.tools.store.clone(), self.log.clone(), stop.clone());
        let (news, told) = watch::channel(News::default());
        let tools = Arc::clone(&self.tools);
        let lane = Lane::new(partition, tools, claim, states, told, receiver, stop.clone());
        let task = self.runtime.spawn(lane.run());
        Open { state, news, inbox, stop, task, queued_bytes: Arc::default(), paused: false, sought: 0 }
    }

    /// Gives records to their lane, and returns whether the partition is to be paused.
    pub fn push(&self, chunk: Chunk) -> bool {
        let mut open = self.open();
        // A partition that was given back meanwhile is another's, who reads them again.
        let Some(lane) = open.get_mut(&chunk.partition()) else { return false };
        let bytes = chunk.memory();
        let all = lane.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let queued = Queued { bytes, of_lane: Arc::clone(&lane.queued_bytes) };
        // A lane closes its inbox only when it is stopped, and then its records are another's.
        let _ = lane.inbox.send(Inbound::Chunk(chunk, queued));
        let pause = all >= INBOX_BYTES && !lane.paused;
        lane.paused |= pause;
        pause
    }

    /// Returns the paused partitions that have room again, and counts them as not paused.
    pub fn resumable(&self) -> Vec<i32> {
        self.open()
            .iter_mut()
            .filter(|(_, lane)| lane.paused && lane.queued_bytes.load(Ordering::Relaxed) < INBOX_BYTES / 2)
            .map(|(partition, lane)| {
                lane.paused = false;
                *partition
            })
            .collect()
    }

    /// Returns the partitions that have to be read from an offset on.
    pub fn seeks(&self) -> Vec<(i32, Seek)> {
        self.open().iter().filter_map(|(partition, lane)| Some((*partition, lane.seek()?))).collect()
    }

    /// Tells a lane that the records which it is given from now on are those that it asked for.
    pub fn sought(&self, partition: i32, seek: Seek) {
        if let Some(lane) = self.open().get_mut(&partition) {
            lane.sought = seek.number;
            // As with records.
            let _ = lane.inbox.send(Inbound::Sought(seek.number));
        }
    }

    /// Tells a lane up to when ClickHouse has said that its clicks are counted.
    pub fn tell_counted(&self, partition: i32, right: Right, as_of: DateTime<Utc>) {
        if let Some(lane) = self.open().get(&partition) {
            lane.news.send_modify(|news| news.counted = Some((right, as_of)));
        }
    }

    /// Tells a lane that Kafka or ClickHouse has less than it has done.
    pub fn tell_lost(&self, partition: i32, right: Right) {
        if let Some(lane) = self.open().get(&partition) {
            lane.news.send_modify(|news| news.lost = Some(right));
        }
    }

    /// Returns each partition and how far it is.
    pub fn phases(&self) -> Vec<(i32, Phase)> {
        self.open().iter().map(|(partition, lane)| (*partition, lane.phase())).collect()
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
            closing.into_iter().map(|(partition, lane)| ((partition, lane.state), lane.task)).unzip();
        let aborts: Vec<_> = tasks.iter().map(JoinHandle::abort_handle).collect();
        if self.runtime.block_on(async { timeout_at(deadline, join_all(tasks)).await }).is_err() {
            tracing::warn!("gave partitions back with an insert in flight");
            aborts.iter().for_each(tokio::task::AbortHandle::abort);
        }
        closed.into_iter().map(|(partition, state)| (partition, state.borrow().phase.clone())).collect()
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<i32, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
