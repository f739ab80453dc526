//! The peer and the id of a request.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header of the request id, in requests and responses.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The other end of the connection, which may be a proxy; see [`client_address`](super::client_address).
///
/// The server adds it to the extensions of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// The id of a request in responses and logs.
///
/// The server adds it to the extensions of each request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// Returns the caller's `X-Request-Id` if it is 1-64 characters of `[A-Za-z0-9_-]`, else a new one.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        match headers.get(X_REQUEST_ID) {
            Some(value) if is_valid(value.as_bytes()) => Self(value.clone()),
            _ => Self::new(),
        }
    }

    /// Returns a new id of 16 hexadecimal digits, not predictable from the previous one, without a system call.
    fn new() -> Self {
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let id = KEYS.hash_one(COUNT.fetch_add(1, Ordering::Relaxed));
        let text = format!("{id:016x}");
        // Never "none": hexadecimal digits are a valid header value.
        Self(HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("none")))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    pub(super) fn into_header(self) -> HeaderValue {
        self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

fn is_valid(id: &[u8]) -> bool {
    (1..=64).contains(&id.len()) && id.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_for(inbound: &[u8]) -> RequestId {
        let mut headers = HeaderMap::new();
        headers.insert(X_REQUEST_ID, HeaderValue::from_bytes(inbound).unwrap());
        RequestId::of(&headers)
    }

    #[test]
    fn a_callers_valid_id_is_kept() {
        for kept in ["a", "A-z_09", &"x".repeat(64)] {
            assert_eq!(id_for(kept.as_bytes()).as_str(), kept);
        }
    }

    #[test]
    fn an_invalid_id_is_replaced() {
        for replaced in [&b""[..], b"a b", b"a\"b", b"\xff", "x".repeat(65).as_bytes()] {
            let id = id_for(replaced);
            assert!(is_valid(id.as_str().as_bytes()));
            assert_eq!(id.as_str().len(), 16);
        }
        assert_ne!(RequestId::of(&HeaderMap::new()), RequestId::of(&HeaderMap::new()));
    }
}
