//! Streaks: consecutive exhausted deliveries per endpoint. Its owner is notified at 5, 10 and 15, and it is disabled at
//! 15.

use std::collections::{HashMap, HashSet};

use schemas::id::EndpointId;
use sqlx::{Postgres, Row as _, Transaction};
use uuid::Uuid;

use super::finished::Finished;
use crate::attempt::{Fate, Outcome};

/// The streak at which an endpoint is disabled.
pub(crate) const DISABLED_AT: i32 = 15;

/// The streaks at which the endpoint's owner is notified.
const NOTIFIED_AT: [i32; 3] = [5, 10, DISABLED_AT];

/// Maximum deliveries that are removed in the transaction that disables their endpoint; the others are removed later.
/// They are never sent, because an endpoint that is enabled again has another epoch.
const MAX_PURGED: i64 = 5_000;

/// A notice to the owner of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Notice {
    /// The endpoint.
    pub(crate) endpoint_id: EndpointId,
    /// The number of consecutive exhausted deliveries.
    pub(crate) consecutive_exhausted: i32,
}

/// An endpoint's streak of exhausted deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Streak {
    epoch: i64,
    exhausted: i32,
}

/// The streaks after a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    exhausted: HashMap<EndpointId, i32>,
    /// Notices, in the order in which the counts were reached.
    pub(super) notices: Vec<Notice>,
}

/// Locks only the endpoints whose streak may change; an endpoint that only succeeds is never written.
pub(super) async fn lock(
    transaction: &mut Transaction<'_, Postgres>,
    batch: &[&Finished],
) -> sqlx::Result<HashMap<EndpointId, Streak>> {
    let counts = |one: &&&Finished| one.outcome == Outcome::Delivered || one.fate() == Some(Fate::Exhausted);
    let all: HashSet<Uuid> = batch.iter().filter(counts).map(|one| one.delivery.endpoint_id.uuid()).collect();
    let exhausting: HashSet<Uuid> = batch
        .iter()
        .filter(|one| one.fate() == Some(Fate::Exhausted))
        .map(|one| one.delivery.endpoint_id.uuid())
        .collect();
    if all.is_empty() {
        return Ok(HashMap::new());
    }
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

/// Counts consecutive exhausted deliveries per endpoint, in the order in which the attempts ended.
///
/// Ignores outcomes after the endpoint reached [`DISABLED_AT`], and those of another epoch. A permanent failure neither
/// adds to a streak nor ends it, because the specification counts exhausted deliveries only.
pub(super) fn count(before: &HashMap<EndpointId, Streak>, applied: &[&Finished]) -> Counted {
    let mut counted = Counted {
        exhausted: before.iter().map(|(endpoint, streak)| (*endpoint, streak.exhausted)).collect(),
        notices: vec![],
    };
    for one in applied {
        let endpoint_id = one.delivery.endpoint_id;
        let Some(exhausted) = counted.exhausted.get_mut(&endpoint_id) else { continue };
        let is_current = before.get(&endpoint_id).is_some_and(|streak| streak.epoch == one.delivery.epoch);
        if !is_current || *exhausted >= DISABLED_AT {
            continue;
        }
        match (&one.outcome, one.fate()) {
            (Outcome::Delivered, _) => *exhausted = 0,
            (_, Some(Fate::Exhausted)) => {
                *exhausted += 1;
                if NOTIFIED_AT.contains(exhausted) {
                    counted.notices.push(Notice { endpoint_id, consecutive_exhausted: *exhausted });
                }
            }
            _ => {}
        }
    }
    counted
}

/// Stores the changed streaks and the notices, and disables the endpoints that reached [`DISABLED_AT`].
pub(super) async fn store(
    transaction: &mut Transaction<'_, Postgres>,
    before: &HashMap<EndpointId, Streak>,
    after: &Counted,
) -> sqlx::Result<Vec<EndpointId>> {
    let changed: Vec<(EndpointId, i32)> = after
        .exhausted
        .iter()
        .filter(|(endpoint, exhausted)| {
            before.get(endpoint).is_none_or(|streak| streak.exhausted != **exhausted)
        })
        .map(|(endpoint, exhausted)| (*endpoint, *exhausted))
        .collect();
    if !changed.is_empty() {
        sqlx::query(
            "UPDATE webhook_endpoints e SET consecutive_exhausted = s.exhausted
             FROM unnest($1::uuid[], $2::integer[]) AS s (id, exhausted) WHERE e.id = s.id",
        )
        .bind(changed.iter().map(|(endpoint, _)| endpoint.uuid()).collect::<Vec<_>>())
        .bind(changed.iter().map(|(_, exhausted)| *exhausted).collect::<Vec<_>>())
        .execute(&mut **transaction)
        .await?;
    }
    if !after.notices.is_empty() {
        tell(transaction, &after.notices).await?;
    }
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

async fn tell(transaction: &mut Transaction<'_, Postgres>, notices: &[Notice]) -> sqlx::Result<()> {
    // The transaction holds the locks of the endpoints now, and may have begun before that of an earlier notice.
    sqlx::query(
        "INSERT INTO webhook_notices (id, endpoint_id, consecutive_exhausted, created_at)
         SELECT *, clock_timestamp() FROM unnest($1::uuid[], $2::uuid[], $3::integer[])",
    )
    .bind(notices.iter().map(|_| Uuid::now_v7()).collect::<Vec<_>>())
    .bind(notices.iter().map(|notice| notice.endpoint_id.uuid()).collect::<Vec<_>>())
    .bind(notices.iter().map(|notice| notice.consecutive_exhausted).collect::<Vec<_>>())
    .execute(&mut **transaction)
    .await
    .map(drop)
}

async fn disable(transaction: &mut Transaction<'_, Postgres>, endpoints: &[EndpointId]) -> sqlx::Result<()> {
    let ids: Vec<Uuid> = endpoints.iter().map(|endpoint| endpoint.uuid()).collect();
    sqlx::query(
        "UPDATE webhook_endpoints
         SET status = 'disabled', disabled_reason = $2,
             updated_at = greatest(created_at, date_trunc('milliseconds', now()))
         WHERE id = ANY($1)",
    )
    .bind(&ids)
    .bind(format!("{DISABLED_AT} deliveries in a row used up their attempts"))
    .execute(&mut **transaction)
    .await?;
    sqlx::query("UPDATE endpoints_version SET version = version + 1").execute(&mut **transaction).await?;
    sqlx::query(
        "DELETE FROM webhook_deliveries WHERE delivery_id IN (
             SELECT delivery_id FROM webhook_deliveries WHERE endpoint_id = ANY($1) LIMIT $2
             FOR UPDATE SKIP LOCKED
         )",
    )
    .bind(&ids)
    .bind(MAX_PURGED)
    .execute(&mut **transaction)
    .await
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::settle::tests::{EPOCH, endpoint, failed, finished};
    use super::*;
    use crate::attempt::ErrorClass;

    fn exhausted(times: usize) -> Vec<Finished> {
        (0..times).map(|_| failed(5, Err(ErrorClass::Timeout))).collect()
    }

    fn counted(before: i32, batch: &[Finished]) -> (i32, Vec<i32>) {
        let streaks = HashMap::from([(endpoint(), Streak { epoch: EPOCH, exhausted: before })]);
        let counted = count(&streaks, &batch.iter().collect::<Vec<_>>());
        let notices = counted.notices.iter().map(|notice| notice.consecutive_exhausted).collect();
        (counted.exhausted[&endpoint()], notices)
    }

    #[test]
    fn consecutive_exhausted_deliveries_are_counted_until_a_success() {
        assert_eq!(counted(13, &exhausted(1)), (14, vec![]));
        let mut batch = exhausted(14);
        batch.push(finished(1, Outcome::Delivered));
        batch.extend(exhausted(14));
        assert_eq!(counted(0, &batch), (14, vec![5, 10, 5, 10]));
    }

    #[test]
    fn outcomes_after_the_fifteenth_failure_are_ignored() {
        let mut batch = exhausted(17);
        batch.push(finished(1, Outcome::Delivered));
        assert_eq!(counted(0, &batch), (DISABLED_AT, vec![5, 10, 15]));
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
        assert_eq!(counted(4, &batch), (4, vec![]));
    }

    #[test]
    fn an_outcome_of_another_epoch_does_not_count() {
        let mut batch = exhausted(2);
        batch[0].delivery.epoch = EPOCH - 1;
        assert_eq!(counted(0, &batch), (1, vec![]));
    }
}
