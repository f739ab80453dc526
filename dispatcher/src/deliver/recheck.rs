//! Where a delivery goes, and whether it is still this process's to send, read again just before it is sent.
//!
//! Those that ask while a statement is under way share the next one. When thousands wait for their turn, a statement for
//! each would be most of what a delivery costs.

use sqlx::PgPool;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::{
    attempt::{Claimed, Target},
    store,
};

/// Deliveries of one statement.
const BATCH: usize = 1_000;

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
        let leases: Vec<(Uuid, Uuid)> =
            batch.iter().map(|question| (question.delivery_id, question.lease_token)).collect();
        match store::targets_of(&pool, &leases).await {
            Ok(mut targets) => {
                for question in batch.drain(..) {
                    // One that waited for too long is not there any more.
                    let _ = question.reply.send(targets.remove(&question.delivery_id));
                }
            }
            Err(error) => {
                tracing::warn!("cannot read where {} deliveries go: {error}", batch.len());
                batch.clear();
            }
        }
    }
}
