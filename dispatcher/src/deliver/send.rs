//! One request to an endpoint.

use std::{
    collections::{HashMap, hash_map::Entry},
    error::Error as _,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use chrono::Utc;
use reqwest::{Response, header};
use schemas::id::EndpointId;
use secrecy::{ExposeSecret as _, SecretString};
use service::{config::KeyRing, destination::DestinationError, sealed};
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::{
    guard::{Guard, Unresolved},
    retry, sign,
};
use crate::attempt::{Claimed, ErrorClass, Failure, Outcome, SealedSecret, Target};

/// Of any response no more than this is read.
const MAX_READ: usize = 16 * 1024;

/// Of a failed response no more than this is kept.
const MAX_KEPT: usize = 4 * 1024;

/// How long the body of a success is waited for: only to use the connection again, for the status has decided.
const SUCCESS_BODY: Duration = Duration::from_secs(1);

/// How often it is said of one endpoint that its secret does not open.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

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
        if error.is::<DestinationError>() {
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

    #[test]
    fn a_kept_body_is_short_valid_and_without_nul() {
        assert_eq!(kept_text(b"no\0pe"), "no\u{fffd}pe");
        for body in [vec![0xff; 20_000], "é".repeat(9_000).into_bytes(), vec![0; 5_000], vec![b'a'; 4_096]] {
            let text = kept_text(&body);
            assert!(text.len() <= MAX_KEPT && text.len() > MAX_KEPT - 4 && !text.contains('\0'));
        }
    }
}
