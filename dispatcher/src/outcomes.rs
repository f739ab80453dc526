//! From the end of an attempt to what Postgres and the metrics say of it.

use std::time::Duration;

use sqlx::PgPool;
use tokio::{sync::mpsc, time::sleep};

use crate::{
    attempt::{Claimed, Fate, Outcome},
    deliver::Written,
    retry,
    store::{self, Finished, Settled},
};

/// Outcomes of one transaction.
const BATCH: usize = 500;

/// How long to leave Postgres alone after an error.
const PAUSE: Duration = Duration::from_millis(250);

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
    pub(crate) async fn send(&self, delivery: Claimed, epoch: Option<i64>, outcome: Outcome) {
        let asked = match &outcome {
            Outcome::Failed(failure) => failure.retry_after,
            _ => None,
        };
        let wait = retry::wait(delivery.attempt, self.retry_base, rand::random(), asked);
        // Without a writer the process is stopping, and the lease runs out.
        let _ = self.outcomes.send(Finished { delivery, epoch, outcome, wait }).await;
    }
}

/// Writes outcomes until nobody can send any more, and reports which are written.
pub(crate) async fn write(
    pool: PgPool,
    mut outcomes: mpsc::Receiver<Finished>,
    written: mpsc::Sender<Vec<Written>>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    while outcomes.recv_many(&mut batch, BATCH).await > 0 {
        // The slots of these deliveries stay taken meanwhile, so an outage makes no backlog here.
        let settled = loop {
            match store::settle(&pool, &batch).await {
                Ok(settled) => break settled,
                Err(error) => tracing::warn!("cannot write outcomes: {error}"),
            }
            sleep(PAUSE).await;
        };
        report(&batch, &settled);
        let done = batch.drain(..).map(|one| (one.delivery.delivery_id, one.delivery.endpoint_id)).collect();
        // Without a listener the process is being dropped.
        let _ = written.send(done).await;
    }
}

fn report(batch: &[Finished], settled: &Settled) {
    for one in batch {
        let (outcome, class) = match (&one.outcome, one.fate()) {
            (Outcome::Delivered, _) => ("delivered", "2xx"),
            (Outcome::Withdrawn, _) => ("withdrawn", "none"),
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
