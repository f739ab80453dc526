//! From the end of an attempt to what Postgres and the metrics say of it.

use std::time::Duration;

use chrono::Utc;
use sqlx::PgPool;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use uuid::Uuid;

use super::{retry, slots::Standing};
use crate::{
    attempt::{Claimed, Fate, Outcome},
    store::{self, Finished, Health, Settled},
};

/// Outcomes of one transaction.
const BATCH: usize = 500;

/// How long to leave Postgres alone after an error.
const PAUSE: Duration = Duration::from_millis(250);

/// How often it is stored when endpoints last succeeded: one statement for all successes of that time.
const HEALTH_EVERY: Duration = Duration::from_secs(1);

/// Where attempts send their outcomes.
#[derive(Clone)]
pub(crate) struct Finish {
    outcomes: mpsc::Sender<Finished>,
    retry_base: Duration,
}

impl Finish {
    /// Sends to `outcomes`, with waits that double from `retry_base`.
    pub(crate) fn new(outcomes: mpsc::Sender<Finished>, retry_base: Duration) -> Self {
        Self { outcomes, retry_base }
    }

    /// Hands an outcome over to be written.
    pub(crate) async fn send(&self, delivery: Claimed, outcome: Outcome, took: Duration) {
        let asked = match &outcome {
            Outcome::Failed(failure) => failure.retry_after,
            _ => None,
        };
        let wait = retry::wait(delivery.attempt, self.retry_base, rand::random(), asked);
        // Without a writer the process is stopping, and the lease runs out.
        let _ = self.outcomes.send(Finished { delivery, outcome, ended_at: Utc::now(), took, wait }).await;
    }
}

/// A delivery whose outcome is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    /// The delivery.
    pub(crate) delivery_id: Uuid,
    /// What the outcome says about the endpoint, if anything.
    pub(crate) standing: Option<Standing>,
    /// How long the request took.
    pub(crate) took: Duration,
    /// How long until the delivery is due again; none when it is not, or not by this outcome.
    pub(crate) due_in: Option<Duration>,
}

impl Written {
    fn of(one: &Finished, settled: &Settled) -> Self {
        let standing = match (&one.outcome, one.fate()) {
            // A refusal is an answer too: it holds no permit for long.
            (Outcome::Delivered, _) | (_, Some(Fate::Refused)) => Some(Standing::Proven),
            (Outcome::Failed(_), _) => Some(Standing::Failing),
            (Outcome::Withdrawn | Outcome::Unsent | Outcome::Unsendable, _) => None,
        };
        let is_settled = settled.deliveries.contains(&one.delivery.delivery_id);
        let due_in = if is_settled { one.due_in() } else { None };
        Self { delivery_id: one.delivery.delivery_id, standing, took: one.took, due_in }
    }
}

/// Writes outcomes until nobody can send any more, and reports which are written.
pub(crate) async fn write(
    pool: PgPool,
    mut outcomes: mpsc::Receiver<Finished>,
    written: mpsc::Sender<Vec<Written>>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    // Successes that are not stored yet; a process that is killed takes them along, and the next success is stored.
    let mut health = Health::default();
    let mut stored_at = Instant::now();
    loop {
        tokio::select! {
            received = outcomes.recv_many(&mut batch, BATCH) => if received == 0 { break },
            () = sleep_until(stored_at + HEALTH_EVERY), if !health.is_empty() => {
                store_health(&pool, &mut health).await;
                stored_at = Instant::now();
                continue;
            }
        }
        // The slots of these deliveries stay taken meanwhile, so an outage makes no backlog here.
        let settled = loop {
            match store::settle(&pool, &batch).await {
                Ok(settled) => break settled,
                Err(error) => tracing::warn!("cannot write outcomes: {error}"),
            }
            sleep(PAUSE).await;
        };
        report(&batch, &settled);
        health.add(&settled.health);
        let done = batch.drain(..).map(|one| Written::of(&one, &settled)).collect();
        // Without a listener the process is being dropped.
        let _ = written.send(done).await;
    }
    store_health(&pool, &mut health).await;
}

/// Stores what is not stored yet; after an error it stays for the next time.
async fn store_health(pool: &PgPool, health: &mut Health) {
    match health.store(pool).await {
        Ok(()) => *health = Health::default(),
        Err(error) => tracing::warn!("cannot write when endpoints last succeeded: {error}"),
    }
}

fn report(batch: &[Finished], settled: &Settled) {
    for one in batch {
        if one.outcome == Outcome::Delivered {
            let age = (Utc::now() - one.delivery.created_at).to_std().unwrap_or_default();
            metrics::histogram!("hopline_webhook_delivered_after_seconds").record(age);
        }
        let (outcome, class) = match (&one.outcome, one.fate()) {
            (Outcome::Delivered, _) => ("delivered", "2xx"),
            (Outcome::Withdrawn, _) => ("withdrawn", "none"),
            (Outcome::Unsent, _) => ("unsent", "none"),
            (Outcome::Unsendable, _) => ("unsendable", "none"),
            (Outcome::Failed(failure), fate) => {
                let outcome = match fate {
                    Some(Fate::Refused) => "refused",
                    Some(Fate::Exhausted) => "exhausted",
                    _ => "failed",
                };
                (outcome, failure.answer.map_or_else(|class| class.as_str(), status_class))
            }
        };
        // An attempt whose lease had run out was made all the same; another one decides.
        let outcome =
            if settled.deliveries.contains(&one.delivery.delivery_id) { outcome } else { "superseded" };
        metrics::counter!("hopline_webhook_attempts_total", "outcome" => outcome, "class" => class)
            .increment(1);
    }
    for notice in &settled.notices {
        let (endpoint, count) = (notice.endpoint_id, notice.consecutive_exhausted);
        metrics::counter!("hopline_webhook_notices_total", "exhausted" => count.to_string()).increment(1);
        tracing::warn!(%endpoint, count, "{count} deliveries in a row to endpoint {endpoint} used up their attempts");
    }
    metrics::counter!("hopline_webhook_endpoints_disabled_total").increment(settled.disabled.len() as u64);
    for endpoint in &settled.disabled {
        tracing::warn!(
            %endpoint,
            "disabled endpoint {endpoint}: {} deliveries in a row used up their attempts",
            store::DISABLED_AT
        );
    }
}

fn status_class(status: u16) -> &'static str {
    match status {
        100..=199 => "1xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        500..=599 => "5xx",
        _ => "other",
    }
}
