//! Looks up links in Postgres that were created a moment ago and have not reached this edge through the topic.
//! Optional.
//!
//! Visitors choose the slugs, so everything is bounded: the rate, the number of concurrent queries, their duration and
//! the memory for results. If Postgres does not answer in time, the link is not found.

mod store;

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use metrics::{Counter, counter};
use parking_lot::Mutex;
use service::postgres::DatabaseUrl;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::links::lookup::store::Store;
use crate::links::{Links, Target};

/// Queries per second on average.
const PER_SECOND: NonZeroU32 = NonZeroU32::MIN.saturating_add(99);

/// Queries that may start at once after a pause.
const BURST: NonZeroU32 = NonZeroU32::MIN.saturating_add(19);

/// Queries that may run at the same time.
const MAX_IN_FLIGHT: usize = 20;

/// How long a visitor waits for Postgres.
const TIMEOUT: Duration = Duration::from_millis(300);

/// How long no query is sent after one failed.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a slug that does not exist is not queried again. If it is created, the topic usually delivers it sooner.
const ABSENT_FOR: Duration = Duration::from_secs(5);

/// How many slugs that do not exist are remembered.
const MAX_ABSENT: usize = 10_000;

/// The maximum length of a slug, a rule of `api`.
const SLUG_LEN: usize = 64;

/// Looks up links in Postgres by slug.
#[derive(Debug)]
pub struct Lookup {
    store: Store,
    links: Links,
    limit: DefaultDirectRateLimiter,
    state: Mutex<State>,
    outcomes: Outcomes,
}

/// The running queries, and the remembered results of earlier ones.
#[derive(Debug, Default)]
struct State {
    /// One cell per slug, so that all visitors of a slug wait for the same query.
    in_flight: HashMap<Box<str>, Arc<OnceCell<()>>>,
    /// Slugs that do not exist, and until when they are not queried again.
    absent: HashMap<Box<str>, Instant>,
    /// The entries of `absent`, oldest first.
    absent_in_order: VecDeque<(Instant, Box<str>)>,
    /// No query is sent until then.
    paused_until: Option<Instant>,
}

/// Counters of lookups by outcome.
#[derive(Debug)]
struct Outcomes {
    found: Counter,
    absent: Counter,
    failed: Counter,
    /// Not queried, because of a limit or a pause.
    refused: Counter,
}

impl Lookup {
    /// Creates a lookup that applies the links it finds to `links`. Does not connect yet.
    pub fn new(url: DatabaseUrl, links: Links) -> Self {
        let outcome = |outcome| counter!("hopline_link_lookups_total", "outcome" => outcome);
        Self {
            store: Store::new(url),
            links,
            limit: RateLimiter::direct(Quota::per_second(PER_SECOND).allow_burst(BURST)),
            state: Mutex::default(),
            outcomes: Outcomes {
                found: outcome("found"),
                absent: outcome("absent"),
                failed: outcome("failed"),
                refused: outcome("refused"),
            },
        }
    }

    /// Returns the link with this slug if Postgres has it and answers in time.
    pub async fn find(&self, slug: &str) -> Option<Arc<Target>> {
        let query = self.join_or_start(slug)?;
        query.cell.get_or_init(|| self.query(slug)).await;
        // The query applied the link, unless the topic delivered a newer revision meanwhile.
        self.links.find(slug)
    }

    /// Joins the running query for a slug, or starts one if the slug is valid and the limits allow it.
    fn join_or_start<'a>(&'a self, slug: &'a str) -> Option<Query<'a>> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if slug.is_empty() || slug.len() > SLUG_LEN || !slug.bytes().all(is_allowed) {
            return None;
        }
        let mut state = self.state.lock();
        if let Some(cell) = state.in_flight.get(slug) {
            return Some(Query { lookup: self, slug, cell: Arc::clone(cell) });
        }
        let now = Instant::now();
        if state.absent.get(slug).is_some_and(|until| now < *until) {
            return None;
        }
        let paused = state.paused_until.is_some_and(|until| now < until);
        if paused || state.in_flight.len() >= MAX_IN_FLIGHT || self.limit.check().is_err() {
            self.outcomes.refused.increment(1);
            return None;
        }
        let cell = Arc::new(OnceCell::new());
        state.in_flight.insert(slug.into(), Arc::clone(&cell));
        Some(Query { lookup: self, slug, cell })
    }

    async fn query(&self, slug: &str) {
        match timeout(TIMEOUT, self.store.link(slug)).await {
            Ok(Ok(Some(link))) => {
                self.outcomes.found.increment(1);
                if let Err(error) = self.links.apply_link(link) {
                    tracing::error!("skipped an invalid link from Postgres: {error}");
                }
            }
            Ok(Ok(None)) => {
                self.outcomes.absent.increment(1);
                self.state.lock().remember_absent(slug);
            }
            Ok(Err(error)) => self.failed(&error.to_string()),
            Err(_) => self.failed("no answer in time"),
        }
    }

    fn failed(&self, error: &str) {
        self.outcomes.failed.increment(1);
        self.state.lock().paused_until = Some(Instant::now() + PAUSE);
        // At most once per pause.
        tracing::warn!("cannot look up links in Postgres, unknown slugs are not found: {error}");
    }
}

impl State {
    fn remember_absent(&mut self, slug: &str) {
        let now = Instant::now();
        while let Some((until, _)) = self.absent_in_order.front()
            && (*until <= now || self.absent_in_order.len() >= MAX_ABSENT)
            && let Some((until, oldest)) = self.absent_in_order.pop_front()
        {
            // A later query may have renewed the entry.
            if self.absent.get(&oldest) == Some(&until) {
                self.absent.remove(&oldest);
            }
        }
        let until = now + ABSENT_FOR;
        self.absent.insert(slug.into(), until);
        self.absent_in_order.push_back((until, slug.into()));
    }
}

/// A visitor's share in a query. The last one dropped removes the query.
struct Query<'a> {
    lookup: &'a Lookup,
    slug: &'a str,
    cell: Arc<OnceCell<()>>,
}

impl Drop for Query<'_> {
    fn drop(&mut self) {
        let mut state = self.lookup.state.lock();
        let same = state.in_flight.get(self.slug).is_some_and(|cell| Arc::ptr_eq(cell, &self.cell));
        // One reference is the map's and one is this.
        let last = Arc::strong_count(&self.cell) <= 2;
        if same && (last || self.cell.initialized()) {
            state.in_flight.remove(self.slug);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cannot reach Postgres: nothing listens on port 1.
    fn lookup() -> Lookup {
        Lookup::new("postgres://nobody@127.0.0.1:1/none".parse().unwrap(), Links::default())
    }

    #[tokio::test]
    async fn an_invalid_slug_is_not_queried() {
        let lookup = lookup();
        for slug in ["", "a/b", "a.b", "é", "a%20b", &"s".repeat(65)] {
            assert!(lookup.join_or_start(slug).is_none(), "{slug}");
        }
        assert!(lookup.join_or_start(&"s".repeat(64)).is_some());
    }

    #[tokio::test]
    async fn visitors_share_a_query_and_an_absent_slug_has_none() {
        let lookup = lookup();
        let (first, second) = (lookup.join_or_start("s").unwrap(), lookup.join_or_start("s").unwrap());
        assert!(Arc::ptr_eq(&first.cell, &second.cell));
        drop(first);
        assert_eq!(lookup.state.lock().in_flight.len(), 1, "the second visitor still waits");
        drop(second);
        assert!(lookup.state.lock().in_flight.is_empty());
        lookup.state.lock().remember_absent("s");
        assert!(lookup.join_or_start("s").is_none());
    }

    #[tokio::test]
    async fn a_flood_of_slugs_is_bounded_in_queries_and_memory() {
        let lookup = lookup();
        let slugs: Vec<String> = (0..1_000).map(|number| format!("s{number}")).collect();
        let waiting: Vec<_> = slugs.iter().filter_map(|slug| lookup.join_or_start(slug)).collect();
        assert_eq!(waiting.len(), MAX_IN_FLIGHT);
        drop(waiting);
        let started = Instant::now();
        let queries = slugs.iter().filter(|slug| lookup.join_or_start(slug).is_some()).count();
        let allowed = BURST.get() as f64 + started.elapsed().as_secs_f64() * f64::from(PER_SECOND.get());
        assert!(queries as f64 <= allowed, "{queries} queries");
        for number in 0..2 * MAX_ABSENT {
            lookup.state.lock().remember_absent(&format!("absent{number}"));
        }
        let state = lookup.state.lock();
        assert_eq!((state.absent.len(), state.absent_in_order.len()), (MAX_ABSENT, MAX_ABSENT));
    }

    #[tokio::test]
    async fn without_postgres_a_slug_is_not_found_and_queries_pause() {
        let lookup = lookup();
        assert!(lookup.find("s").await.is_none());
        assert!(lookup.state.lock().paused_until.is_some());
        assert!(lookup.join_or_start("t").is_none());
        assert!(lookup.state.lock().in_flight.is_empty());
    }
}
