//! From the queue's entrance to delivery without a detour: a delivery that can be sent at once is stored under a lease and handed
//! over as it is, so that nobody has to look for it.

use std::collections::{HashMap, HashSet};

use schemas::id::{EndpointId, WorkspaceId};
use tokio::sync::{mpsc, oneshot};

use crate::{
    attempt::Claimed,
    store::{Grant, Lease},
};

/// Batches on their way.
const CAPACITY: usize = 16;

/// What `enqueue` says.
#[derive(Debug)]
pub(crate) enum Message {
    /// Deliveries of these endpoints are about to be stored, so many of each.
    Ask {
        /// How many, by endpoint.
        wanted: HashMap<(EndpointId, WorkspaceId), usize>,
        /// Where the answer goes.
        reply: oneshot::Sender<Offer>,
    },
    /// They are stored, or could not be.
    Stored {
        /// What was granted.
        grants: Vec<Grant>,
        /// Those that are to be sent now.
        claimed: Vec<Claimed>,
        /// The endpoints of the others.
        left: HashSet<(EndpointId, WorkspaceId)>,
    },
}

/// Permits to send deliveries at once, and the lease under which to store these.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    /// The permits, taken already.
    pub(crate) grants: Vec<Grant>,
    /// None when nothing may be sent.
    pub(crate) lease: Option<Lease>,
}

/// The end of `enqueue`.
#[derive(Debug, Clone)]
pub(crate) struct Handover {
    messages: mpsc::Sender<Message>,
}

impl Handover {
    /// Makes both ends.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Message>) {
        let (messages, received) = mpsc::channel(CAPACITY);
        (Self { messages }, received)
    }

    /// Asks which deliveries may be sent at once. What is granted has to be given back by [`Self::stored`].
    pub(crate) async fn ask(&self, wanted: HashMap<(EndpointId, WorkspaceId), usize>) -> Offer {
        let (reply, answer) = oneshot::channel();
        // Without a listener the process is stopping, and the deliveries wait in Postgres.
        let _ = self.messages.send(Message::Ask { wanted, reply }).await;
        answer.await.unwrap_or_default()
    }

    /// Hands over what is stored.
    pub(crate) async fn stored(
        &self,
        grants: Vec<Grant>,
        claimed: Vec<Claimed>,
        left: HashSet<(EndpointId, WorkspaceId)>,
    ) {
        let _ = self.messages.send(Message::Stored { grants, claimed, left }).await;
    }
}
