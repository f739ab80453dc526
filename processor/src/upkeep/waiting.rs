//! Counts conversions once their click is stored.

use std::time::Duration;

use metrics::{counter, gauge};
use service::LogLimit;
use service::metrics::UNKNOWN;
use tokio::time::{Instant, sleep};

use super::Turn;
use crate::clickhouse::{LookBack, Store, StoreError};
use crate::pipeline::deleted_links::DeletedLinks;

/// Conversions that are read at once.
const PAGE: usize = 2_000;

/// A look ends after this many failures, as when its replica is frozen. Fewer do not keep later pages waiting.
const MOST_FAILURES: usize = 3;

/// A pause lasts this many times as long as a look that counted nothing: conversions of lost clicks must not keep
/// ClickHouse busy.
const PAUSE_PER_LOOK: u32 = 10;

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// A look for the clicks of waiting conversions. No conversion is for two of them: a report of replicas may be lower
/// for a moment when one is stored again.
struct Look {
    /// A condition on when they were added.
    added: &'static str,
    is_unlimited: bool,
    /// The shortest pause between two.
    pause: Duration,
}

/// Finds the click of nearly each conversion, soon.
const RECENT: Look =
    Look { added: "added_at >= now() - 600", is_unlimited: false, pause: Duration::from_secs(1) };

/// Finds those whose click came later, or whose edge's clock ran far ahead.
const OLD: Look =
    Look { added: "added_at < now() - 600", is_unlimited: true, pause: Duration::from_secs(10) };

/// Looks again and again for the clicks of waiting conversions, while it is this process's turn to run upkeep.
pub async fn count_conversions(store: Store, deleted_links: DeletedLinks, mut turn: Turn) {
    let waiting = Waiting { store, deleted_links, log_limit: LogLimit::default() };
    while turn.begins().await {
        let recent = waiting.repeat(&RECENT, |_| ());
        let old = waiting.repeat(&OLD, |left| gauge!("hopline_processor_waiting_conversions").set(left));
        let work = async {
            tokio::join!(recent, old);
        };
        if !turn.ends_during(work).await {
            return;
        }
        gauge!("hopline_processor_waiting_conversions").set(UNKNOWN);
    }
}

struct Waiting {
    store: Store,
    deleted_links: DeletedLinks,
    log_limit: LogLimit,
}

/// What a look found.
#[derive(Default)]
struct Found {
    counted: usize,
    /// Those that go on waiting.
    left: usize,
    failures: usize,
}

impl Waiting {
    /// Repeats a look for ever. `export` receives how many of its conversions go on waiting.
    async fn repeat(&self, look: &Look, export: impl Fn(f64)) {
        loop {
            let store = if look.is_unlimited {
                // A replica may lack what others have for as long as it works otherwise.
                self.store.on_complete_replicas(&["clicks", "waiting_conversions"]).await
            } else {
                self.store.clone()
            };
            let started = Instant::now();
            let found = self.look(&store, look).await;
            export(if found.failures > 0 { UNKNOWN } else { found.left as f64 });
            let has_news = found.counted > 0 || found.failures > 0;
            let pause = if has_news { Duration::ZERO } else { started.elapsed() * PAUSE_PER_LOOK };
            sleep(pause.clamp(look.pause, LONGEST_PAUSE)).await;
        }
    }

    /// Counts the conversions whose click is stored now.
    async fn look(&self, store: &Store, look: &Look) -> Found {
        let mut found = Found::default();
        let mut last = None;
        while found.failures < MOST_FAILURES {
            let mut left = match store.waiting_conversions(last.as_ref(), look.added, PAGE).await {
                Ok(page) => page,
                Err(error) => {
                    self.note(&mut found, &error);
                    continue;
                }
            };
            let is_last = left.len() < PAGE;
            last = left.last().cloned();
            // The purge removes those of deleted links.
            left.retain(|waiting| !self.deleted_links.contain(waiting.link_id));
            let unlimited = look.is_unlimited.then_some(LookBack::Everything);
            for back in [LookBack::AsForRepeats].into_iter().chain(unlimited) {
                match store.count_waiting(&left, back).await {
                    Ok(counted) => {
                        counter!("hopline_processor_conversions_total").increment(counted.len() as u64);
                        found.counted += counted.len();
                        left.retain(|waiting| !counted.contains(&waiting.click_id));
                    }
                    Err(error) => self.note(&mut found, &error),
                }
            }
            found.left += left.len();
            if is_last {
                break;
            }
        }
        found
    }

    fn note(&self, found: &mut Found, error: &StoreError) {
        found.failures += 1;
        if self.log_limit.is_due() {
            tracing::warn!("cannot count waiting conversions, retrying: {error}");
        }
    }
}
