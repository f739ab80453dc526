//! One attempt: the delivery, its target, and the outcome.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use schemas::id::{AccountId, EndpointId, WorkspaceId};
use schemas::message::MAX_ATTEMPTS;
use tokio::time::Instant;
use uuid::Uuid;

/// A delivery that this process has leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claimed {
    /// The delivery's id, which never changes.
    pub(crate) delivery_id: Uuid,
    /// The endpoint to send to.
    pub(crate) endpoint_id: EndpointId,
    /// The event's workspace.
    pub(crate) workspace_id: WorkspaceId,
    /// The workspace's account, whose permits it takes.
    pub(crate) account_id: AccountId,
    /// The endpoint's epoch when the delivery was stored. It is not sent in another epoch.
    pub(crate) epoch: i64,
    /// The event's kind.
    pub(crate) event: String,
    /// The exact bytes to sign and send.
    pub(crate) body: Bytes,
    /// The event's own time.
    pub(crate) created_at: DateTime<Utc>,
    /// Whether its end is recorded, because its event may be read again later, or it is a test.
    pub(crate) is_remembered: bool,
    /// Whether it is a redelivery that a user requested.
    pub(crate) is_redelivery: bool,
    /// The number of the attempt, from 1.
    pub(crate) attempt: u16,
    /// The lease's token. An outcome counts only while the row still has it.
    pub(crate) lease_token: Uuid,
    /// A time just before the lease began.
    pub(crate) leased_at: Instant,
}

/// An endpoint's properties at the time of an attempt.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// The address to send to.
    pub(crate) url: String,
    /// The endpoint's epoch, raised whenever it is enabled again.
    pub(crate) epoch: i64,
    /// Whether its account is suspended: its deliveries wait.
    pub(crate) is_suspended: bool,
    /// The secret.
    pub(crate) secret: SealedSecret,
    /// The former secret, for a day after it was replaced.
    pub(crate) previous_secret: Option<SealedSecret>,
}

/// An encrypted secret, as stored.
#[derive(Debug, Clone)]
pub(crate) struct SealedSecret {
    /// The id of the key that decrypts it.
    pub(crate) key_id: i16,
    /// Nonce and ciphertext.
    pub(crate) bytes: Vec<u8>,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The receiver answered 2xx.
    Delivered,
    /// The receiver did not answer 2xx.
    Failed(Failure),
    /// Nothing was sent because the endpoint is deleted or disabled, or its plan has no webhooks.
    Withdrawn,
    /// Nothing was sent because the attempt could not begin before the lease would expire. The delivery is sent under
    /// another lease.
    Unsent,
    /// Nothing was sent because the endpoint's secret cannot be decrypted, or its account is suspended. This is not the
    /// receiver's fault, so it does not count as an attempt.
    Unsendable,
}

/// An attempt without a 2xx answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The receiver's status, or why there is no answer.
    pub(crate) answer: Result<u16, ErrorClass>,
    /// The beginning of the answer's body.
    pub(crate) body: String,
    /// The wait that the receiver requested.
    pub(crate) retry_after: Option<Duration>,
    /// The duration of the request.
    pub(crate) took: Duration,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    /// The URL or one of its addresses is forbidden.
    Blocked,
    /// The host has no address.
    Dns,
    /// The connection or its TLS handshake failed.
    Connect,
    /// The deadline passed.
    Timeout,
    /// The connection ended early, or the response is not valid HTTP.
    Response,
}

impl ErrorClass {
    /// Returns the name in the failure log and in metrics.
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Dns => "dns",
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Response => "response",
        }
    }
}

/// What happens to a delivery after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is retried.
    Retried,
    /// This was the last attempt. Only this counts towards disabling the endpoint.
    Exhausted,
    /// The receiver rejected the request permanently, so it is not retried.
    Rejected,
}

impl Failure {
    /// Returns the fate after the failure of attempt number `attempt`.
    #[must_use]
    pub(crate) fn fate(&self, attempt: u16) -> Fate {
        match self.answer {
            // Of the 4xx statuses, only 429 asks for a retry.
            Ok(400..=499) if self.answer != Ok(429) => Fate::Rejected,
            _ if attempt >= MAX_ATTEMPTS => Fate::Exhausted,
            _ => Fate::Retried,
        }
    }

    /// Creates the failure of an attempt without an answer.
    pub(crate) fn without_answer(class: ErrorClass, took: Duration) -> Self {
        Self { answer: Err(class), body: String::new(), retry_after: None, took }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16) -> Failure {
        Failure { answer: Ok(status), ..Failure::without_answer(ErrorClass::Response, Duration::ZERO) }
    }

    #[test]
    fn only_429_of_4xx_is_retried() {
        for status in [400, 401, 403, 404, 408, 410, 422, 451, 499] {
            assert_eq!(answered(status).fate(1), Fate::Rejected, "{status}");
            assert_eq!(answered(status).fate(5), Fate::Rejected, "{status}");
        }
        for status in [101, 300, 301, 304, 307, 429, 500, 502, 503, 599, 999] {
            assert_eq!(answered(status).fate(4), Fate::Retried, "{status}");
            assert_eq!(answered(status).fate(5), Fate::Exhausted, "{status}");
        }
    }

    #[test]
    fn an_attempt_without_an_answer_is_retried() {
        use ErrorClass::{Blocked, Connect, Dns, Response, Timeout};
        for class in [Blocked, Connect, Dns, Response, Timeout] {
            let failure = Failure::without_answer(class, Duration::ZERO);
            assert_eq!((failure.fate(1), failure.fate(5)), (Fate::Retried, Fate::Exhausted), "{class:?}");
        }
    }
}
