//! One request to an endpoint, and what came of it.

use std::{
    collections::{HashMap, hash_map::Entry},
    error::Error as _,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use reqwest::{Response, header};
use schemas::{
    id::{EndpointId, WorkspaceId},
    message::MAX_ATTEMPTS,
};
use secrecy::{ExposeSecret as _, SecretString};
use service::{config::KeyRing, destination::Refused, sealed};
use tokio::time::{Instant, timeout_at};
use url::Url;
use uuid::Uuid;

use crate::{
    guard::{Guard, Unresolved},
    retry, sign,
};

/// Of any response no more than this is read.
const MAX_READ: usize = 16 * 1024;

/// Of a failed response no more than this is kept.
const MAX_KEPT: usize = 4 * 1024;

/// How long the body of a success is waited for: only to use the connection again, for the status has decided.
const SUCCESS_BODY: Duration = Duration::from_secs(1);

/// How often it is said of one endpoint that its secret does not open.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

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

    fn without_answer(class: ErrorClass, took: Duration) -> Self {
        Self { answer: Err(class), body: String::new(), retry_after: None, took }
    }
}

/// Sends deliveries.
#[derive(Debug)]
pub(crate) struct Sender {
    guard: Guard,
    keys: KeyRing,
    deadline: Duration,
    /// When it was last said of an endpoint that its secret does not open.
    complained: Mutex<HashMap<EndpointId, Instant>>,
}

impl Sender {
    /// Makes a sender whose attempts take at most `deadline`.
    #[must_use]
    pub(crate) fn new(guard: Guard, keys: KeyRing, deadline: Duration) -> Self {
        Self { guard, keys, deadline, complained: Mutex::default() }
    }

    /// Makes one attempt. It ends by the deadline, whatever the receiver does.
    pub(crate) async fn attempt(&self, delivery: &Claimed, target: &Target) -> Outcome {
        let begun = Instant::now();
        let Some(secrets) = self.secrets(delivery.endpoint_id, target) else {
            return Outcome::Unsendable;
        };
        let deadline = begun + self.deadline;
        let sent = timeout_at(deadline, self.send(delivery, target, &secrets)).await;
        match sent.unwrap_or(Err(ErrorClass::Timeout)) {
            Ok(response) => judge(response, begun, deadline).await,
            Err(class) => Outcome::Failed(Failure::without_answer(class, begun.elapsed())),
        }
    }

    /// Opens the endpoint's secrets; none when the present one does not open.
    fn secrets(&self, endpoint: EndpointId, target: &Target) -> Option<Vec<SecretString>> {
        let open = |secret: &SealedSecret| {
            sealed::open(&self.keys, endpoint.uuid().as_bytes(), secret.key_id, &secret.bytes)
        };
        let mut secrets = match open(&target.secret) {
            Ok(secret) => vec![secret],
            Err(error) => {
                if self.may_complain(endpoint) {
                    tracing::error!(%endpoint, "cannot sign for endpoint {endpoint}, its deliveries wait: {error}");
                }
                return None;
            }
        };
        match target.previous_secret.as_ref().map(open) {
            Some(Ok(secret)) => secrets.push(secret),
            Some(Err(error)) if self.may_complain(endpoint) => {
                tracing::error!(%endpoint, "cannot sign for endpoint {endpoint} with its former secret: {error}");
            }
            Some(Err(_)) | None => {}
        }
        Some(secrets)
    }

    /// Tells whether enough time has passed since the last complaint about an endpoint: a million deliveries may wait
    /// for one key.
    fn may_complain(&self, endpoint: EndpointId) -> bool {
        let now = Instant::now();
        let mut complained = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        complained.retain(|_, at| now.duration_since(*at) < COMPLAIN_EVERY);
        match complained.entry(endpoint) {
            Entry::Occupied(_) => false,
            Entry::Vacant(vacant) => {
                vacant.insert(now);
                true
            }
        }
    }

    async fn send(
        &self,
        delivery: &Claimed,
        target: &Target,
        secrets: &[SecretString],
    ) -> Result<Response, ErrorClass> {
        let url: Url = target.url.parse().map_err(|_| ErrorClass::Blocked)?;
        let client = self.guard.client(&url).map_err(|_| ErrorClass::Blocked)?;
        let secrets = secrets.iter().map(SecretString::expose_secret);
        let signature = sign::header(secrets, Utc::now().timestamp(), &delivery.body);
        client
            .post(url)
            .header(header::CONTENT_TYPE, "application/json")
            .header("x-service-event", &delivery.event)
            .header("x-service-delivery", delivery.delivery_id.to_string())
            .header("x-service-signature", signature)
            .body(delivery.body.clone())
            .send()
            .await
            .map_err(|error| class_of(&error))
    }
}

fn class_of(error: &reqwest::Error) -> ErrorClass {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<Refused>() {
            return ErrorClass::Blocked;
        }
        if error.is::<Unresolved>() {
            return ErrorClass::Dns;
        }
        cause = error.source();
    }
    if error.is_timeout() {
        ErrorClass::Timeout
    } else if error.is_connect() {
        ErrorClass::Connect
    } else {
        ErrorClass::Response
    }
}

/// Judges a response whose headers are there; its body can change nothing.
async fn judge(response: Response, begun: Instant, deadline: Instant) -> Outcome {
    let status = response.status();
    if status.is_success() {
        let _ = read(response, deadline.min(Instant::now() + SUCCESS_BODY)).await;
        return Outcome::Delivered;
    }
    let asks_to_wait = matches!(status.as_u16(), 429 | 503);
    let retry_after = response
        .headers()
        .get(header::RETRY_AFTER)
        .filter(|_| asks_to_wait)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| retry::retry_after(value, Utc::now()));
    let body = read(response, deadline).await;
    Outcome::Failed(Failure {
        answer: Ok(status.as_u16()),
        body: kept_text(&body),
        retry_after,
        took: begun.elapsed(),
    })
}

/// Reads a body up to its end, to [`MAX_READ`], to an error or to the deadline. Dropping the rest drops the
/// connection.
async fn read(mut response: Response, deadline: Instant) -> Vec<u8> {
    let mut body = Vec::new();
    while body.len() < MAX_READ
        && let Ok(Ok(Some(chunk))) = timeout_at(deadline, response.chunk()).await
    {
        body.extend_from_slice(&chunk[..chunk.len().min(MAX_READ - body.len())]);
    }
    body
}

/// The beginning of a body as text that every store takes.
fn kept_text(body: &[u8]) -> String {
    // Postgres has no NUL in a text. A replacement is longer than what it replaces, so the cut comes last.
    let mut text = String::from_utf8_lossy(&body[..body.len().min(MAX_KEPT)]).replace('\0', "\u{fffd}");
    text.truncate(text.floor_char_boundary(MAX_KEPT));
    text
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

    #[test]
    fn a_kept_body_is_short_valid_and_without_nul() {
        assert_eq!(kept_text(b"no\0pe"), "no\u{fffd}pe");
        for body in [vec![0xff; 20_000], "é".repeat(9_000).into_bytes(), vec![0; 5_000], vec![b'a'; 4_096]] {
            let text = kept_text(&body);
            assert!(text.len() <= MAX_KEPT && text.len() > MAX_KEPT - 4 && !text.contains('\0'));
        }
    }
}
