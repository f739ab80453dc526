//! What the server knows of a request besides the request itself.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header that carries the request id in both directions.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The other end of the connection; a proxy perhaps, see [`client_address`](super::client_address).
///
/// The server puts it into the extensions of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// The name of one request in answers, logs and error bodies.
///
/// The server puts it into the extensions of each request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// Takes the caller's `X-Request-Id` if it is 1-64 characters of `[A-Za-z0-9_-]`, else makes a new one.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        match headers.get(X_REQUEST_ID) {
            Some(value) if is_acceptable(value.as_bytes()) => Self(value.clone()),
            _ => Self::new(),
        }
    }

    /// Makes a new id: 16 hexadecimal digits, not guessable from the one before, without a system call.
    fn new() -> Self {
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let id = KEYS.hash_one(COUNT.fetch_add(1, Ordering::Relaxed));
        let text = format!("{id:016x}");
        // Hexadecimal digits are always a header value.
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

fn is_acceptable(id: &[u8]) -> bool {
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
    fn a_well_formed_id_of_the_caller_is_kept() {
        for kept in ["a", "A-z_09", &"x".repeat(64)] {
            assert_eq!(id_for(kept.as_bytes()).as_str(), kept);
        }
    }

    #[test]
    fn any_other_id_is_replaced_by_a_new_one() {
        for replaced in [&b""[..], b"a b", b"a\"b", b"\xff", "x".repeat(65).as_bytes()] {
            let id = id_for(replaced);
            assert!(is_acceptable(id.as_str().as_bytes()));
            assert_eq!(id.as_str().len(), 16);
        }
        assert_ne!(RequestId::of(&HeaderMap::new()), RequestId::of(&HeaderMap::new()));
    }
}
