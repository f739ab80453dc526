//! Where a delivery goes, and whether it is still this process's to send, read again just before it is sent.
//!
//! Those that ask while a statement is under way share the next one. When thousands wait for their turn, a statement for
//! each would be most of what a delivery costs.

use std::{collections::HashMap, time::Duration};

use sqlx::PgPool;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use uuid::Uuid;

use crate::{
    attempt::{Claimed, Target},
    store,
};

/// Deliveries of one statement.
const BATCH: usize = 1_000;

/// How long a statement may take: those who ask wait for 2.5 seconds at most, and one connection that is dead must not
/// hold up the others.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks again about deliveries.
#[derive(Clone)]
pub(super) struct Recheck(mpsc::Sender<Question>);

/// A delivery with its lease, and who wants to know.
pub(super) struct Question {
    delivery_id: Uuid,
    lease_token: Uuid,
    reply: oneshot::Sender<Option<Target>>,
}

/// Postgres has not answered.
pub(super) struct Unanswered;

impl Recheck {
    /// Returns it, and the questions for [`answer`].
    pub(super) fn new() -> (Self, mpsc::Receiver<Question>) {
        let (ask, questions) = mpsc::channel(BATCH);
        (Self(ask), questions)
    }

    /// Returns where a delivery goes now; none as [`store::targets_of`] says.
    pub(super) async fn target(&self, delivery: &Claimed) -> Result<Option<Target>, Unanswered> {
        let Claimed { delivery_id, lease_token, .. } = *delivery;
        let (reply, answer) = oneshot::channel();
        let question = Question { delivery_id, lease_token, reply };
        self.0.send(question).await.map_err(|_| Unanswered)?;
        answer.await.map_err(|_| Unanswered)
    }
}

/// Answers questions until nobody can ask any more.
pub(super) async fn answer(pool: PgPool, mut questions: mpsc::Receiver<Question>) {
    let mut batch = Vec::with_capacity(BATCH);
    while questions.recv_many(&mut batch, BATCH).await > 0 {
        // Who has stopped waiting has given its lease back.
        batch.retain(|question| !question.reply.is_closed());
        if batch.is_empty() {
            continue;
        }
        let leases: Vec<(Uuid, Uuid)> =
            batch.iter().map(|question| (question.delivery_id, question.lease_token)).collect();
        match timeout(STATEMENT_TIMEOUT, store::targets_of(&pool, &leases)).await {
            Ok(Ok(targets)) => reply(batch.drain(..), targets),
            Ok(Err(error)) => {
                tracing::warn!("cannot read where {} deliveries go: {error}", leases.len());
                batch.clear();
            }
            Err(_) => {
                tracing::warn!("Postgres does not say where {} deliveries go", leases.len());
                batch.clear();
            }
        }
    }
}

/// Gives each lease its own answer: a delivery may be leased anew while a question under its former lease still waits.
fn reply(questions: impl Iterator<Item = Question>, mut targets: HashMap<(Uuid, Uuid), Target>) {
    for Question { delivery_id, lease_token, reply } in questions {
        // One that waited for too long is not there any more.
        let _ = reply.send(targets.remove(&(delivery_id, lease_token)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::SealedSecret;

    #[test]
    fn a_question_under_a_former_lease_does_not_take_the_answer_of_the_present_one() {
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
            secret: SealedSecret { key_id: 0, bytes: Vec::new() },
            previous_secret: None,
        };
        reply(questions.into_iter(), HashMap::from([((delivery_id, present), target)]));
        assert!(answers[0].try_recv().unwrap().is_none());
        assert!(answers[1].try_recv().unwrap().is_some());
    }
}
