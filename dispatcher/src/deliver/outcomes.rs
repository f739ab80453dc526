//! Writes the outcomes of attempts to Postgres and the metrics.

use std::time::Duration;

use chrono::Utc;
use service::LogLimit;
use sqlx::PgPool;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::retry;
use super::slots::Standing;
use crate::attempt::{Claimed, Fate, Outcome};
use crate::store;
use crate::store::{Finished, Health, Settled};

/// Maximum outcomes of one transaction.
const BATCH: usize = 500;

/// The pause after an error of Postgres.
const PAUSE: Duration = Duration::from_millis(250);

/// How often the last successes of endpoints are stored, all in one statement.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// The sending end for outcomes.
#[derive(Clone)]
pub(crate) struct Finish {
    outcomes: mpsc::Sender<Finished>,
    retry_base: Duration,
}

impl Finish {
    /// Creates a sender to `outcomes`, with waits that double from `retry_base`.
    pub(crate) fn new(outcomes: mpsc::Sender<Finished>, retry_base: Duration) -> Self {
        Self { outcomes, retry_base }
    }

    /// Sends an outcome to be written.
    pub(crate) async fn send(&self, delivery: Claimed, outcome: Outcome, took: Duration) {
        let asked = match &outcome {
            Outcome::Failed(failure) => failure.retry_after,
            _ => None,
        };
        let wait = retry::wait(delivery.attempt, self.retry_base, rand::random(), asked);
        // The writer is gone while the process stops. The lease then expires.
        let _ = self.outcomes.send(Finished { delivery, outcome, ended_at: Utc::now(), took, wait }).await;
    }
}

/// A delivery whose outcome was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    /// The delivery.
    pub(crate) delivery_id: Uuid,
    /// The endpoint's standing according to the outcome, if any.
    pub(crate) standing: Option<Standing>,
    /// How long the request took.
    pub(crate) took: Duration,
    /// The wait until the delivery is due again; `None` when it is not, or not because of this outcome.
    pub(crate) due_in: Option<Duration>,
}

impl Written {
    fn of(one: &Finished, settled: &Settled) -> Self {
        let standing = match one.outcome {
            Outcome::Delivered => Some(Standing::Proven),
            // A rejection too: each costs rows in the failure log, so an endpoint that rejects all must not be fast.
            Outcome::Failed(_) => Some(Standing::Failing),
            Outcome::Withdrawn | Outcome::Unsent | Outcome::Unsendable => None,
        };
        let is_settled = settled.deliveries.contains(&one.delivery.delivery_id);
        let due_in = if is_settled { one.due_in() } else { None };
        Self { delivery_id: one.delivery.delivery_id, standing, took: one.took, due_in }
    }
}

/// Writes outcomes until all senders are gone, and reports the written ones.
pub(crate) async fn write(
    pool: PgPool,
    mut outcomes: mpsc::Receiver<Finished>,
    written: mpsc::Sender<Vec<Written>>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    // Successes that are not stored yet. They are lost if the process is killed; the next success is stored again.
    let mut health = Health::default();
    let mut stored_at = Instant::now();
    let log_limit = LogLimit::default();
    loop {
        tokio::select! {
            received = outcomes.recv_many(&mut batch, BATCH) => if received == 0 { break },
            () = sleep_until(stored_at + HEALTH_INTERVAL), if !health.is_empty() => {
                store_health(&pool, &mut health).await;
                stored_at = Instant::now();
                continue;
            }
        }
        // The permits of these deliveries stay in use meanwhile, so no backlog builds up here during an outage.
        let settled = loop {
            match store::settle(&pool, &batch).await {
                Ok(settled) => break settled,
                Err(error) if log_limit.is_due() => tracing::warn!("cannot write outcomes: {error}"),
                Err(_) => {}
            }
            sleep(PAUSE).await;
        };
        report(&batch, &settled);
        health.add(&settled.health);
        let done = batch.drain(..).map(|one| Written::of(&one, &settled)).collect();
        // The receiver is gone when the process is dropped.
        let _ = written.send(done).await;
    }
    store_health(&pool, &mut health).await;
}

/// Stores pending successes, and keeps them after an error.
async fn store_health(pool: &PgPool, health: &mut Health) {
    match health.store(pool).await {
        Ok(()) => *health = Health::default(),
        Err(error) => tracing::warn!("cannot store the last successes of endpoints: {error}"),
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
                    Some(Fate::Rejected) => "refused",
                    Some(Fate::Exhausted) => "exhausted",
                    _ => "failed",
                };
                (outcome, failure.answer.map_or_else(|class| class.as_str(), status_class))
            }
        };
        // The lease had expired, so the outcome of another attempt counts.
        let outcome =
            if settled.deliveries.contains(&one.delivery.delivery_id) { outcome } else { "superseded" };
        metrics::counter!("hopline_webhook_attempts_total", "outcome" => outcome, "class" => class)
            .increment(1);
    }
    for notice in &settled.notices {
        let (endpoint, count) = (notice.endpoint_id, notice.consecutive_exhausted);
        metrics::counter!("hopline_webhook_notices_total", "exhausted" => count.to_string()).increment(1);
        tracing::warn!(%endpoint, count, "{count} consecutive deliveries to endpoint {endpoint} used up their \
            attempts");
    }
    metrics::counter!("hopline_webhook_endpoints_disabled_total").increment(settled.disabled.len() as u64);
    for endpoint in &settled.disabled {
        tracing::warn!(
            %endpoint,
            "disabled endpoint {endpoint}: {} consecutive deliveries used up their attempts",
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
