//! One attempt: what is sent where, and what came of it.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use schemas::{
    id::{EndpointId, WorkspaceId},
    message::MAX_ATTEMPTS,
};
use tokio::time::Instant;
use uuid::Uuid;

/// A delivery whose lease this process holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claimed {
    /// Identifies the delivery for life.
    pub(crate) delivery_id: Uuid,
    /// Where it goes.
    pub(crate) endpoint_id: EndpointId,
    /// Whose event it is.
    pub(crate) workspace_id: WorkspaceId,
    /// The endpoint's epoch when the delivery came in: in another epoch it is not sent.
    pub(crate) epoch: i64,
    /// The event's kind.
    pub(crate) event: String,
    /// The exact bytes to sign and send.
    pub(crate) body: Bytes,
    /// The event's own time.
    pub(crate) created_at: DateTime<Utc>,
    /// Whether its end is remembered: its event may come again later, or it is a test.
    pub(crate) is_remembered: bool,
    /// Whether it is sent again on request.
    pub(crate) is_redelivery: bool,
    /// The number of the attempt to make, from 1.
    pub(crate) attempt: u16,
    /// Names the lease: an outcome counts only while the row still carries it.
    pub(crate) lease_token: Uuid,
    /// A moment before the lease began.
    pub(crate) leased_at: Instant,
}

/// What an endpoint is at the moment of an attempt.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// The address to send to.
    pub(crate) url: String,
    /// Raised when the endpoint is enabled again.
    pub(crate) epoch: i64,
    /// The secret.
    pub(crate) secret: SealedSecret,
    /// The secret before it, for a day after it was replaced.
    pub(crate) previous_secret: Option<SealedSecret>,
}

/// A secret as it is stored.
#[derive(Debug, Clone)]
pub(crate) struct SealedSecret {
    /// Which key opens it.
    pub(crate) key_id: i16,
    /// Nonce and ciphertext.
    pub(crate) bytes: Vec<u8>,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The receiver answered 2xx.
    Delivered,
    /// It did not.
    Failed(Failure),
    /// Nothing was sent because the endpoint is deleted, disabled or without a plan that has webhooks.
    Withdrawn,
    /// Nothing was sent because its turn did not come before its lease would have run out: it waits for another.
    Unsent,
    /// Nothing was sent because the endpoint's secret does not open: our fault, which costs no attempt.
    Unsendable,
}

/// An attempt that was not answered with 2xx.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// What the receiver answered, or why there is no answer.
    pub(crate) answer: Result<u16, ErrorClass>,
    /// The beginning of the answer's body.
    pub(crate) body: String,
    /// How long the receiver asks us to wait.
    pub(crate) retry_after: Option<Duration>,
    /// How long it took.
    pub(crate) took: Duration,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    /// The URL or one of its addresses is forbidden.
    Blocked,
    /// The host has no address.
    Dns,
    /// No connection, or no TLS on it.
    Connect,
    /// The deadline passed.
    Timeout,
    /// The connection ended early, or what came is not HTTP.
    Response,
}

impl ErrorClass {
    /// The name in the failure log and in metrics.
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

/// What a failure means for its delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is tried again.
    Retried,
    /// That was the last attempt; only this counts towards disabling the endpoint.
    Exhausted,
    /// The receiver understood and said no: trying again is of no use.
    Refused,
}

impl Failure {
    /// Judges the failure of attempt number `attempt`.
    #[must_use]
    pub(crate) fn fate(&self, attempt: u16) -> Fate {
        match self.answer {
            // Of the 4xx only 429 asks for another try.
            Ok(400..=499) if self.answer != Ok(429) => Fate::Refused,
            _ if attempt >= MAX_ATTEMPTS => Fate::Exhausted,
            _ => Fate::Retried,
        }
    }

    /// Makes one of an attempt that was not answered.
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
    fn of_the_4xx_only_429_is_tried_again() {
        for status in [400, 401, 403, 404, 408, 410, 422, 451, 499] {
            assert_eq!(answered(status).fate(1), Fate::Refused, "{status}");
            assert_eq!(answered(status).fate(5), Fate::Refused, "{status}");
        }
        for status in [101, 300, 301, 304, 307, 429, 500, 502, 503, 599, 999] {
            assert_eq!(answered(status).fate(4), Fate::Retried, "{status}");
            assert_eq!(answered(status).fate(5), Fate::Exhausted, "{status}");
        }
    }

    #[test]
    fn whatever_kept_the_answer_away_is_tried_again() {
        use ErrorClass::{Blocked, Connect, Dns, Response, Timeout};
        for class in [Blocked, Connect, Dns, Response, Timeout] {
            let failure = Failure::without_answer(class, Duration::ZERO);
            assert_eq!((failure.fate(1), failure.fate(5)), (Fate::Retried, Fate::Exhausted), "{class:?}");
        }
    }
}
