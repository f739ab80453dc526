//! The listeners of each workspace, and its last clicks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use service::http::{ApiError, Code};
use service::slots::{Full, Slot, Slots};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::event::{Event, Place};

/// Listeners of a workspace, and of an account over all its workspaces, at one process.
const MOST_OF_WORKSPACE: usize = 50;
const MOST_OF_ACCOUNT: usize = 200;

/// `Retry-After` for a rejected listener.
const RETRY: Duration = Duration::from_secs(10);

/// Clicks of a workspace that are kept for resumed streams.
const KEPT: usize = 1_000;

/// How long they are kept after the last listener has left.
const KEPT_FOR: Duration = Duration::from_secs(300);

/// Clicks that may wait for a listener.
const QUEUE: usize = 256;

/// How far two processes may differ in their order of clicks, in milliseconds.
const OVERLAP: i64 = 5_000;

/// The listeners of a process. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Hub {
    state: Arc<Mutex<State>>,
    /// Open streams by account. A listener that was cut off counts until its stream ends, since its connection is still
    /// open.
    open: Slots<Uuid>,
    /// Whether the end of the topic is being read.
    following: watch::Sender<bool>,
    process: u32,
}

#[derive(Debug, Default)]
struct State {
    channels: HashMap<Uuid, Channel>,
}

/// A workspace with listeners now or recently.
#[derive(Debug, Default)]
struct Channel {
    last: VecDeque<Arc<Event>>,
    listeners: Vec<Listener>,
    /// Since when it has no listener.
    empty_since: Option<Instant>,
}

#[derive(Debug)]
struct Listener {
    number: u64,
    /// The only link that the listener asked for.
    link: Option<Uuid>,
    queue: mpsc::Sender<Arc<Event>>,
}

/// A listener's end of the hub. Dropping it removes the listener.
#[derive(Debug)]
pub(super) struct Subscription {
    /// Clicks since the given place.
    pub(super) missed: Vec<Arc<Event>>,
    /// Whether more clicks may be missing.
    pub(super) has_gap: bool,
    /// Closed when the listener was too slow.
    pub(super) queue: mpsc::Receiver<Arc<Event>>,
    _leave: Leave,
    _slot: Slot<Uuid>,
}

#[derive(Debug)]
struct Leave {
    hub: Hub,
    workspace: Uuid,
    number: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        if let Some(channel) = state.channels.get_mut(&self.workspace) {
            channel.listeners.retain(|listener| listener.number != self.number);
            channel.note_empty();
        }
    }
}

impl Hub {
    /// Creates the hub of a process with this number of connections. Streams may hold a quarter of them, since they
    /// stay open for hours.
    pub(crate) fn new(max_connections: usize) -> Self {
        Self {
            state: Arc::default(),
            open: Slots::new((max_connections / 4).max(1)),
            following: watch::Sender::new(false),
            process: rand::random(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the place of a record, in this process's order.
    pub(super) fn place(&self, millis: i64, partition: i32, offset: i64) -> Place {
        Place { millis, partition, offset, process: self.process }
    }

    /// Marks that the end of the topic is being read.
    pub(super) fn follows(&self) {
        self.following.send_replace(true);
    }

    /// Waits until the end of the topic is being read. From then on no click is missed.
    pub(super) async fn wait_until_following(&self) {
        // `self` owns the sender, so it is not closed.
        let _ = self.following.subscribe().wait_for(|follows| *follows).await;
    }

    /// Returns whether anybody listens to the workspace, or to any.
    pub(super) fn wants(&self, workspace: Option<Uuid>) -> bool {
        let state = self.state();
        workspace.map_or(!state.channels.is_empty(), |workspace| state.channels.contains_key(&workspace))
    }

    /// Passes a click to the listeners, and cuts off those that are too slow.
    pub(super) fn publish(&self, workspace: Uuid, event: Event) {
        let mut state = self.state();
        let Some(channel) = state.channels.get_mut(&workspace) else { return };
        let event = Arc::new(event);
        channel.listeners.retain(|listener| {
            let is_for = listener.link.is_none_or(|link| link == event.link);
            // A listener that is cut off reconnects with the last place it has seen.
            !is_for || listener.queue.try_send(Arc::clone(&event)).is_ok()
        });
        channel.note_empty();
        if channel.last.len() == KEPT {
            channel.last.pop_front();
        }
        channel.last.push_back(event);
    }

    /// Removes workspaces without listeners for some time.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        state
            .channels
            .retain(|_, channel| channel.empty_since.is_none_or(|since| since.elapsed() < KEPT_FOR));
        metrics::gauge!("hopline_live_listeners").set(self.open.total() as f64);
    }

    /// Adds a listener, optionally from a place on.
    ///
    /// # Errors
    /// 429 when the workspace or the account has too many listeners, 503 when the process does.
    pub(super) fn listen(
        &self,
        account: Uuid,
        workspace: Uuid,
        link: Option<Uuid>,
        from: Option<Place>,
    ) -> Result<Subscription, ApiError> {
        let mut state = self.state();
        let slot = self.take_slot(account, state.listeners(workspace))?;
        let channel = state.channels.entry(workspace).or_default();
        let (missed, has_gap) = from.map_or((Vec::new(), false), |from| channel.since(from, link));
        let (sender, queue) = mpsc::channel(QUEUE);
        // Random, since a counter would restart with a removed workspace.
        let number = rand::random();
        channel.listeners.push(Listener { number, link, queue: sender });
        channel.empty_since = None;
        let leave = Leave { hub: self.clone(), workspace, number };
        Ok(Subscription { missed, has_gap, queue, _leave: leave, _slot: slot })
    }

    /// Takes a slot for a listener of a workspace that already has `of_workspace`.
    fn take_slot(&self, account: Uuid, of_workspace: usize) -> Result<Slot<Uuid>, ApiError> {
        if of_workspace >= MOST_OF_WORKSPACE {
            let message = format!(
                "The workspace already has {MOST_OF_WORKSPACE} live streams. Close one and try again."
            );
            return Err(ApiError::rate_limited(message).with_retry_after(RETRY));
        }
        self.open.take(account, MOST_OF_ACCOUNT).map_err(|full| {
            let error = match full {
                Full::Owner => ApiError::rate_limited(format!(
                    "The account already has {MOST_OF_ACCOUNT} live streams. Close one and try again."
                )),
                Full::All => ApiError::new(
                    Code::Unavailable,
                    "This server has no more live streams to give. Try again in a moment.",
                ),
            };
            error.with_retry_after(RETRY)
        })
    }
}

impl State {
    /// Returns the number of a workspace's listeners.
    fn listeners(&self, workspace: Uuid) -> usize {
        self.channels.get(&workspace).map_or(0, |channel| channel.listeners.len())
    }
}

impl Channel {
    fn note_empty(&mut self) {
        if self.listeners.is_empty() && self.empty_since.is_none() {
            self.empty_since = Some(Instant::now());
        }
    }

    /// Returns the clicks since a place, and whether more may be missing.
    fn since(&self, from: Place, link: Option<Uuid>) -> (Vec<Arc<Event>>, bool) {
        let known = self.last.iter().position(|event| event.place == from);
        let is_wanted = |event: &&Arc<Event>| link.is_none_or(|link| link == event.link);
        match known {
            Some(place) => (self.last.iter().skip(place + 1).filter(is_wanted).cloned().collect(), false),
            None => {
                // A place of another process, or an old one. Clicks that may have been seen are sent again; the click
                // id identifies them.
                let since = from.millis - OVERLAP;
                let missed = self.last.iter().filter(|event| event.place.millis >= since);
                let has_all = self.last.front().is_some_and(|first| first.place.millis < since);
                (missed.filter(is_wanted).cloned().collect(), !has_all)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::clicks::click::Line;

    const ACCOUNT: Uuid = Uuid::from_u128(4);
    const WORKSPACE: Uuid = Uuid::from_u128(1);
    const LINK: Uuid = Uuid::from_u128(2);

    fn hub() -> Hub {
        Hub::new(10_000)
    }

    fn publish(hub: &Hub, offset: i64) -> Place {
        publish_of(hub, offset, LINK)
    }

    fn publish_of(hub: &Hub, offset: i64, link: Uuid) -> Place {
        let place = hub.place(1_000_000 + offset * 1_000, 0, offset);
        hub.publish(WORKSPACE, Event::new(place, link, &Line { json: "{}".to_owned(), of_viewers: None }));
        place
    }

    fn offsets(events: &[Arc<Event>]) -> Vec<i64> {
        events.iter().map(|event| event.place.offset).collect()
    }

    #[test]
    fn a_stream_resumes_where_it_broke() {
        let hub = hub();
        let subscription = hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap();
        let places: Vec<Place> = (0..10).map(|offset| publish(&hub, offset)).collect();
        drop(subscription);
        let again = hub.listen(ACCOUNT, WORKSPACE, None, Some(places[6])).unwrap();
        assert_eq!((offsets(&again.missed), again.has_gap), (vec![7, 8, 9], false));
        // With a place of another process, clicks near it are repeated rather than lost.
        let foreign = Place { process: places[8].process.wrapping_add(1), ..places[8] };
        let again = hub.listen(ACCOUNT, WORKSPACE, None, Some(foreign)).unwrap();
        assert_eq!((offsets(&again.missed), again.has_gap), (vec![3, 4, 5, 6, 7, 8, 9], false));
    }

    #[test]
    fn kept_clicks_are_bounded_and_a_gap_is_reported() {
        let hub = hub();
        let mut subscription = hub.listen(ACCOUNT, WORKSPACE, Some(Uuid::from_u128(3)), None).unwrap();
        let first = publish(&hub, 0);
        for offset in 1..=KEPT as i64 + 5 {
            publish(&hub, offset);
        }
        assert!(subscription.queue.try_recv().is_err(), "of another link");
        assert_eq!(hub.state().channels[&WORKSPACE].last.len(), KEPT);
        let again = hub.listen(ACCOUNT, WORKSPACE, None, Some(first)).unwrap();
        assert!(again.has_gap);
        assert_eq!(again.missed.len(), KEPT);
        assert!(hub.listen(ACCOUNT, Uuid::nil(), None, Some(first)).unwrap().has_gap, "no click is known");
        assert!(!hub.listen(ACCOUNT, Uuid::nil(), None, None).unwrap().has_gap, "no place was given");
    }

    #[test]
    fn a_slow_listener_delays_no_other() {
        let hub = hub();
        let mut slow = hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap();
        let mut quick = hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap();
        for offset in 0..QUEUE as i64 + 10 {
            publish(&hub, offset);
            assert_eq!(quick.queue.try_recv().unwrap().place.offset, offset);
        }
        let mut last = None;
        while let Ok(event) = slow.queue.try_recv() {
            last = Some(event.place);
        }
        assert!(slow.queue.is_closed());
        let again = hub.listen(ACCOUNT, WORKSPACE, None, last).unwrap();
        assert_eq!(again.missed.len(), 10);
    }

    #[test]
    fn a_workspace_has_a_limit_of_listeners() {
        let hub = hub();
        assert!(!hub.wants(None));
        let subscription: Vec<Subscription> =
            (0..MOST_OF_WORKSPACE).map(|_| hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap()).collect();
        assert_eq!(hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap_err().status(), 429);
        assert!(hub.listen(ACCOUNT, Uuid::nil(), None, None).is_ok(), "workspaces have separate limits");
        assert!(hub.wants(Some(WORKSPACE)) && !hub.wants(Some(LINK)));
        drop(subscription);
        assert!(hub.listen(ACCOUNT, WORKSPACE, None, None).is_ok());
    }

    #[test]
    fn an_account_and_a_process_have_a_limit_of_listeners() {
        let listen = |hub: &Hub, account: u128, workspace: usize| {
            let workspace = Uuid::from_u128(1_000 * account + workspace as u128);
            hub.listen(Uuid::from_u128(account), workspace, None, None)
        };
        let hub = Hub::new(1_000);
        let of_account: Vec<Subscription> =
            (0..MOST_OF_ACCOUNT).map(|number| listen(&hub, 1, number / 40).unwrap()).collect();
        assert_eq!(listen(&hub, 1, 9).unwrap_err().status(), 429);
        assert!(
            !hub.state().channels.contains_key(&Uuid::from_u128(1_009)),
            "a rejected listener leaves no channel"
        );
        let mut of_others: Vec<Subscription> =
            (0..50).map(|number| listen(&hub, 2, number).unwrap()).collect();
        assert_eq!(listen(&hub, 3, 0).unwrap_err().status(), 503, "a quarter of the connections");
        of_others.pop();
        assert!(listen(&hub, 3, 0).is_ok());
        drop((of_account, of_others));
        assert_eq!(hub.open.total(), 0);
    }

    #[test]
    fn a_disconnected_listener_counts_until_its_stream_ends() {
        let hub = Hub::new(4);
        let slow = hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap();
        for offset in 0..=QUEUE as i64 {
            publish(&hub, offset);
        }
        assert!(hub.state().channels[&WORKSPACE].listeners.is_empty());
        assert_eq!(hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap_err().status(), 503);
        drop(slow);
        assert!(hub.listen(ACCOUNT, WORKSPACE, None, None).is_ok());
    }
}
