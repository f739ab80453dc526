//! Who listens to which workspace, and the last clicks of each.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use service::http::{ApiError, Code};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::event::{Event, Place};

/// Listeners that a workspace, and that an account over all its workspaces, may have at one process.
const MOST_OF_WORKSPACE: usize = 50;
const MOST_OF_ACCOUNT: usize = 200;

/// How soon a listener that was refused may ask again.
const RETRY: Duration = Duration::from_secs(10);

/// Clicks of a workspace that are kept for those who come back.
const KEPT: usize = 1_000;

/// How long they are kept after the last listener has left.
const KEPT_FOR: Duration = Duration::from_secs(300);

/// Clicks that may wait for one listener.
const QUEUE: usize = 256;

/// What two processes may see in different orders, in milliseconds.
const OVERLAP: i64 = 5_000;

/// Who listens. Clones are handles to the same.
#[derive(Debug, Clone)]
pub(crate) struct Hub {
    state: Arc<Mutex<State>>,
    /// Whether the end of the topic is being read.
    following: watch::Sender<bool>,
    process: u32,
    /// Listeners that the process may have.
    most: usize,
}

#[derive(Debug, Default)]
struct State {
    rooms: HashMap<Uuid, Room>,
    /// Streams that are open, of each account that has one. A listener that was cut off counts until its stream ends:
    /// a browser that reads nothing any more holds that as well.
    open: HashMap<Uuid, usize>,
}

/// A workspace that somebody listens to, or did until lately.
#[derive(Debug, Default)]
struct Room {
    last: VecDeque<Arc<Event>>,
    listeners: Vec<Listener>,
    /// Since when nobody listens.
    empty_since: Option<Instant>,
}

#[derive(Debug)]
struct Listener {
    number: u64,
    /// The only link that is listened to.
    link: Option<Uuid>,
    queue: mpsc::Sender<Arc<Event>>,
}

/// What one listener gets; it leaves when this is dropped.
#[derive(Debug)]
pub(super) struct Listening {
    /// What happened since the place that was given.
    pub(super) missed: Vec<Arc<Event>>,
    /// Whether more may have happened, which is not known any more.
    pub(super) has_gap: bool,
    /// Ends when the listener was too slow.
    pub(super) queue: mpsc::Receiver<Arc<Event>>,
    _leave: Leave,
}

#[derive(Debug)]
struct Leave {
    hub: Hub,
    account: Uuid,
    workspace: Uuid,
    number: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        if let Some(open) = state.open.get_mut(&self.account) {
            *open -= 1;
            if *open == 0 {
                state.open.remove(&self.account);
            }
        }
        if let Some(room) = state.rooms.get_mut(&self.workspace) {
            room.listeners.retain(|listener| listener.number != self.number);
            room.note_empty();
        }
    }
}

impl Hub {
    /// A hub of a process that takes so many connections, of which streams may hold a quarter: they are held for hours,
    /// and requests need some too.
    pub(crate) fn new(max_connections: usize) -> Self {
        Self {
            state: Arc::default(),
            following: watch::Sender::new(false),
            process: rand::random(),
            most: (max_connections / 4).max(1),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The place of a record, as this process says it.
    pub(super) fn place(&self, millis: i64, partition: i32, offset: i64) -> Place {
        Place { millis, partition, offset, process: self.process }
    }

    /// Says that the end of the topic is being read.
    pub(super) fn follows(&self) {
        self.following.send_replace(true);
    }

    /// Waits until the end of the topic is being read: from then on no click is missed.
    pub(super) async fn wait_until_following(&self) {
        // The sender is part of this, so it is there.
        let _ = self.following.subscribe().wait_for(|follows| *follows).await;
    }

    /// Whether a click of some workspace, or of this one, is of use to anybody.
    pub(super) fn wants(&self, workspace: Option<Uuid>) -> bool {
        let state = self.state();
        workspace.map_or(!state.rooms.is_empty(), |workspace| state.rooms.contains_key(&workspace))
    }

    /// Gives a click to those who listen, and cuts off who is too slow.
    pub(super) fn publish(&self, workspace: Uuid, event: Event) {
        let mut state = self.state();
        let Some(room) = state.rooms.get_mut(&workspace) else { return };
        let event = Arc::new(event);
        room.listeners.retain(|listener| {
            let is_for = listener.link.is_none_or(|link| link == event.link);
            // Who is cut off asks again with the last place it has seen.
            !is_for || listener.queue.try_send(Arc::clone(&event)).is_ok()
        });
        room.note_empty();
        if room.last.len() == KEPT {
            room.last.pop_front();
        }
        room.last.push_back(event);
    }

    /// Forgets the clicks of workspaces that nobody has listened to for some time.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        state.rooms.retain(|_, room| room.empty_since.is_none_or(|since| since.elapsed() < KEPT_FOR));
        let listeners = state.listeners();
        metrics::gauge!("hopline_live_listeners").set(listeners as f64);
    }

    /// Begins to listen, from a place on if one is given.
    ///
    /// # Errors
    /// 429 when the workspace or the account has too many listeners, 503 when the process has.
    pub(super) fn listen(
        &self,
        account: Uuid,
        workspace: Uuid,
        link: Option<Uuid>,
        from: Option<Place>,
    ) -> Result<Listening, ApiError> {
        let mut state = self.state();
        state.check_room_for(account, workspace, self.most)?;
        *state.open.entry(account).or_default() += 1;
        let room = state.rooms.entry(workspace).or_default();
        let (missed, has_gap) = from.map_or((Vec::new(), false), |from| room.since(from, link));
        let (sender, queue) = mpsc::channel(QUEUE);
        // Drawn, and not counted: a room that was forgotten would count from the beginning again.
        let number = rand::random();
        room.listeners.push(Listener { number, link, queue: sender });
        room.empty_since = None;
        let leave = Leave { hub: self.clone(), account, workspace, number };
        Ok(Listening { missed, has_gap, queue, _leave: leave })
    }
}

impl State {
    fn listeners(&self) -> usize {
        self.open.values().sum()
    }

    fn check_room_for(&self, account: Uuid, workspace: Uuid, most: usize) -> Result<(), ApiError> {
        let of_workspace = self.rooms.get(&workspace).map_or(0, |room| room.listeners.len());
        if of_workspace >= MOST_OF_WORKSPACE {
            let message = format!(
                "The workspace already has {MOST_OF_WORKSPACE} live streams. Close one and try again."
            );
            return Err(ApiError::rate_limited(message).with_retry_after(RETRY));
        }
        if self.open.get(&account).is_some_and(|open| *open >= MOST_OF_ACCOUNT) {
            let message =
                format!("The account already has {MOST_OF_ACCOUNT} live streams. Close one and try again.");
            return Err(ApiError::rate_limited(message).with_retry_after(RETRY));
        }
        if self.listeners() >= most {
            let message = "This server has no more live streams to give. Try again in a moment.";
            return Err(ApiError::new(Code::Unavailable, message).with_retry_after(RETRY));
        }
        Ok(())
    }
}

impl Room {
    fn note_empty(&mut self) {
        if self.listeners.is_empty() && self.empty_since.is_none() {
            self.empty_since = Some(Instant::now());
        }
    }

    /// The clicks since a place, and whether there may have been more.
    fn since(&self, from: Place, link: Option<Uuid>) -> (Vec<Arc<Event>>, bool) {
        let known = self.last.iter().position(|event| event.place == from);
        let is_wanted = |event: &&Arc<Event>| link.is_none_or(|link| link == event.link);
        match known {
            Some(place) => (self.last.iter().skip(place + 1).filter(is_wanted).cloned().collect(), false),
            None => {
                // Said by another process, or long ago. What may have been seen already comes again, under its id
                // and with its click id; whoever counts, counts by those.
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
        hub.publish(WORKSPACE, Event::new(place, link, "{}"));
        place
    }

    fn offsets(events: &[Arc<Event>]) -> Vec<i64> {
        events.iter().map(|event| event.place.offset).collect()
    }

    #[test]
    fn a_stream_goes_on_where_it_broke() {
        let hub = hub();
        let listening = hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap();
        let places: Vec<Place> = (0..10).map(|offset| publish(&hub, offset)).collect();
        drop(listening);
        let again = hub.listen(ACCOUNT, WORKSPACE, None, Some(places[6])).unwrap();
        assert_eq!((offsets(&again.missed), again.has_gap), (vec![7, 8, 9], false));
        // Another process has said the place: what is near comes again rather than not at all.
        let foreign = Place { process: places[8].process.wrapping_add(1), ..places[8] };
        let again = hub.listen(ACCOUNT, WORKSPACE, None, Some(foreign)).unwrap();
        assert_eq!((offsets(&again.missed), again.has_gap), (vec![3, 4, 5, 6, 7, 8, 9], false));
    }

    #[test]
    fn what_is_kept_is_bounded_and_a_gap_is_told() {
        let hub = hub();
        let mut listening = hub.listen(ACCOUNT, WORKSPACE, Some(Uuid::from_u128(3)), None).unwrap();
        let first = publish(&hub, 0);
        for offset in 1..=KEPT as i64 + 5 {
            publish(&hub, offset);
        }
        assert!(listening.queue.try_recv().is_err(), "of another link");
        assert_eq!(hub.state().rooms[&WORKSPACE].last.len(), KEPT);
        let again = hub.listen(ACCOUNT, WORKSPACE, None, Some(first)).unwrap();
        assert!(again.has_gap);
        assert_eq!(again.missed.len(), KEPT);
        assert!(hub.listen(ACCOUNT, Uuid::nil(), None, Some(first)).unwrap().has_gap, "nothing is known");
        assert!(!hub.listen(ACCOUNT, Uuid::nil(), None, None).unwrap().has_gap, "nothing was asked");
    }

    #[test]
    fn a_slow_listener_is_cut_off_and_holds_up_nobody() {
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
    fn a_workspace_has_so_many_listeners_and_no_more() {
        let hub = hub();
        assert!(!hub.wants(None));
        let listening: Vec<Listening> =
            (0..MOST_OF_WORKSPACE).map(|_| hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap()).collect();
        assert_eq!(hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap_err().status(), 429);
        assert!(hub.listen(ACCOUNT, Uuid::nil(), None, None).is_ok(), "another workspace has its own");
        assert!(hub.wants(Some(WORKSPACE)) && !hub.wants(Some(LINK)));
        drop(listening);
        assert!(hub.listen(ACCOUNT, WORKSPACE, None, None).is_ok());
    }

    #[test]
    fn an_account_and_a_process_have_so_many_listeners_and_no_more() {
        let listen = |hub: &Hub, account: u128, workspace: usize| {
            let workspace = Uuid::from_u128(1_000 * account + workspace as u128);
            hub.listen(Uuid::from_u128(account), workspace, None, None)
        };
        let hub = Hub::new(1_000);
        let of_account: Vec<Listening> =
            (0..MOST_OF_ACCOUNT).map(|number| listen(&hub, 1, number / 40).unwrap()).collect();
        assert_eq!(listen(&hub, 1, 9).unwrap_err().status(), 429);
        assert!(!hub.state().rooms.contains_key(&Uuid::from_u128(1_009)), "what is refused leaves nothing");
        let mut of_others: Vec<Listening> = (0..50).map(|number| listen(&hub, 2, number).unwrap()).collect();
        assert_eq!(listen(&hub, 3, 0).unwrap_err().status(), 503, "a quarter of the connections");
        of_others.pop();
        assert!(listen(&hub, 3, 0).is_ok());
        drop((of_account, of_others));
        assert!(hub.state().open.is_empty());
    }

    #[test]
    fn a_listener_that_was_cut_off_counts_until_its_stream_ends() {
        let hub = Hub::new(4);
        let slow = hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap();
        for offset in 0..=QUEUE as i64 {
            publish(&hub, offset);
        }
        assert!(hub.state().rooms[&WORKSPACE].listeners.is_empty());
        assert_eq!(hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap_err().status(), 503);
        drop(slow);
        assert!(hub.listen(ACCOUNT, WORKSPACE, None, None).is_ok());
    }
}
