//! Who listens to which workspace, and the last clicks of each.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use service::http::ApiError;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::event::{Event, Place};

/// Listeners that a workspace may have at one process.
const MOST_LISTENERS: usize = 50;

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
    rooms: Arc<Mutex<HashMap<Uuid, Room>>>,
    /// Whether the end of the topic is being read.
    following: watch::Sender<bool>,
    process: u32,
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
    workspace: Uuid,
    number: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        if let Some(room) = self.hub.rooms().get_mut(&self.workspace) {
            room.listeners.retain(|listener| listener.number != self.number);
            room.note_empty();
        }
    }
}

impl Default for Hub {
    fn default() -> Self {
        Self { rooms: Arc::default(), following: watch::Sender::new(false), process: rand::random() }
    }
}

impl Hub {
    fn rooms(&self) -> MutexGuard<'_, HashMap<Uuid, Room>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
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
        let rooms = self.rooms();
        workspace.map_or(!rooms.is_empty(), |workspace| rooms.contains_key(&workspace))
    }

    /// Gives a click to those who listen, and cuts off who is too slow.
    pub(super) fn publish(&self, workspace: Uuid, event: Event) {
        let mut rooms = self.rooms();
        let Some(room) = rooms.get_mut(&workspace) else { return };
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
        let mut rooms = self.rooms();
        rooms.retain(|_, room| room.empty_since.is_none_or(|since| since.elapsed() < KEPT_FOR));
        let listeners: usize = rooms.values().map(|room| room.listeners.len()).sum();
        metrics::gauge!("hopline_live_listeners").set(listeners as f64);
    }

    /// Begins to listen, from a place on if one is given.
    ///
    /// # Errors
    /// 429 when the workspace has too many listeners.
    pub(super) fn listen(
        &self,
        workspace: Uuid,
        link: Option<Uuid>,
        from: Option<Place>,
    ) -> Result<Listening, ApiError> {
        let mut rooms = self.rooms();
        let room = rooms.entry(workspace).or_default();
        if room.listeners.len() >= MOST_LISTENERS {
            let message = format!("The workspace has {MOST_LISTENERS} live streams already");
            return Err(ApiError::rate_limited(message).with_retry_after(Duration::from_secs(10)));
        }
        let (missed, has_gap) = from.map_or((Vec::new(), false), |from| room.since(from, link));
        let (sender, queue) = mpsc::channel(QUEUE);
        // Drawn, and not counted: a room that was forgotten would count from the beginning again.
        let number = rand::random();
        room.listeners.push(Listener { number, link, queue: sender });
        room.empty_since = None;
        let leave = Leave { hub: self.clone(), workspace, number };
        Ok(Listening { missed, has_gap, queue, _leave: leave })
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

    const WORKSPACE: Uuid = Uuid::from_u128(1);
    const LINK: Uuid = Uuid::from_u128(2);

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
        let hub = Hub::default();
        let listening = hub.listen(WORKSPACE, None, None).unwrap();
        let places: Vec<Place> = (0..10).map(|offset| publish(&hub, offset)).collect();
        drop(listening);
        let again = hub.listen(WORKSPACE, None, Some(places[6])).unwrap();
        assert_eq!((offsets(&again.missed), again.has_gap), (vec![7, 8, 9], false));
        // Another process has said the place: what is near comes again rather than not at all.
        let foreign = Place { process: places[8].process.wrapping_add(1), ..places[8] };
        let again = hub.listen(WORKSPACE, None, Some(foreign)).unwrap();
        assert_eq!((offsets(&again.missed), again.has_gap), (vec![3, 4, 5, 6, 7, 8, 9], false));
    }

    #[test]
    fn what_is_kept_is_bounded_and_a_gap_is_told() {
        let hub = Hub::default();
        let mut listening = hub.listen(WORKSPACE, Some(Uuid::from_u128(3)), None).unwrap();
        let first = publish(&hub, 0);
        for offset in 1..=KEPT as i64 + 5 {
            publish(&hub, offset);
        }
        assert!(listening.queue.try_recv().is_err(), "of another link");
        assert_eq!(hub.rooms()[&WORKSPACE].last.len(), KEPT);
        let again = hub.listen(WORKSPACE, None, Some(first)).unwrap();
        assert!(again.has_gap);
        assert_eq!(again.missed.len(), KEPT);
        assert!(hub.listen(Uuid::nil(), None, Some(first)).unwrap().has_gap, "nothing is known");
        assert!(!hub.listen(Uuid::nil(), None, None).unwrap().has_gap, "nothing was asked");
    }

    #[test]
    fn a_slow_listener_is_cut_off_and_holds_up_nobody() {
        let hub = Hub::default();
        let mut slow = hub.listen(WORKSPACE, None, None).unwrap();
        let mut quick = hub.listen(WORKSPACE, None, None).unwrap();
        for offset in 0..QUEUE as i64 + 10 {
            publish(&hub, offset);
            assert_eq!(quick.queue.try_recv().unwrap().place.offset, offset);
        }
        let mut last = None;
        while let Ok(event) = slow.queue.try_recv() {
            last = Some(event.place);
        }
        assert!(slow.queue.is_closed());
        let again = hub.listen(WORKSPACE, None, last).unwrap();
        assert_eq!(again.missed.len(), 10);
    }

    #[test]
    fn a_workspace_has_so_many_listeners_and_no_more() {
        let hub = Hub::default();
        assert!(!hub.wants(None));
        let listening: Vec<Listening> =
            (0..MOST_LISTENERS).map(|_| hub.listen(WORKSPACE, None, None).unwrap()).collect();
        assert_eq!(hub.listen(WORKSPACE, None, None).unwrap_err().status(), 429);
        assert!(hub.listen(Uuid::nil(), None, None).is_ok(), "another workspace has its own");
        assert!(hub.wants(Some(WORKSPACE)) && !hub.wants(Some(LINK)));
        drop(listening);
        assert!(hub.listen(WORKSPACE, None, None).is_ok());
    }
}
