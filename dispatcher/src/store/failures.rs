//! The failure log: each failed attempt, and the requests for redelivery.

use std::collections::HashMap;

use schemas::message::MAX_ATTEMPTS;
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::finished::Finished;
use crate::attempt::{Failure, Fate, Outcome};

/// Adds failed attempts to the log.
pub(super) async fn log(
    transaction: &mut Transaction<'_, Postgres>,
    applied: &[&Finished],
) -> sqlx::Result<()> {
    let failed: Vec<(&Finished, &Failure)> = applied
        .iter()
        .filter_map(|one| match &one.outcome {
            Outcome::Failed(failure) => Some((*one, failure)),
            _ => None,
        })
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    add_attempts(transaction, &failed).await?;
    keep_requests(transaction, &failed).await
}

async fn add_attempts(
    transaction: &mut Transaction<'_, Postgres>,
    failed: &[(&Finished, &Failure)],
) -> sqlx::Result<()> {
    let waits: Vec<Option<f64>> = failed
        .iter()
        .map(|(one, _)| (one.fate() == Some(Fate::Retried)).then_some(one.wait.as_secs_f64()))
        .collect();
    let millis = |failure: &Failure| i32::try_from(failure.took.as_millis()).unwrap_or(i32::MAX);
    sqlx::query(
        "INSERT INTO webhook_failures (id, endpoint_id, delivery_id, event, attempt, status_code, error_class,
                                       response_body, duration_ms, attempted_at, next_attempt_at)
         SELECT id, endpoint_id, delivery_id, event, attempt, status_code, error_class,
                response_body, duration_ms, attempted_at, now() + make_interval(secs => wait)
         FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::smallint[], $6::smallint[], $7::text[],
                     $8::text[], $9::integer[], $10::timestamptz[], $11::float8[])
              AS f (id, endpoint_id, delivery_id, event, attempt, status_code, error_class,
                    response_body, duration_ms, attempted_at, wait)",
    )
    .bind(failed.iter().map(|_| Uuid::now_v7()).collect::<Vec<_>>())
    .bind(failed.iter().map(|(one, _)| one.delivery.endpoint_id.uuid()).collect::<Vec<_>>())
    .bind(failed.iter().map(|(one, _)| one.delivery.delivery_id).collect::<Vec<_>>())
    .bind(failed.iter().map(|(one, _)| one.delivery.event.as_str()).collect::<Vec<_>>())
    .bind(failed.iter().map(|(one, _)| attempt_number(one)).collect::<Vec<_>>())
    .bind(failed.iter().map(|(_, failure)| status_code(failure)).collect::<Vec<_>>())
    .bind(failed.iter().map(|(_, failure)| error_class(failure)).collect::<Vec<_>>())
    .bind(failed.iter().map(|(_, failure)| failure.body.as_str()).collect::<Vec<_>>())
    .bind(failed.iter().map(|(_, failure)| millis(failure)).collect::<Vec<_>>())
    .bind(failed.iter().map(|(one, _)| one.ended_at).collect::<Vec<_>>())
    .bind(waits)
    .execute(&mut **transaction)
    .await
    .map(drop)
}

/// Stores the request of each failed delivery once, however many attempts failed.
async fn keep_requests(
    transaction: &mut Transaction<'_, Postgres>,
    failed: &[(&Finished, &Failure)],
) -> sqlx::Result<()> {
    // A statement may insert or update a row only once.
    let failed: HashMap<Uuid, (&Finished, &Failure)> =
        failed.iter().map(|(one, failure)| (one.delivery.delivery_id, (*one, *failure))).collect();
    let deliveries: Vec<_> = failed.values().map(|(one, _)| &one.delivery).collect();
    sqlx::query(
        "INSERT INTO webhook_failed_deliveries
             (delivery_id, endpoint_id, workspace_id, event, body, created_at, status_code, error_class, attempts,
              failed_at)
         SELECT *, now() FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::bytea[], $6::timestamptz[],
                                     $7::smallint[], $8::text[], $9::smallint[])
         ON CONFLICT (delivery_id) DO UPDATE
         SET failed_at = excluded.failed_at, status_code = excluded.status_code,
             error_class = excluded.error_class, attempts = excluded.attempts",
    )
    .bind(deliveries.iter().map(|one| one.delivery_id).collect::<Vec<_>>())
    .bind(deliveries.iter().map(|one| one.endpoint_id.uuid()).collect::<Vec<_>>())
    .bind(deliveries.iter().map(|one| one.workspace_id.uuid()).collect::<Vec<_>>())
    .bind(deliveries.iter().map(|one| one.event.as_str()).collect::<Vec<_>>())
    .bind(deliveries.iter().map(|one| one.body.as_ref()).collect::<Vec<&[u8]>>())
    .bind(deliveries.iter().map(|one| one.created_at).collect::<Vec<_>>())
    .bind(failed.values().map(|(_, failure)| status_code(failure)).collect::<Vec<_>>())
    .bind(failed.values().map(|(_, failure)| error_class(failure)).collect::<Vec<_>>())
    .bind(failed.values().map(|(one, _)| attempt_number(one)).collect::<Vec<_>>())
    .execute(&mut **transaction)
    .await
    .map(drop)
}

/// Marks deliveries with earlier failures as delivered.
pub(super) async fn mark_delivered(
    transaction: &mut Transaction<'_, Postgres>,
    applied: &[&Finished],
) -> sqlx::Result<()> {
    let arrived = applied.iter().filter(|one| {
        one.outcome == Outcome::Delivered && (one.delivery.attempt > 1 || one.delivery.is_redelivery)
    });
    let (ids, attempts): (Vec<Uuid>, Vec<i16>) =
        arrived.map(|one| (one.delivery.delivery_id, attempt_number(one))).unzip();
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "UPDATE webhook_failed_deliveries f SET delivered_at = now(), attempts = a.attempts
         FROM unnest($1::uuid[], $2::smallint[]) AS a (delivery_id, attempts)
         WHERE f.delivery_id = a.delivery_id",
    )
    .bind(ids)
    .bind(attempts)
    .execute(&mut **transaction)
    .await
    .map(drop)
}

fn status_code(failure: &Failure) -> Option<i16> {
    failure.answer.ok().and_then(|status| i16::try_from(status).ok())
}

fn error_class(failure: &Failure) -> Option<&'static str> {
    failure.answer.err().map(|class| class.as_str())
}

pub(super) fn attempt_number(one: &Finished) -> i16 {
    i16::try_from(one.delivery.attempt.min(MAX_ATTEMPTS)).unwrap_or(i16::MAX)
}
