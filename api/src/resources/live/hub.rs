//! The listeners of each workspace, and its last clicks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use service::http::{ApiError, Code};
use service::slots::{Full, Slot, Slots};
use tokio::sync::watch;
use uuid::Uuid;

use super::event::{Event, Place};

/// Listeners of a workspace, and of an account over all its workspaces, at one process.
const MOST_OF_WORKSPACE: usize = 50;
const MOST_OF_ACCOUNT: usize = 200;

/// `Retry-After` for a rejected listener.
const RETRY: Duration = Duration::from_secs(10);

/// Clicks of a workspace that its listeners share, and their bytes: visitors choose how wide a click is. A listener
/// that is further behind, or resumes further back, gets a gap.
const KEPT: usize = 1_000;
const KEPT_BYTES: usize = 1 << 20;

/// How long they are kept after the last listener has left.
const KEPT_FOR: Duration = Duration::from_secs(300);

/// How far two processes may differ in their order of clicks, in milliseconds.
const OVERLAP: i64 = 5_000;

/// The listeners of a process. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Hub {
    state: Arc<Mutex<State>>,
    /// Open streams by account.
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
    last: watch::Sender<Last>,
    listeners: usize,
    /// Since when it has no listener.
    empty_since: Option<Instant>,
}

/// The last clicks of a workspace, numbered in the order in which they came.
#[derive(Debug, Default)]
struct Last {
    clicks: VecDeque<Event>,
    bytes: usize,
    /// The number of the first of them.
    first: u64,
}

/// A listener's end of the hub. Dropping it removes the listener.
#[derive(Debug)]
pub(super) struct Subscription {
    last: watch::Receiver<Last>,
    /// The number of the next click.
    next: u64,
    has_gap: bool,
    /// The only link that the listener asked for.
    link: Option<Uuid>,
    _leave: Leave,
    _slot: Slot<Uuid>,
}

/// What a listener gets.
#[derive(Debug)]
pub(super) enum Next {
    Click(Event),
    /// Clicks may be missing.
    Gap,
}

#[derive(Debug)]
struct Leave {
    hub: Hub,
    workspace: Uuid,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        if let Some(channel) = state.channels.get_mut(&self.workspace) {
            channel.listeners -= 1;
            if channel.listeners == 0 {
                channel.empty_since = Some(Instant::now());
            }
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

    /// Passes a click to the listeners of its workspace.
    pub(super) fn publish(&self, workspace: Uuid, event: Event) {
        if let Some(channel) = self.state().channels.get(&workspace) {
            channel.last.send_modify(|last| last.push(event));
        }
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
        channel.listeners += 1;
        channel.empty_since = None;
        let last = channel.last.subscribe();
        let (next, has_gap) = {
            let last = last.borrow();
            from.map_or((last.end(), false), |from| last.since(from))
        };
        let leave = Leave { hub: self.clone(), workspace };
        Ok(Subscription { last, next, has_gap, link, _leave: leave, _slot: slot })
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
        self.channels.get(&workspace).map_or(0, |channel| channel.listeners)
    }
}

impl Last {
    /// Adds a click, and removes the first ones beyond what is kept.
    fn push(&mut self, event: Event) {
        self.bytes += event.size();
        self.clicks.push_back(event);
        while self.clicks.len() > KEPT || self.bytes > KEPT_BYTES {
            let Some(first) = self.clicks.pop_front() else { return };
            self.bytes -= first.size();
            self.first += 1;
        }
    }

    /// Returns the number of the next click to come.
    fn end(&self) -> u64 {
        self.first + self.clicks.len() as u64
    }

    /// Returns the number of the first click since a place, and whether more may be missing.
    fn since(&self, from: Place) -> (u64, bool) {
        let number = |place: usize| self.first + place as u64;
        if let Some(known) = self.clicks.iter().position(|event| event.place == from) {
            return (number(known + 1), false);
        }
        // A place of another process, or an old one. Clicks that may have been seen are sent again; the click id
        // identifies them.
        let since = from.millis - OVERLAP;
        let missed = self.clicks.iter().position(|event| event.place.millis >= since);
        let has_all = self.clicks.front().is_some_and(|first| first.place.millis < since);
        (missed.map_or(self.end(), number), !has_all)
    }
}

impl Subscription {
    /// Waits for the next click of the listener, or a gap before it. May be cancelled.
    pub(super) async fn next(&mut self) -> Next {
        loop {
            if let Some(next) = self.next_kept() {
                return next;
            }
            // The hub keeps the sender while it has listeners.
            let _ = self.last.changed().await;
        }
    }

    fn next_kept(&mut self) -> Option<Next> {
        let last = self.last.borrow_and_update();
        if self.next < last.first {
            // At the end: what is kept first is the next to go, and would be the next gap.
            self.next = last.end();
            self.has_gap = true;
        }
        if std::mem::take(&mut self.has_gap) {
            return Some(Next::Gap);
        }
        let passed = usize::try_from(self.next - last.first).unwrap_or(usize::MAX);
        let link = self.link;
        let found = last.clicks.iter().skip(passed).find(|event| {
            self.next += 1;
            link.is_none_or(|link| link == event.link)
        });
        found.cloned().map(Next::Click)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

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

    /// Reads all that a listener gets now: whether that begins with a gap, and the offsets of clicks.
    fn read(subscription: &mut Subscription) -> (bool, Vec<i64>) {
        let (mut has_gap, mut offsets) = (false, Vec::new());
        while let Some(next) = subscription.next().now_or_never() {
            match next {
                Next::Gap if offsets.is_empty() && !has_gap => has_gap = true,
                Next::Gap => panic!("a second gap, after {offsets:?}"),
                Next::Click(event) => offsets.push(event.place.offset),
            }
        }
        (has_gap, offsets)
    }

    #[test]
    fn a_stream_resumes_where_it_broke() {
        let hub = hub();
        let subscription = hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap();
        let places: Vec<Place> = (0..10).map(|offset| publish(&hub, offset)).collect();
        drop(subscription);
        let mut again = hub.listen(ACCOUNT, WORKSPACE, None, Some(places[6])).unwrap();
        assert_eq!(read(&mut again), (false, vec![7, 8, 9]));
        publish(&hub, 10);
        assert_eq!(read(&mut again), (false, vec![10]));
        // With a place of another process, clicks near it are repeated rather than lost.
        let foreign = Place { process: places[8].process.wrapping_add(1), ..places[8] };
        let mut again = hub.listen(ACCOUNT, WORKSPACE, None, Some(foreign)).unwrap();
        assert_eq!(read(&mut again), (false, vec![3, 4, 5, 6, 7, 8, 9, 10]));
    }

    #[test]
    fn a_listener_gets_only_its_links_clicks() {
        let hub = hub();
        let other = Uuid::from_u128(3);
        let mut of_link = hub.listen(ACCOUNT, WORKSPACE, Some(LINK), None).unwrap();
        let mut of_other = hub.listen(ACCOUNT, WORKSPACE, Some(other), None).unwrap();
        for (offset, link) in [(0, LINK), (1, other), (2, other), (3, LINK)] {
            publish_of(&hub, offset, link);
        }
        assert_eq!(read(&mut of_link), (false, vec![0, 3]));
        assert_eq!(read(&mut of_other), (false, vec![1, 2]));
    }

    #[test]
    fn kept_clicks_are_bounded_and_a_gap_is_reported() {
        let hub = hub();
        let _listener = hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap();
        let first = publish(&hub, 0);
        for offset in 1..=KEPT as i64 + 5 {
            publish(&hub, offset);
        }
        let mut again = hub.listen(ACCOUNT, WORKSPACE, None, Some(first)).unwrap();
        assert_eq!(read(&mut again), (true, (6..=KEPT as i64 + 5).collect()));
        let mut unknown = hub.listen(ACCOUNT, Uuid::nil(), None, Some(first)).unwrap();
        assert_eq!(read(&mut unknown), (true, vec![]), "no click is known");
        let mut new = hub.listen(ACCOUNT, Uuid::nil(), None, None).unwrap();
        assert_eq!(read(&mut new), (false, vec![]), "no place was given");
    }

    #[test]
    fn wide_clicks_are_bounded_by_their_bytes() {
        let hub = hub();
        let mut listener = hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap();
        let wide = Line { json: "w".repeat(18_000), of_viewers: Some("w".repeat(17_000)) };
        for offset in 0..500 {
            hub.publish(WORKSPACE, Event::new(hub.place(1_000, 0, offset), LINK, &wide));
        }
        let bytes =
            hub.state().channels[&WORKSPACE].last.borrow().clicks.iter().map(Event::size).sum::<usize>();
        assert!((KEPT_BYTES - 36_000..=KEPT_BYTES).contains(&bytes), "{bytes}");
        assert_eq!(read(&mut listener), (true, vec![]));
    }

    #[test]
    fn a_slow_listener_delays_no_other() {
        let hub = hub();
        let mut slow = hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap();
        let mut quick = hub.listen(ACCOUNT, WORKSPACE, None, None).unwrap();
        for offset in 0..KEPT as i64 + 10 {
            publish(&hub, offset);
            assert_eq!(read(&mut quick), (false, vec![offset]));
        }
        assert_eq!(read(&mut slow), (true, vec![]), "the totals are right");
        publish(&hub, KEPT as i64 + 10);
        assert_eq!(read(&mut slow), (false, vec![KEPT as i64 + 10]));
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
}
