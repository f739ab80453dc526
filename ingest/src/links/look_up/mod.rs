//! Links that were made a moment ago and are still on their way to this edge: asked for in Postgres, where the
//! operator gives it an address.
//!
//! Visitors choose what is asked, so everything here is bounded: how often, how many at once, how long, and what is
//! remembered. When Postgres says nothing in time, the answer is what it is without it.

mod store;

use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use metrics::{Counter, counter};
use service::postgres::DatabaseUrl;
use tokio::{sync::OnceCell, time::timeout};

use super::{Links, Target};
use store::Store;

/// Questions per second on average, however many unknown slugs are asked for.
const PER_SECOND: NonZeroU32 = NonZeroU32::MIN.saturating_add(99);

/// Questions at one moment after a quiet while.
const BURST: NonZeroU32 = NonZeroU32::MIN.saturating_add(19);

/// Slugs that are asked for at the same time.
const UNDER_WAY: usize = 20;

/// How long a visitor waits for Postgres.
const TIMEOUT: Duration = Duration::from_millis(300);

/// How long nobody asks after a question that got no answer.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a slug is not asked for again that nobody has. The topic tells of it sooner when somebody takes it.
const ABSENT_FOR: Duration = Duration::from_secs(5);

/// How many such slugs are remembered.
const ABSENT: usize = 10_000;

/// The longest slug that there can be (`api`'s rule).
const SLUG_LEN: usize = 64;

/// Asks Postgres for slugs.
#[derive(Debug)]
pub struct LookUp {
    store: Store,
    links: Links,
    limit: DefaultDirectRateLimiter,
    asked: Mutex<Asked>,
    outcomes: Outcomes,
}

/// What was asked, and what is remembered of it.
#[derive(Debug, Default)]
struct Asked {
    /// A cell per slug, so that all who want it wait for one answer.
    under_way: HashMap<Box<str>, Arc<OnceCell<()>>>,
    absent: HashMap<Box<str>, Instant>,
    /// The same in the order in which they are forgotten.
    absent_in_order: VecDeque<(Instant, Box<str>)>,
    /// Until when nobody asks.
    pause: Option<Instant>,
}

/// Counters of questions by what became of them.
struct Outcomes {
    found: Counter,
    absent: Counter,
    failed: Counter,
    /// Those that were not asked, because too many were.
    refused: Counter,
}

impl std::fmt::Debug for Outcomes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Outcomes").finish_non_exhaustive()
    }
}

impl LookUp {
    /// Prepares to ask, without connecting; what is found goes into `links`.
    pub fn new(url: DatabaseUrl, links: Links) -> Self {
        let outcome = |outcome| counter!("hopline_link_lookups_total", "outcome" => outcome);
        Self {
            store: Store::new(url),
            links,
            limit: RateLimiter::direct(Quota::per_second(PER_SECOND).allow_burst(BURST)),
            asked: Mutex::default(),
            outcomes: Outcomes {
                found: outcome("found"),
                absent: outcome("absent"),
                failed: outcome("failed"),
                refused: outcome("refused"),
            },
        }
    }

    /// Returns where a slug leads that the topic has not told of, if Postgres knows and says so in time.
    pub async fn find(&self, slug: &str) -> Option<Arc<Target>> {
        let question = self.question(slug)?;
        question.cell.get_or_init(|| self.ask(slug)).await;
        // What was found was applied, unless the topic knows better by now.
        self.links.find(slug)
    }

    /// Decides whether a slug is worth a question, and joins the one that is under way.
    fn question<'a>(&'a self, slug: &'a str) -> Option<Question<'a>> {
        let possible = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if slug.is_empty() || slug.len() > SLUG_LEN || !slug.bytes().all(possible) {
            return None;
        }
        let mut asked = self.asked();
        if let Some(cell) = asked.under_way.get(slug) {
            return Some(Question { look_up: self, slug, cell: Arc::clone(cell) });
        }
        let now = Instant::now();
        if asked.absent.get(slug).is_some_and(|until| now < *until) {
            return None;
        }
        let paused = asked.pause.is_some_and(|until| now < until);
        if paused || asked.under_way.len() >= UNDER_WAY || self.limit.check().is_err() {
            self.outcomes.refused.increment(1);
            return None;
        }
        let cell = Arc::new(OnceCell::new());
        asked.under_way.insert(slug.into(), Arc::clone(&cell));
        Some(Question { look_up: self, slug, cell })
    }

    async fn ask(&self, slug: &str) {
        match timeout(TIMEOUT, self.store.link(slug)).await {
            Ok(Ok(Some(link))) => {
                self.outcomes.found.increment(1);
                if let Err(error) = self.links.apply_link(link) {
                    tracing::error!("skipped a link of Postgres: {error}");
                }
            }
            Ok(Ok(None)) => {
                self.outcomes.absent.increment(1);
                self.asked().remember_absent(slug);
            }
            Ok(Err(error)) => self.failed(&error.to_string()),
            Err(_) => self.failed("no answer in time"),
        }
    }

    fn failed(&self, error: &str) {
        self.outcomes.failed.increment(1);
        self.asked().pause = Some(Instant::now() + PAUSE);
        // Once per pause, so at most once a second.
        tracing::warn!("cannot look up links in Postgres, unknown slugs are not found: {error}");
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asked {
    fn remember_absent(&mut self, slug: &str) {
        let now = Instant::now();
        // All are remembered for the same time, so the first are the oldest.
        while let Some((until, _)) = self.absent_in_order.front()
            && (*until <= now || self.absent_in_order.len() >= ABSENT)
            && let Some((until, oldest)) = self.absent_in_order.pop_front()
        {
            // It may have been asked for anew since.
            if self.absent.get(&oldest) == Some(&until) {
                self.absent.remove(&oldest);
            }
        }
        let until = now + ABSENT_FOR;
        self.absent.insert(slug.into(), until);
        self.absent_in_order.push_back((until, slug.into()));
    }
}

/// Somebody's wait for an answer, which ends with the answer or when they leave.
struct Question<'a> {
    look_up: &'a LookUp,
    slug: &'a str,
    cell: Arc<OnceCell<()>>,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let mut asked = self.look_up.asked();
        let same = asked.under_way.get(self.slug).is_some_and(|cell| Arc::ptr_eq(cell, &self.cell));
        // One is the map's and one is this: nobody else waits.
        let last = Arc::strong_count(&self.cell) <= 2;
        if same && (last || self.cell.initialized()) {
            asked.under_way.remove(self.slug);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks nobody: nothing listens on port 1.
    fn look_up() -> LookUp {
        LookUp::new("postgres://nobody@127.0.0.1:1/none".parse().unwrap(), Links::default())
    }

    #[tokio::test]
    async fn what_can_be_no_slug_is_not_asked_for() {
        let look_up = look_up();
        for slug in ["", "a/b", "a.b", "é", "a%20b", &"s".repeat(65)] {
            assert!(look_up.question(slug).is_none(), "{slug}");
        }
        assert!(look_up.question(&"s".repeat(64)).is_some());
    }

    #[tokio::test]
    async fn a_slug_is_asked_for_once_at_a_time_and_not_at_all_when_nobody_has_it() {
        let look_up = look_up();
        let (first, second) = (look_up.question("s").unwrap(), look_up.question("s").unwrap());
        assert!(Arc::ptr_eq(&first.cell, &second.cell));
        drop(first);
        assert_eq!(look_up.asked().under_way.len(), 1, "somebody waits still");
        drop(second);
        assert!(look_up.asked().under_way.is_empty());
        look_up.asked().remember_absent("s");
        assert!(look_up.question("s").is_none());
    }

    #[tokio::test]
    async fn a_flood_of_slugs_asks_few_questions_and_fills_no_memory() {
        let look_up = look_up();
        let slugs: Vec<String> = (0..1_000).map(|number| format!("s{number}")).collect();
        let waiting: Vec<_> = slugs.iter().filter_map(|slug| look_up.question(slug)).collect();
        assert_eq!(waiting.len(), UNDER_WAY);
        drop(waiting);
        let started = Instant::now();
        let asked = slugs.iter().filter(|slug| look_up.question(slug).is_some()).count();
        let allowed = BURST.get() as f64 + started.elapsed().as_secs_f64() * f64::from(PER_SECOND.get());
        assert!(asked as f64 <= allowed, "{asked} questions");
        for number in 0..2 * ABSENT {
            look_up.asked().remember_absent(&format!("absent{number}"));
        }
        let asked = look_up.asked();
        assert_eq!((asked.absent.len(), asked.absent_in_order.len()), (ABSENT, ABSENT));
    }

    #[tokio::test]
    async fn without_postgres_a_slug_is_not_found_and_the_next_ones_do_not_wait() {
        let look_up = look_up();
        assert!(look_up.find("s").await.is_none());
        assert!(look_up.asked().pause.is_some());
        assert!(look_up.question("t").is_none());
        assert!(look_up.asked().under_way.is_empty());
    }
}
