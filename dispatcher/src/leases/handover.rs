//! Passes new deliveries directly from `enqueue` to `deliver`. A delivery that can be sent immediately is stored under
//! a lease and passed on in memory, so it need not be read from the queue.

use std::collections::{HashMap, HashSet};

use schemas::id::{AccountId, EndpointId};
use tokio::sync::{mpsc, oneshot};

use crate::attempt::Claimed;
use crate::store::{Grant, Lease};

/// Maximum batches in the channel.
const CAPACITY: usize = 16;

/// A message of `enqueue`.
#[derive(Debug)]
pub(crate) enum Message {
    /// Deliveries to these endpoints will be stored.
    Ask {
        /// The number by endpoint.
        wanted: HashMap<(EndpointId, AccountId), usize>,
        /// The channel of the answer.
        reply: oneshot::Sender<Offer>,
    },
    /// The deliveries are stored, or storing them failed.
    Stored {
        /// The granted permits.
        grants: Vec<Grant>,
        /// The deliveries to send now.
        claimed: Vec<Claimed>,
        /// The endpoints of the other deliveries.
        left: HashSet<(EndpointId, AccountId)>,
    },
}

/// Permits to send deliveries immediately, and the lease under which to store them.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    /// The permits, which are in use already.
    pub(crate) grants: Vec<Grant>,
    /// `None` when nothing may be sent.
    pub(crate) lease: Option<Lease>,
}

/// The sending end, which `enqueue` has.
#[derive(Debug, Clone)]
pub(crate) struct Handover {
    messages: mpsc::Sender<Message>,
}

impl Handover {
    /// Creates both ends.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Message>) {
        let (messages, received) = mpsc::channel(CAPACITY);
        (Self { messages }, received)
    }

    /// Requests which deliveries may be sent immediately. Granted permits must be returned by [`Self::stored`].
    pub(crate) async fn ask(&self, wanted: HashMap<(EndpointId, AccountId), usize>) -> Offer {
        let (reply, answer) = oneshot::channel();
        // The receiver is gone while the process stops. The deliveries then wait in Postgres.
        let _ = self.messages.send(Message::Ask { wanted, reply }).await;
        answer.await.unwrap_or_default()
    }

    /// Passes on what was stored.
    pub(crate) async fn stored(
        &self,
        grants: Vec<Grant>,
        claimed: Vec<Claimed>,
        left: HashSet<(EndpointId, AccountId)>,
    ) {
        let _ = self.messages.send(Message::Stored { grants, claimed, left }).await;
    }
}
