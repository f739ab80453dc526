//! Reads the target of a delivery, and whether this process still holds its lease, again just before it is sent.
//!
//! Questions that arrive while a statement runs share the next one. With thousands of waiting deliveries, one statement
//! for each would be most of the cost of a delivery.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use uuid::Uuid;

use crate::attempt::{Claimed, Target};
use crate::store;

/// Maximum deliveries of one statement.
const BATCH: usize = 1_000;

/// Timeout of a statement. Callers wait for at most 2.5 seconds, and one dead connection must not delay the others.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(2);

/// The sending end for questions.
#[derive(Clone)]
pub(super) struct Recheck(mpsc::Sender<Question>);

/// A question about a delivery under a lease.
pub(super) struct Question {
    delivery_id: Uuid,
    lease_token: Uuid,
    reply: oneshot::Sender<Option<Target>>,
}

/// Postgres did not answer.
pub(super) struct Unanswered;

impl Recheck {
    /// Creates the sending end, and the receiving end for [`answer`].
    pub(super) fn new() -> (Self, mpsc::Receiver<Question>) {
        let (ask, questions) = mpsc::channel(BATCH);
        (Self(ask), questions)
    }

    /// Returns the current target of a delivery; `None` when [`store::targets_of`] does not return it.
    pub(super) async fn target(&self, delivery: &Claimed) -> Result<Option<Target>, Unanswered> {
        let Claimed { delivery_id, lease_token, .. } = *delivery;
        let (reply, answer) = oneshot::channel();
        let question = Question { delivery_id, lease_token, reply };
        self.0.send(question).await.map_err(|_| Unanswered)?;
        answer.await.map_err(|_| Unanswered)
    }
}

/// Answers questions until all senders are gone.
pub(super) async fn answer(pool: PgPool, mut questions: mpsc::Receiver<Question>) {
    let mut batch = Vec::with_capacity(BATCH);
    while questions.recv_many(&mut batch, BATCH).await > 0 {
        // A caller that stopped waiting has released its lease.
        batch.retain(|question| !question.reply.is_closed());
        if batch.is_empty() {
            continue;
        }
        let leases: Vec<(Uuid, Uuid)> =
            batch.iter().map(|question| (question.delivery_id, question.lease_token)).collect();
        match timeout(STATEMENT_TIMEOUT, store::targets_of(&pool, &leases)).await {
            Ok(Ok(targets)) => reply(batch.drain(..), targets),
            Ok(Err(error)) => {
                tracing::warn!("cannot read the targets of {} deliveries: {error}", leases.len());
                batch.clear();
            }
            Err(_) => {
                tracing::warn!("Postgres did not return the targets of {} deliveries", leases.len());
                batch.clear();
            }
        }
    }
}

/// Answers each question by delivery and lease, because a delivery may be leased again while a question under its
/// former lease still waits.
fn reply(questions: impl Iterator<Item = Question>, mut targets: HashMap<(Uuid, Uuid), Target>) {
    for Question { delivery_id, lease_token, reply } in questions {
        // The caller is gone if it waited for too long.
        let _ = reply.send(targets.remove(&(delivery_id, lease_token)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::SealedSecret;

    #[test]
    fn a_former_lease_gets_no_answer_for_the_current_one() {
        let (delivery_id, former, present) = (Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3));
        let (questions, mut answers): (Vec<_>, Vec<_>) = [former, present]
            .map(|lease_token| {
                let (reply, answer) = oneshot::channel();
                (Question { delivery_id, lease_token, reply }, answer)
            })
            .into_iter()
            .unzip();
        let target = Target {
            url: "https://receiver.example".to_owned(),
            epoch: 1,
            is_suspended: false,
            secret: SealedSecret { key_id: 0, bytes: Vec::new() },
            previous_secret: None,
        };
        reply(questions.into_iter(), HashMap::from([((delivery_id, present), target)]));
        assert!(answers[0].try_recv().unwrap().is_none());
        assert!(answers[1].try_recv().unwrap().is_some());
    }
}
