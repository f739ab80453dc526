//! The last success and the last failure of each endpoint.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use schemas::id::EndpointId;
use sqlx::PgExecutor;
use uuid::Uuid;

use super::finished::Finished;
use crate::attempt::Outcome;

/// The last success and the last failure of endpoints.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Health(HashMap<EndpointId, Newest>);

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Newest {
    success: Option<DateTime<Utc>>,
    failure: Option<DateTime<Utc>>,
}

impl Newest {
    fn add(&mut self, other: Self) {
        self.success = self.success.max(other.success);
        self.failure = self.failure.max(other.failure);
    }
}

impl Health {
    /// Collects the results of attempts; attempts that sent nothing are ignored.
    pub(super) fn of<'a>(attempts: impl Iterator<Item = &'a Finished>) -> Self {
        let mut health = Self::default();
        for one in attempts {
            let at = Some(one.ended_at);
            let newest = match one.outcome {
                Outcome::Delivered => Newest { success: at, failure: None },
                Outcome::Failed(_) => Newest { success: None, failure: at },
                Outcome::Withdrawn | Outcome::Unsent | Outcome::Unsendable => continue,
            };
            health.0.entry(one.delivery.endpoint_id).or_default().add(newest);
        }
        health
    }

    /// Merges another set into this one.
    pub(crate) fn add(&mut self, other: &Self) {
        for (endpoint, newest) in &other.0 {
            self.0.entry(*endpoint).or_default().add(*newest);
        }
    }

    /// Returns whether there is nothing to store.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Stores the times unless later ones are stored already; ignores deleted endpoints.
    pub(crate) async fn store(&self, executor: impl PgExecutor<'_>) -> sqlx::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        // In the order of ids in every transaction, because two dispatchers could deadlock otherwise.
        sqlx::query(
            "INSERT INTO webhook_health AS h (endpoint_id, last_success_at, last_failure_at)
             SELECT e.id, n.success, n.failure
             FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[]) AS n (endpoint_id, success, failure)
             JOIN webhook_endpoints e ON e.id = n.endpoint_id
             ORDER BY e.id
             ON CONFLICT (endpoint_id) DO UPDATE
             SET last_success_at = greatest(h.last_success_at, excluded.last_success_at),
                 last_failure_at = greatest(h.last_failure_at, excluded.last_failure_at)",
        )
        .bind(self.0.keys().map(|endpoint| endpoint.uuid()).collect::<Vec<Uuid>>())
        .bind(self.0.values().map(|newest| newest.success).collect::<Vec<_>>())
        .bind(self.0.values().map(|newest| newest.failure).collect::<Vec<_>>())
        .execute(executor)
        .await
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::super::settle::tests::{endpoint, failed, finished};
    use super::*;

    #[test]
    fn the_last_success_and_failure_count_unless_nothing_was_sent() {
        let now = Utc::now();
        let at = |seconds, mut one: Finished| {
            one.ended_at = now + TimeDelta::seconds(seconds);
            one
        };
        let first = [at(3, finished(1, Outcome::Delivered)), at(1, failed(1, Ok(400)))];
        let second = [at(2, finished(1, Outcome::Delivered)), at(4, failed(1, Ok(500)))];
        let mut health = Health::of(first.iter());
        health.add(&Health::of(second.iter()));
        let [success, failure] = [3, 4].map(|seconds| Some(now + TimeDelta::seconds(seconds)));
        assert_eq!(health, Health(HashMap::from([(endpoint(), Newest { success, failure })])));
        for nothing in [Outcome::Withdrawn, Outcome::Unsent, Outcome::Unsendable] {
            assert!(Health::of([finished(1, nothing)].iter()).is_empty());
        }
    }
}
