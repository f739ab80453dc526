//! One request to an endpoint.

use std::error::Error as _;
use std::time::Duration;

use chrono::Utc;
use reqwest::{Response, header};
use schemas::id::EndpointId;
use secrecy::{ExposeSecret as _, SecretString};
use service::config::KeyRing;
use service::destination::DestinationError;
use service::traces::{Span, Tracer};
use service::{KeyedLogLimit, sealed};
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::guard::{Guard, Unresolved};
use super::{retry, sign};
use crate::attempt::{Claimed, ErrorClass, Failure, Outcome, SealedSecret, Target};
use crate::trace;

/// Maximum bytes read of any response body.
const MAX_READ: usize = 16 * 1024;

/// Maximum bytes stored of a failed response's body.
const MAX_KEPT: usize = 4 * 1024;

/// How long to wait for the body of a success, only to reuse the connection; the status has decided the outcome.
const SUCCESS_BODY: Duration = Duration::from_secs(1);

/// Sends deliveries.
#[derive(Debug)]
pub(crate) struct Sender {
    guard: Guard,
    keys: KeyRing,
    deadline: Duration,
    tracer: Tracer,
    /// Of log lines about one endpoint's secret: a million deliveries may wait for one key.
    log_limit: KeyedLogLimit<EndpointId>,
}

impl Sender {
    /// Creates a sender whose attempts take at most `deadline`.
    #[must_use]
    pub(crate) fn new(guard: Guard, keys: KeyRing, deadline: Duration, tracer: Tracer) -> Self {
        Self { guard, keys, deadline, tracer, log_limit: KeyedLogLimit::default() }
    }

    /// Makes one attempt, which ends by the deadline whatever the receiver does.
    pub(crate) async fn attempt(&self, delivery: &Claimed, target: &Target) -> Outcome {
        if target.is_suspended {
            return Outcome::Unsendable;
        }
        let begun = Instant::now();
        let Some(secrets) = self.secrets(delivery.endpoint_id, target) else {
            return Outcome::Unsendable;
        };
        let deadline = begun + self.deadline;
        let span = trace::attempt(&self.tracer, delivery);
        let sent = timeout_at(deadline, self.send(delivery, target, &secrets, span.as_ref())).await;
        let sent = sent.unwrap_or(Err(ErrorClass::Timeout));
        let answer = sent.as_ref().map(|response| response.status().as_u16()).map_err(|class| *class);
        let outcome = match sent {
            Ok(response) => judge(response, begun, deadline).await,
            Err(class) => Outcome::Failed(Failure::without_answer(class, begun.elapsed())),
        };
        if let Some(span) = span {
            trace::answered(span, answer);
        }
        outcome
    }

    /// Decrypts the endpoint's secrets; `None` when the current one cannot be decrypted.
    fn secrets(&self, endpoint: EndpointId, target: &Target) -> Option<Vec<SecretString>> {
        let open = |secret: &SealedSecret| {
            sealed::open(&self.keys, endpoint.uuid().as_bytes(), secret.key_id, &secret.bytes)
        };
        let mut secrets = match open(&target.secret) {
            Ok(secret) => vec![secret],
            Err(error) => {
                if self.log_limit.is_due(&endpoint) {
                    tracing::error!(%endpoint, "cannot sign for endpoint {endpoint}, its deliveries wait: {error}");
                }
                return None;
            }
        };
        match target.previous_secret.as_ref().map(open) {
            Some(Ok(secret)) => secrets.push(secret),
            Some(Err(error)) if self.log_limit.is_due(&endpoint) => {
                tracing::error!(%endpoint, "cannot sign for endpoint {endpoint} with its former secret: {error}");
            }
            Some(Err(_)) | None => {}
        }
        Some(secrets)
    }

    async fn send(
        &self,
        delivery: &Claimed,
        target: &Target,
        secrets: &[SecretString],
        span: Option<&Span>,
    ) -> Result<Response, ErrorClass> {
        let url: Url = target.url.parse().map_err(|_| ErrorClass::Blocked)?;
        let client = self.guard.client(&url).map_err(|_| ErrorClass::Blocked)?;
        let secrets = secrets.iter().map(SecretString::expose_secret);
        let signature = sign::header(secrets, Utc::now().timestamp(), &delivery.body);
        let mut request = client
            .post(url)
            .header(header::CONTENT_TYPE, "application/json")
            .header("x-service-event", &delivery.event)
            .header("x-service-delivery", delivery.delivery_id.to_string())
            .header("x-service-signature", signature)
            .body(delivery.body.clone());
        if let Some(span) = span {
            request = request.header("traceparent", span.traceparent());
        }
        request.send().await.map_err(|error| class_of(&error))
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

/// Returns the outcome of a response, which depends only on its status and headers.
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

/// Reads a body until its end, [`MAX_READ`], an error, or the deadline. Dropping the rest closes the connection.
async fn read(mut response: Response, deadline: Instant) -> Vec<u8> {
    let mut body = Vec::new();
    while body.len() < MAX_READ
        && let Ok(Ok(Some(chunk))) = timeout_at(deadline, response.chunk()).await
    {
        body.extend_from_slice(&chunk[..chunk.len().min(MAX_READ - body.len())]);
    }
    body
}

/// Returns the beginning of a body as text that Postgres accepts.
fn kept_text(body: &[u8]) -> String {
    // Postgres does not allow NUL in texts. Replacements may be longer than what they replace, so the text is truncated
    // last.
    let mut text = String::from_utf8_lossy(&body[..body.len().min(MAX_KEPT)]).replace('\0', "\u{fffd}");
    text.truncate(text.floor_char_boundary(MAX_KEPT));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_body_is_short_valid_and_without_nul() {
        assert_eq!(kept_text(b"no\0pe"), "no\u{fffd}pe");
        for body in [vec![0xff; 20_000], "é".repeat(9_000).into_bytes(), vec![0; 5_000], vec![b'a'; 4_096]] {
            let text = kept_text(&body);
            assert!(text.len() <= MAX_KEPT && text.len() > MAX_KEPT - 4 && !text.contains('\0'));
        }
    }
}
