//! What attempts came to, written in batches.
//!
//! One transaction holds a delivery's next state, its line in the failure log, its endpoint's row of exhausted
//! deliveries and the disabling that may follow, so a crash can neither count an outcome twice nor lose one that
//! another depends on.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use schemas::id::EndpointId;
use sqlx::{PgPool, Postgres, Row as _, Transaction};
use uuid::Uuid;

use crate::{
    attempt::{Claimed, Failure, Fate, Outcome},
    retry,
};

/// Deliveries in a row that used up their attempts, after which their endpoint is disabled.
pub(crate) const DISABLED_AT: i32 = 15;

/// How long a delivery waits whose endpoint's secret does not open.
const UNSENDABLE_WAIT: Duration = Duration::from_secs(60);

/// An attempt that ended, with what its outcome applies to.
#[derive(Debug, Clone)]
pub(crate) struct Finished {
    /// The delivery, with the lease under which the attempt was made.
    pub(crate) delivery: Claimed,
    /// The endpoint's epoch when the attempt began; none when there was no endpoint.
    pub(crate) epoch: Option<i64>,
    /// How the attempt ended.
    pub(crate) outcome: Outcome,
    /// How long to wait until the next attempt, should there be one.
    pub(crate) wait: Duration,
}

/// What a batch changed.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Deliveries whose outcome was applied; the others had lost their lease, or were gone.
    pub(crate) deliveries: HashSet<Uuid>,
    /// Endpoints that were disabled.
    pub(crate) disabled: Vec<EndpointId>,
}

/// What becomes of a delivery's row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It goes.
    Gone,
    /// It is due again after a wait, and one attempt is used up.
    Counted(Duration),
    /// It is due again after a wait.
    Uncounted(Duration),
}

impl Finished {
    /// Returns what the failure, if it was one, means for the delivery.
    #[must_use]
    pub(crate) fn fate(&self) -> Option<Fate> {
        match &self.outcome {
            Outcome::Failed(failure) => Some(failure.fate(self.delivery.attempt)),
            _ => None,
        }
    }

    fn next(&self) -> Next {
        match (&self.outcome, self.fate()) {
            (_, Some(Fate::Retried)) => Next::Counted(self.wait),
            (Outcome::Unsendable, _) => Next::Uncounted(UNSENDABLE_WAIT),
            _ => Next::Gone,
        }
    }
}

/// Applies outcomes, in the order in which the attempts ended.
///
/// An outcome counts only if its lease still holds, so applying a batch again after a lost answer changes nothing.
pub(crate) async fn settle(pool: &PgPool, batch: &[Finished]) -> sqlx::Result<Settled> {
    let mut transaction = pool.begin().await?;
    // Endpoints before deliveries, in every transaction: two dispatchers that wait for each other would deadlock.
    let streaks = lock_streaks(&mut transaction, batch).await?;
    let mut settled = Settled { deliveries: delete(&mut transaction, batch).await?, disabled: vec![] };
    settled.deliveries.extend(postpone(&mut transaction, batch).await?);
    log_failures(&mut transaction, batch, &settled.deliveries).await?;
    let after = count(&streaks, batch, &settled.deliveries);
    settled.disabled = store_streaks(&mut transaction, &streaks, &after).await?;
    transaction.commit().await?;
    Ok(settled)
}

/// An endpoint's row of exhausted deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Streak {
    epoch: i64,
    exhausted: i32,
}

/// Locks the endpoints whose row of exhausted deliveries may change, and no others: an endpoint that only
/// succeeds is never written.
async fn lock_streaks(
    transaction: &mut Transaction<'_, Postgres>,
    batch: &[Finished],
) -> sqlx::Result<HashMap<EndpointId, Streak>> {
    let all: HashSet<Uuid> = batch.iter().map(|one| one.delivery.endpoint_id.uuid()).collect();
    let exhausting: HashSet<Uuid> = batch
        .iter()
        .filter(|one| one.fate() == Some(Fate::Exhausted))
        .map(|one| one.delivery.endpoint_id.uuid())
        .collect();
    let rows = sqlx::query(
        "SELECT id, epoch, consecutive_exhausted FROM webhook_endpoints
         WHERE id = ANY($1) AND status = 'enabled' AND (consecutive_exhausted <> 0 OR id = ANY($2))
         ORDER BY id FOR UPDATE",
    )
    .bind(all.into_iter().collect::<Vec<_>>())
    .bind(exhausting.into_iter().collect::<Vec<_>>())
    .fetch_all(&mut **transaction)
    .await?;
    rows.iter()
        .map(|row| {
            let streak =
                Streak { epoch: row.try_get("epoch")?, exhausted: row.try_get("consecutive_exhausted")? };
            Ok((EndpointId::from_uuid(row.try_get("id")?), streak))
        })
        .collect()
}

async fn delete(
    transaction: &mut Transaction<'_, Postgres>,
    batch: &[Finished],
) -> sqlx::Result<HashSet<Uuid>> {
    let gone = batch.iter().filter(|one| one.next() == Next::Gone);
    let (ids, tokens): (Vec<Uuid>, Vec<Uuid>) =
        gone.map(|one| (one.delivery.delivery_id, one.delivery.lease_token)).unzip();
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
    batch: &[Finished],
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
    sqlx::query_scalar(
        "UPDATE webhook_deliveries d
         SET attempts = d.attempts + f.counted, due_at = now() + make_interval(secs => f.wait),
             lease_until = NULL, lease_token = NULL
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

async fn log_failures(
    transaction: &mut Transaction<'_, Postgres>,
    batch: &[Finished],
    settled: &HashSet<Uuid>,
) -> sqlx::Result<()> {
    let failed: Vec<(&Finished, &Failure)> = batch
        .iter()
        .filter(|one| settled.contains(&one.delivery.delivery_id))
        .filter_map(|one| match &one.outcome {
            Outcome::Failed(failure) => Some((one, failure)),
            _ => None,
        })
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    let statuses: Vec<Option<i16>> = failed
        .iter()
        .map(|(_, failure)| failure.answer.ok().and_then(|status| i16::try_from(status).ok()))
        .collect();
    let classes: Vec<Option<&str>> =
        failed.iter().map(|(_, failure)| failure.answer.err().map(|class| class.as_str())).collect();
    let waits: Vec<Option<f64>> = failed
        .iter()
        .map(|(one, _)| (one.fate() == Some(Fate::Retried)).then_some(one.wait.as_secs_f64()))
        .collect();
    sqlx::query(
        "INSERT INTO webhook_failures (id, endpoint_id, delivery_id, event, attempt, status_code, error_class,
                                       response_body, request_body, attempted_at, next_attempt_at)
         SELECT id, endpoint_id, delivery_id, event, attempt, status_code, error_class,
                response_body, request_body, attempted_at, now() + make_interval(secs => wait)
         FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::smallint[], $6::smallint[], $7::text[],
                     $8::text[], $9::bytea[], $10::timestamptz[], $11::float8[])
              AS f (id, endpoint_id, delivery_id, event, attempt, status_code, error_class,
                    response_body, request_body, attempted_at, wait)",
    )
    .bind(failed.iter().map(|_| Uuid::now_v7()).collect::<Vec<_>>())
    .bind(failed.iter().map(|(one, _)| one.delivery.endpoint_id.uuid()).collect::<Vec<_>>())
    .bind(failed.iter().map(|(one, _)| one.delivery.delivery_id).collect::<Vec<_>>())
    .bind(failed.iter().map(|(one, _)| one.delivery.event.as_str()).collect::<Vec<_>>())
    .bind(failed.iter().map(|(one, _)| attempt_number(one)).collect::<Vec<_>>())
    .bind(statuses)
    .bind(classes)
    .bind(failed.iter().map(|(_, failure)| failure.body.as_str()).collect::<Vec<_>>())
    .bind(failed.iter().map(|(one, _)| one.delivery.body.as_slice()).collect::<Vec<_>>())
    .bind(failed.iter().map(|(_, failure)| failure.ended_at).collect::<Vec<_>>())
    .bind(waits)
    .execute(&mut **transaction)
    .await
    .map(drop)
}

fn attempt_number(one: &Finished) -> i16 {
    i16::try_from(one.delivery.attempt.min(retry::ATTEMPTS)).unwrap_or(i16::MAX)
}

/// Counts exhausted deliveries in a row, per endpoint, in the order in which the attempts ended.
///
/// Once an endpoint reached [`DISABLED_AT`] its further outcomes are ignored, and so is what began in another
/// epoch. A permanent failure neither adds nor resets: the specification counts exhausted deliveries only.
fn count(
    streaks: &HashMap<EndpointId, Streak>,
    batch: &[Finished],
    settled: &HashSet<Uuid>,
) -> HashMap<EndpointId, i32> {
    let mut after: HashMap<EndpointId, i32> =
        streaks.iter().map(|(endpoint, streak)| (*endpoint, streak.exhausted)).collect();
    for one in batch.iter().filter(|one| settled.contains(&one.delivery.delivery_id)) {
        let endpoint = one.delivery.endpoint_id;
        let Some(exhausted) = after.get_mut(&endpoint) else { continue };
        if one.epoch != streaks.get(&endpoint).map(|streak| streak.epoch) || *exhausted >= DISABLED_AT {
            continue;
        }
        match (&one.outcome, one.fate()) {
            (Outcome::Delivered, _) => *exhausted = 0,
            (_, Some(Fate::Exhausted)) => *exhausted += 1,
            _ => {}
        }
    }
    after
}

/// Stores the counts that changed, and disables the endpoints that reached [`DISABLED_AT`].
async fn store_streaks(
    transaction: &mut Transaction<'_, Postgres>,
    before: &HashMap<EndpointId, Streak>,
    after: &HashMap<EndpointId, i32>,
) -> sqlx::Result<Vec<EndpointId>> {
    let changed: Vec<(EndpointId, i32)> = after
        .iter()
        .filter(|(endpoint, exhausted)| {
            before.get(endpoint).is_none_or(|streak| streak.exhausted != **exhausted)
        })
        .map(|(endpoint, exhausted)| (*endpoint, *exhausted))
        .collect();
    if changed.is_empty() {
        return Ok(vec![]);
    }
    sqlx::query(
        "UPDATE webhook_endpoints e SET consecutive_exhausted = s.exhausted
         FROM unnest($1::uuid[], $2::integer[]) AS s (id, exhausted) WHERE e.id = s.id",
    )
    .bind(changed.iter().map(|(endpoint, _)| endpoint.uuid()).collect::<Vec<_>>())
    .bind(changed.iter().map(|(_, exhausted)| *exhausted).collect::<Vec<_>>())
    .execute(&mut **transaction)
    .await?;
    let disabled: Vec<EndpointId> = changed
        .iter()
        .filter(|(_, exhausted)| *exhausted >= DISABLED_AT)
        .map(|(endpoint, _)| *endpoint)
        .collect();
    if !disabled.is_empty() {
        disable(transaction, &disabled).await?;
    }
    Ok(disabled)
}

async fn disable(transaction: &mut Transaction<'_, Postgres>, endpoints: &[EndpointId]) -> sqlx::Result<()> {
    let ids: Vec<Uuid> = endpoints.iter().map(|endpoint| endpoint.uuid()).collect();
    sqlx::query(
        "UPDATE webhook_endpoints SET status = 'disabled', disabled_reason = $2, updated_at = now()
         WHERE id = ANY($1)",
    )
    .bind(&ids)
    .bind(format!("{DISABLED_AT} deliveries in a row used up their attempts"))
    .execute(&mut **transaction)
    .await?;
    sqlx::query("UPDATE endpoints_version SET version = version + 1").execute(&mut **transaction).await?;
    sqlx::query("DELETE FROM webhook_deliveries WHERE endpoint_id = ANY($1)")
        .bind(&ids)
        .execute(&mut **transaction)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use chrono::Utc;

    use super::*;
    use crate::attempt::ErrorClass;

    const EPOCH: i64 = 3;

    fn endpoint() -> EndpointId {
        EndpointId::from_uuid(Uuid::from_u128(1))
    }

    fn finished(attempt: u16, outcome: Outcome) -> Finished {
        let delivery = Claimed {
            delivery_id: Uuid::now_v7(),
            endpoint_id: endpoint(),
            event: "click.created".to_owned(),
            body: vec![],
            attempt,
            lease_token: Uuid::now_v7(),
        };
        Finished { delivery, epoch: Some(EPOCH), outcome, wait: Duration::from_secs(10) }
    }

    fn failed(attempt: u16, answer: Result<u16, ErrorClass>) -> Finished {
        let failure = Failure { answer, body: String::new(), retry_after: None, ended_at: Utc::now() };
        finished(attempt, Outcome::Failed(failure))
    }

    fn exhausted(times: usize) -> Vec<Finished> {
        (0..times).map(|_| failed(5, Err(ErrorClass::Timeout))).collect()
    }

    fn counted(before: i32, batch: &[Finished]) -> i32 {
        let streaks = HashMap::from([(endpoint(), Streak { epoch: EPOCH, exhausted: before })]);
        let settled = batch.iter().map(|one| one.delivery.delivery_id).collect();
        count(&streaks, batch, &settled)[&endpoint()]
    }

    #[test]
    fn exhausted_deliveries_in_a_row_are_counted_and_a_success_resets() {
        assert_eq!(counted(13, &exhausted(1)), 14);
        let mut batch = exhausted(14);
        batch.push(finished(1, Outcome::Delivered));
        batch.extend(exhausted(14));
        assert_eq!(counted(0, &batch), 14);
    }

    #[test]
    fn what_comes_after_the_fifteenth_is_ignored() {
        let mut batch = exhausted(17);
        batch.push(finished(1, Outcome::Delivered));
        assert_eq!(counted(0, &batch), DISABLED_AT);
    }

    #[test]
    fn only_an_exhausted_delivery_counts() {
        let batch = [
            failed(1, Ok(404)),
            failed(5, Ok(404)),
            failed(4, Ok(500)),
            finished(5, Outcome::Withdrawn),
            finished(5, Outcome::Unsendable),
        ];
        assert_eq!(counted(3, &batch), 3);
    }

    #[test]
    fn an_outcome_of_another_epoch_or_without_its_lease_does_not_count() {
        let mut batch = exhausted(2);
        batch[0].epoch = Some(EPOCH - 1);
        assert_eq!(counted(0, &batch), 1);
        let streaks = HashMap::from([(endpoint(), Streak { epoch: EPOCH, exhausted: 0 })]);
        assert_eq!(count(&streaks, &batch, &HashSet::new())[&endpoint()], 0);
    }

    #[test]
    fn a_secret_that_does_not_open_uses_up_no_attempt() {
        assert!(finished(1, Outcome::Unsendable).next() == Next::Uncounted(UNSENDABLE_WAIT));
        assert!(failed(1, Ok(500)).next() == Next::Counted(Duration::from_secs(10)));
        for gone in [failed(5, Ok(500)), failed(1, Ok(404)), finished(1, Outcome::Delivered)] {
            assert!(gone.next() == Next::Gone);
        }
    }
}
