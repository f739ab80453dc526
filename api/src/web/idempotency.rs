//! `Idempotency-Key`: a request repeated within 24 hours gets its first answer and changes nothing.
//!
//! The key and the answer are written in the transaction that does the work. Of two concurrent requests the second
//! waits for the first, and then finds its answer or, if the first failed, does the work. A killed process leaves
//! neither a key nor half of the work.
//!
//! Only successful answers are kept. An error changed nothing, so a repeated request is tried again.

use http::{HeaderMap, HeaderName, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use service::http::{ApiError, json};
use sha2::{Digest as _, Sha256};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;
use warp::reply::Response;

use crate::error::database;
use crate::store::idempotency;
use crate::store::idempotency::Kept;
use crate::web::operation;
use crate::web::request::{Argument, Request};

/// The header.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Longest key, in characters.
const MAX_LEN: usize = 255;

/// A caller's name for a request: 1 to 255 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Returns whether the workspace has used the key. [`NamedRequest::claim`] decides; this only saves work with a
    /// body that was probably sent before.
    pub(crate) async fn is_known(&self, pool: &PgPool, workspace: Uuid) -> sqlx::Result<bool> {
        idempotency::is_known(pool, workspace, &self.0).await
    }
}

impl Argument for Option<IdempotencyKey> {
    async fn take(request: &mut Request) -> Result<Self, ApiError> {
        read(&request.head.headers)
    }
}

fn read(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, ApiError> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    value
        .to_str()
        .ok()
        .filter(|text| {
            (1..=MAX_LEN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
        })
        // Two keys are invalid.
        .filter(|_| values.next().is_none())
        .map(|text| Some(IdempotencyKey(text.to_owned())))
        .ok_or_else(|| {
            ApiError::invalid_field(
                "Idempotency-Key",
                "must be a single key of 1 to 255 visible ASCII characters",
            )
        })
}

/// An answer that can be repeated exactly.
#[derive(Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    body: Box<RawValue>,
    location: Option<String>,
}

impl Answer {
    /// Creates an answer from a value and, for a created resource, its path.
    pub(crate) fn new(
        status: StatusCode,
        value: &impl Serialize,
        location: Option<String>,
    ) -> Result<Self, ApiError> {
        Ok(Self { status, body: to_raw_value(value).map_err(ApiError::internal)?, location })
    }

    /// Parses the body.
    pub(crate) fn value<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_json::from_str(self.body.get()).map_err(ApiError::internal)
    }
}

/// The status is the one of the first answer.
impl operation::Answer for Answer {
    fn respond(self, _: StatusCode) -> Response {
        let mut response = json(self.status, &self.body);
        // Our paths are always header values.
        if let Some(location) = self.location.and_then(|path| path.try_into().ok()) {
            response.headers_mut().insert(http::header::LOCATION, location);
        }
        response
    }
}

/// A request with an idempotency key: its workspace, the key, and a digest of the body.
#[derive(Debug, Clone)]
pub(crate) struct NamedRequest {
    workspace: Uuid,
    key: IdempotencyKey,
    sha256: [u8; 32],
}

impl NamedRequest {
    /// Names a request. `operation` separates equal bodies of different operations.
    ///
    /// The digest is of the parsed body: the order of its fields does not matter.
    pub(crate) fn new(
        workspace: Uuid,
        key: IdempotencyKey,
        operation: &str,
        body: &impl Serialize,
    ) -> Result<Self, ApiError> {
        let body = serde_json::to_vec(body).map_err(ApiError::internal)?;
        let sha256 = Sha256::new().chain_update(operation).chain_update([0]).chain_update(body).finalize();
        Ok(Self { workspace, key, sha256: sha256.into() })
    }

    /// Takes the key for this transaction, or returns the answer kept under it.
    ///
    /// # Errors
    /// `IDEMPOTENCY_CONFLICT` when the key was used for another request.
    pub(crate) async fn claim(&self, transaction: &mut PgConnection) -> Result<Option<Answer>, ApiError> {
        let kept = idempotency::claim(transaction, self.workspace, &self.key.0, &self.sha256);
        let Some(kept) = kept.await.map_err(database)? else { return Ok(None) };
        let Kept { request_sha256: sha256, status, body, location } = kept;
        if sha256 != self.sha256 {
            return Err(ApiError::idempotency_conflict(
                "This Idempotency-Key was used for another request in the last 24 hours. Use a new key.",
            ));
        }
        Ok(Some(Answer {
            status: StatusCode::from_u16(status.unsigned_abs()).map_err(ApiError::internal)?,
            body: RawValue::from_string(body).map_err(ApiError::internal)?,
            location,
        }))
    }

    /// Keeps the answer, in the transaction that claimed the key.
    pub(crate) async fn keep(&self, transaction: &mut PgConnection, answer: &Answer) -> sqlx::Result<()> {
        // Statuses have three digits.
        let status = answer.status.as_u16().cast_signed();
        let (body, location) = (answer.body.get(), answer.location.as_deref());
        idempotency::keep(transaction, self.workspace, &self.key.0, status, body, location).await
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn header(values: &[&[u8]]) -> Result<Option<IdempotencyKey>, ApiError> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
        }
        read(&headers)
    }

    #[test]
    fn a_key_has_1_to_255_visible_ascii_characters() {
        assert_eq!(header(&[]).unwrap(), None);
        for good in ["a", "order-1042/1", "~!{}", &"x".repeat(255)] {
            assert_eq!(header(&[good.as_bytes()]).unwrap(), Some(IdempotencyKey(good.to_owned())));
        }
        for bad in [&b""[..], b"a b", b"a\tb", "schlüssel".as_bytes(), b"\xff", "x".repeat(256).as_bytes()] {
            assert_eq!(header(&[bad]).unwrap_err().status(), StatusCode::BAD_REQUEST);
        }
        assert!(header(&[b"a", b"a"]).is_err(), "two keys are rejected");
    }

    #[test]
    fn equal_bodies_of_two_operations_differ() {
        let named = |operation, body: &str| {
            NamedRequest::new(Uuid::nil(), IdempotencyKey("k".to_owned()), operation, &body).unwrap().sha256
        };
        assert_eq!(named("a", "body"), named("a", "body"));
        assert_ne!(named("a", "body"), named("b", "body"));
        assert_ne!(named("a", "body"), named("a", "other"));
    }
}
