//! The lanes of the partitions that are assigned to this process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::clickhouse::FencingToken;
use crate::pipeline::chunk::Chunk;
use crate::pipeline::lane::{Lane, Tools};
use crate::pipeline::lane_state::{Inbound, Notices, Phase, Queued, Seek, State};
use crate::pipeline::log::Log;
use crate::pipeline::ownership::Claim;

/// While this many bytes wait in a lane's inbox, its further records wait in Kafka.
const INBOX_BYTES: usize = 4 << 20;

struct Open {
    state: watch::Receiver<State>,
    notices: watch::Sender<Notices>,
    inbox: UnboundedSender<Inbound>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    queued_bytes: Arc<AtomicUsize>,
    /// The number of the last seek that is done.
    last_seek_done: u64,
}

impl Open {
    fn phase(&self) -> Phase {
        let mut phase = self.state.borrow().phase.clone();
        if let Phase::Owned { token, as_of, .. } = &mut phase {
            *as_of = self.notices.borrow().as_of(*token).max(*as_of);
        }
        phase
    }

    fn has_room(&self) -> bool {
        self.queued_bytes.load(Ordering::Relaxed) < INBOX_BYTES
    }

    /// Returns the seek that is not done yet.
    fn seek(&self) -> Option<Seek> {
        self.state.borrow().seek.filter(|seek| seek.number > self.last_seek_done)
    }
}

/// The lanes of the assigned partitions.
pub struct Lanes {
    tools: Arc<Tools>,
    log: Log,
    runtime: Handle,
    open: Mutex<BTreeMap<i32, Open>>,
    has_joined: AtomicBool,
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
    /// Creates it without lanes, which will run on the current runtime.
    pub fn new(tools: Tools, log: Log) -> Self {
        Self {
            tools: Arc::new(tools),
            log,
            runtime: Handle::current(),
            open: Mutex::default(),
            has_joined: AtomicBool::new(false),
        }
    }

    /// Opens the lanes of assigned partitions, unless they are open.
    pub fn open_lanes(&self, partitions: &[i32]) {
        for &partition in partitions {
            self.open().entry(partition).or_insert_with(|| self.spawn(partition));
        }
        self.has_joined.store(true, Ordering::Release);
    }

    /// Returns whether this process was assigned partitions, or was told that there are none for it.
    pub fn has_joined(&self) -> bool {
        self.has_joined.load(Ordering::Acquire)
    }

    fn spawn(&self, partition: i32) -> Open {
        let (states, state) = watch::channel(State { phase: Phase::TakingOver, seek: None });
        let stop = CancellationToken::new();
        let (inbox, receiver) = unbounded_channel();
        let claim = Claim::new(partition, self.tools.store.clone(), self.log.clone(), stop.clone());
        let (notices, receiver_of_notices) = watch::channel(Notices::default());
        let tools = Arc::clone(&self.tools);
        let lane = Lane::new(partition, tools, claim, states, receiver_of_notices, receiver, stop.clone());
        let task = self.runtime.spawn(lane.run());
        Open { state, notices, inbox, stop, task, queued_bytes: Arc::default(), last_seek_done: 0 }
    }

    /// Returns whether a lane has room for more records.
    pub fn has_room(&self, partition: i32) -> bool {
        self.open().get(&partition).is_some_and(Open::has_room)
    }

    /// Returns the number of lanes that have no room.
    pub fn full(&self) -> usize {
        self.open().values().filter(|lane| !lane.has_room()).count()
    }

    /// Sends records to their lane.
    pub fn push(&self, chunk: Chunk) {
        // A revoked partition belongs to another process, which reads these records again.
        if let Some(lane) = self.open().get(&chunk.partition()) {
            let queued = Queued::add(chunk.memory(), &lane.queued_bytes);
            // A lane closes its inbox only when it is stopped. The next owner then reads these records.
            let _ = lane.inbox.send(Inbound::Chunk(chunk, queued));
        }
    }

    /// Returns the requested seeks that are not done yet, by partition.
    pub fn seeks(&self) -> Vec<(i32, Seek)> {
        self.open().iter().filter_map(|(partition, lane)| Some((*partition, lane.seek()?))).collect()
    }

    /// Tells a lane that the following records are those that it requested.
    pub fn seek_done(&self, partition: i32, seek: Seek) {
        if let Some(lane) = self.open().get_mut(&partition) {
            lane.last_seek_done = seek.number;
            // As in `push`.
            let _ = lane.inbox.send(Inbound::SeekDone(seek.number));
        }
    }

    /// Tells a lane the time up to which its clicks are counted, as stored in ClickHouse.
    pub fn notify_counted(&self, partition: i32, token: FencingToken, as_of: DateTime<Utc>) {
        if let Some(lane) = self.open().get(&partition) {
            lane.notices.send_modify(|notices| notices.counted = Some((token, as_of)));
        }
    }

    /// Tells a lane that Kafka's log or ClickHouse ends before the lane's position.
    pub fn notify_lost(&self, partition: i32, token: FencingToken) {
        if let Some(lane) = self.open().get(&partition) {
            lane.notices.send_modify(|notices| notices.lost = Some(token));
        }
    }

    /// Returns the phase of each partition.
    pub fn phases(&self) -> Vec<(i32, Phase)> {
        self.open().iter().map(|(partition, lane)| (*partition, lane.phase())).collect()
    }

    /// Returns the partitions whose lanes ended without being stopped, which means that they panicked.
    pub fn broken(&self) -> Vec<i32> {
        self.open()
            .iter()
            .filter(|(_, lane)| lane.task.is_finished())
            .map(|(partition, _)| *partition)
            .collect()
    }

    /// Stops lanes, waits until each has finished its insert in flight, and returns their last phases.
    ///
    /// A lane that has not finished at the deadline is aborted; the next owner then finds its insert. Must not be
    /// called on a thread of the runtime.
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
            tracing::warn!("closed lanes with an insert in flight");
            aborts.iter().for_each(tokio::task::AbortHandle::abort);
        }
        closed.into_iter().map(|(partition, state)| (partition, state.borrow().phase.clone())).collect()
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<i32, Open>> {
        self.open.lock()
    }
}
