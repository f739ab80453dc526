//! Applies the outcomes of attempts in batches.
//!
//! One transaction writes a delivery's next state, its line in the failure log, its endpoint's streak of exhausted
//! deliveries, and the disabling that may follow. So a crash neither counts an outcome twice nor loses one that another
//! depends on.

use std::collections::HashSet;
use std::time::Duration;

use schemas::id::EndpointId;
use sqlx::{PgPool, Postgres, Transaction};
use uuid::Uuid;

use super::finished::Finished;
use super::health::Health;
use super::streaks::Notice;
use super::{failures, streaks};
use crate::attempt::{Fate, Outcome};

/// How long a delivery waits when its endpoint's secret cannot be decrypted.
const UNSENDABLE_WAIT: Duration = Duration::from_secs(60);

/// What a batch has changed.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Deliveries whose outcome was applied; the others had lost their lease or were deleted.
    pub(crate) deliveries: HashSet<Uuid>,
    /// Successes that are not in `webhook_health` yet. Its other changes are stored with the batch.
    pub(crate) health: Health,
    /// Notices to the owners of endpoints.
    pub(crate) notices: Vec<Notice>,
    /// Endpoints that were disabled.
    pub(crate) disabled: Vec<EndpointId>,
}

/// What happens to a delivery's row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It is deleted.
    Gone,
    /// It is due again after a wait, and the attempt counts.
    Counted(Duration),
    /// It is due again after a wait, and the attempt does not count.
    Uncounted(Duration),
}

impl Finished {
    /// Returns the delivery's fate if the attempt failed.
    #[must_use]
    pub(crate) fn fate(&self) -> Option<Fate> {
        match &self.outcome {
            Outcome::Failed(failure) => Some(failure.fate(self.delivery.attempt)),
            _ => None,
        }
    }

    /// Returns the wait until the delivery is due again; `None` when it is not.
    #[must_use]
    pub(crate) fn due_in(&self) -> Option<Duration> {
        match self.next() {
            Next::Gone => None,
            Next::Counted(wait) | Next::Uncounted(wait) => Some(wait),
        }
    }

    /// Returns whether the only change is that the delivery ended.
    fn is_plain(&self) -> bool {
        let delivery = &self.delivery;
        self.outcome == Outcome::Delivered
            && delivery.attempt == 1
            && !delivery.is_redelivery
            && !delivery.is_remembered
    }

    fn next(&self) -> Next {
        match (&self.outcome, self.fate()) {
            (_, Some(Fate::Retried)) => Next::Counted(self.wait),
            (Outcome::Unsendable, _) => Next::Uncounted(UNSENDABLE_WAIT),
            (Outcome::Unsent, _) => Next::Uncounted(Duration::ZERO),
            _ => Next::Gone,
        }
    }
}

/// Applies outcomes in the order in which the attempts ended.
///
/// An outcome counts only while its lease is valid, so applying a batch again after a lost answer has no effect.
pub(crate) async fn settle(pool: &PgPool, batch: &[Finished]) -> sqlx::Result<Settled> {
    let plain: Vec<&Finished> = batch.iter().filter(|one| one.is_plain()).collect();
    let done = if plain.is_empty() { HashSet::new() } else { delete_plain(pool, &plain).await? };
    let rest: Vec<&Finished> = batch.iter().filter(|one| !done.contains(&one.delivery.delivery_id)).collect();
    let mut settled = if rest.is_empty() { Settled::default() } else { settle_together(pool, &rest).await? };
    settled.health = Health::of(plain.into_iter().filter(|one| done.contains(&one.delivery.delivery_id)));
    settled.deliveries.extend(done);
    Ok(settled)
}

/// Ends deliveries without further changes, in one statement. Excludes endpoints with a streak of exhausted deliveries,
/// which a success ends.
async fn delete_plain(pool: &PgPool, plain: &[&Finished]) -> sqlx::Result<HashSet<Uuid>> {
    let deleted: Vec<Uuid> = sqlx::query_scalar(
        "DELETE FROM webhook_deliveries d USING unnest($1::uuid[], $2::uuid[]) AS f (delivery_id, lease_token)
         WHERE d.delivery_id = f.delivery_id AND d.lease_token = f.lease_token
           AND NOT EXISTS (SELECT FROM webhook_endpoints e
                           WHERE e.id = d.endpoint_id AND e.consecutive_exhausted <> 0)
         RETURNING d.delivery_id",
    )
    .bind(plain.iter().map(|one| one.delivery.delivery_id).collect::<Vec<_>>())
    .bind(plain.iter().map(|one| one.delivery.lease_token).collect::<Vec<_>>())
    .fetch_all(pool)
    .await?;
    Ok(deleted.into_iter().collect())
}

async fn settle_together(pool: &PgPool, batch: &[&Finished]) -> sqlx::Result<Settled> {
    let mut transaction = pool.begin().await?;
    // Endpoints before deliveries in every transaction, because two dispatchers could deadlock otherwise.
    let before = streaks::lock(&mut transaction, batch).await?;
    let mut deliveries = delete(&mut transaction, batch).await?;
    deliveries.extend(postpone(&mut transaction, batch).await?);
    let applied: Vec<&Finished> =
        batch.iter().copied().filter(|one| deliveries.contains(&one.delivery.delivery_id)).collect();
    remember(&mut transaction, &applied).await?;
    failures::log(&mut transaction, &applied).await?;
    failures::mark_delivered(&mut transaction, &applied).await?;
    Health::of(applied.iter().copied()).store(&mut *transaction).await?;
    let after = streaks::count(&before, &applied);
    let disabled = streaks::store(&mut transaction, &before, &after).await?;
    transaction.commit().await?;
    Ok(Settled { deliveries, health: Health::default(), notices: after.notices, disabled })
}

async fn delete(
    transaction: &mut Transaction<'_, Postgres>,
    batch: &[&Finished],
) -> sqlx::Result<HashSet<Uuid>> {
    let gone = batch.iter().filter(|one| one.next() == Next::Gone);
    let (ids, tokens): (Vec<Uuid>, Vec<Uuid>) =
        gone.map(|one| (one.delivery.delivery_id, one.delivery.lease_token)).unzip();
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    let deleted: Vec<Uuid> = sqlx::query_scalar(
        "DELETE FROM webhook_deliveries d USING unnest($1::uuid[], $2::uuid[]) AS f (delivery_id, lease_token)
         WHERE d.delivery_id = f.delivery_id AND d.lease_token = f.lease_token
         RETURNING d.delivery_id",
    )
    .bind(ids)
    .bind(tokens)
    .fetch_all(&mut **transaction)
    .await?;
    Ok(deleted.into_iter().collect())
}

async fn postpone(
    transaction: &mut Transaction<'_, Postgres>,
    batch: &[&Finished],
) -> sqlx::Result<Vec<Uuid>> {
    let (mut ids, mut tokens, mut waits, mut counted) = (vec![], vec![], vec![], vec![]);
    for one in batch {
        let (wait, counts) = match one.next() {
            Next::Gone => continue,
            Next::Counted(wait) => (wait, 1_i16),
            Next::Uncounted(wait) => (wait, 0),
        };
        ids.push(one.delivery.delivery_id);
        tokens.push(one.delivery.lease_token);
        waits.push(wait.as_secs_f64());
        counted.push(counts);
    }
    if ids.is_empty() {
        return Ok(vec![]);
    }
    sqlx::query_scalar(
        "UPDATE webhook_deliveries d
         SET attempts = d.attempts + f.counted, due_at = now() + make_interval(secs => f.wait),
             lease_until = NULL, lease_token = NULL, leased_by = NULL
         FROM unnest($1::uuid[], $2::uuid[], $3::float8[], $4::smallint[])
              AS f (delivery_id, lease_token, wait, counted)
         WHERE d.delivery_id = f.delivery_id AND d.lease_token = f.lease_token
         RETURNING d.delivery_id",
    )
    .bind(ids)
    .bind(tokens)
    .bind(waits)
    .bind(counted)
    .fetch_all(&mut **transaction)
    .await
}

/// Records the end of deliveries whose event may be read again, and of tests.
async fn remember(transaction: &mut Transaction<'_, Postgres>, applied: &[&Finished]) -> sqlx::Result<()> {
    let (mut ids, mut delivered_to, mut attempts) = (vec![], vec![], vec![]);
    for one in applied.iter().filter(|one| one.delivery.is_remembered && one.next() == Next::Gone) {
        let is_delivered = one.outcome == Outcome::Delivered;
        ids.push(one.delivery.delivery_id);
        delivered_to.push(is_delivered.then(|| one.delivery.endpoint_id.uuid()));
        attempts.push(is_delivered.then(|| failures::attempt_number(one)));
    }
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO webhook_finished (delivery_id, delivered_to, attempts, finished_at)
         SELECT *, now() FROM unnest($1::uuid[], $2::uuid[], $3::smallint[])
         ON CONFLICT DO NOTHING",
    )
    .bind(ids)
    .bind(delivered_to)
    .bind(attempts)
    .execute(&mut **transaction)
    .await
    .map(drop)
}

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;
    use chrono::Utc;
    use schemas::id::{AccountId, WorkspaceId};
    use tokio::time::Instant;

    use super::*;
    use crate::attempt::{Claimed, ErrorClass, Failure};

    pub(in crate::store) const EPOCH: i64 = 3;

    pub(in crate::store) fn endpoint() -> EndpointId {
        EndpointId::from_uuid(Uuid::from_u128(1))
    }

    pub(in crate::store) fn finished(attempt: u16, outcome: Outcome) -> Finished {
        let delivery = Claimed {
            delivery_id: Uuid::now_v7(),
            endpoint_id: endpoint(),
            workspace_id: WorkspaceId::from_uuid(Uuid::from_u128(2)),
            account_id: AccountId::from_uuid(Uuid::from_u128(3)),
            epoch: EPOCH,
            event: "click.created".to_owned(),
            body: Bytes::new(),
            created_at: Utc::now(),
            is_remembered: false,
            is_redelivery: false,
            attempt,
            lease_token: Uuid::now_v7(),
            leased_at: Instant::now(),
        };
        Finished {
            delivery,
            outcome,
            ended_at: Utc::now(),
            took: Duration::ZERO,
            wait: Duration::from_secs(10),
        }
    }

    pub(in crate::store) fn failed(attempt: u16, answer: Result<u16, ErrorClass>) -> Finished {
        let failure = Failure { answer, body: String::new(), retry_after: None, took: Duration::ZERO };
        finished(attempt, Outcome::Failed(failure))
    }

    #[test]
    fn an_undecryptable_secret_uses_no_attempt() {
        assert!(finished(1, Outcome::Unsendable).next() == Next::Uncounted(UNSENDABLE_WAIT));
        assert!(failed(1, Ok(500)).next() == Next::Counted(Duration::from_secs(10)));
        for gone in [failed(5, Ok(500)), failed(1, Ok(404)), finished(1, Outcome::Delivered)] {
            assert!(gone.next() == Next::Gone);
            assert_eq!(gone.due_in(), None);
        }
    }
}
