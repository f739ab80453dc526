//! Encryption of stored webhook secrets.
//!
//! XChaCha20-Poly1305 with a key of the deployment's ring. A sealed secret is the 24-byte nonce followed by the
//! ciphertext with its tag. The endpoint's UUID is authenticated data: a sealed secret copied to another endpoint's
//! row does not open. The key's id is stored beside it, so keys can be rotated row by row.

use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};
use secrecy::SecretString;

use crate::config::{Key, KeyRing};

/// Length of a nonce in bytes; long enough for random nonces.
pub const NONCE_LEN: usize = 24;

/// A sealed secret and the id of the key that opens it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Id of the key in the ring.
    pub key_id: u8,
    /// Nonce and ciphertext.
    pub bytes: Vec<u8>,
}

/// Why a secret could not be sealed or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The ring has no key with that id.
    #[error("no key with id {0} is configured")]
    UnknownKey(i16),
    /// The bytes were not sealed with that key for that endpoint.
    #[error("the sealed secret does not open with its key")]
    Tampered,
    /// The secret exceeds the cipher's limit.
    #[error("the secret is too long to seal")]
    TooLong,
}

/// Seals an endpoint's secret with the ring's first key.
///
/// `endpoint` is the endpoint's UUID. `nonce` must be random and used once only.
///
/// # Errors
/// [`SealError::TooLong`] above 256 GiB.
pub fn seal(
    ring: &KeyRing,
    endpoint: &[u8; 16],
    secret: &str,
    nonce: [u8; NONCE_LEN],
) -> Result<Sealed, SealError> {
    let (key_id, key) = ring.current();
    let ciphertext = cipher(key)
        .encrypt(XNonce::from_slice(&nonce), Payload { msg: secret.as_bytes(), aad: endpoint })
        .map_err(|_| SealError::TooLong)?;
    let mut bytes = nonce.to_vec();
    bytes.extend(ciphertext);
    Ok(Sealed { key_id, bytes })
}

/// Decrypts a secret that [`seal`] encrypted for the same endpoint.
///
/// # Errors
/// When the ring lacks the key, or the bytes were not sealed with it for this endpoint.
pub fn open(
    ring: &KeyRing,
    endpoint: &[u8; 16],
    key_id: i16,
    sealed: &[u8],
) -> Result<SecretString, SealError> {
    let key = u8::try_from(key_id).ok().and_then(|id| ring.get(id)).ok_or(SealError::UnknownKey(key_id))?;
    let (nonce, ciphertext) = sealed.split_at_checked(NONCE_LEN).ok_or(SealError::Tampered)?;
    let secret = cipher(key)
        .decrypt(XNonce::from_slice(nonce), Payload { msg: ciphertext, aad: endpoint })
        .map_err(|_| SealError::Tampered)?;
    String::from_utf8(secret).map(SecretString::from).map_err(|_| SealError::Tampered)
}

fn cipher(key: &Key) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(key.bytes().into())
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    const ENDPOINT: &[u8; 16] = &[3; 16];
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn ring(keys: &[(u8, u8)]) -> KeyRing {
        let text: Vec<String> =
            keys.iter().map(|(id, byte)| format!("{id}:{}", format!("{byte:02x}").repeat(32))).collect();
        text.join(",").parse().unwrap()
    }

    fn sealed_with(ring: &KeyRing) -> Sealed {
        seal(ring, ENDPOINT, SECRET, [9; NONCE_LEN]).unwrap()
    }

    fn opened(ring: &KeyRing, endpoint: &[u8; 16], sealed: &Sealed) -> Result<String, SealError> {
        open(ring, endpoint, i16::from(sealed.key_id), &sealed.bytes)
            .map(|secret| secret.expose_secret().to_owned())
    }

    #[test]
    fn a_sealed_secret_opens_with_its_key_for_its_endpoint() {
        let ring = ring(&[(1, 7)]);
        let sealed = sealed_with(&ring);
        assert_eq!(sealed.key_id, 1);
        assert_eq!(sealed.bytes[..NONCE_LEN], [9; NONCE_LEN]);
        assert_eq!(sealed.bytes.len(), NONCE_LEN + SECRET.len() + 16);
        assert!(!String::from_utf8_lossy(&sealed.bytes).contains(SECRET));
        assert_eq!(opened(&ring, ENDPOINT, &sealed).as_deref(), Ok(SECRET));
    }

    #[test]
    fn a_secret_moved_to_another_endpoint_does_not_open() {
        let ring = ring(&[(1, 7)]);
        assert_eq!(opened(&ring, &[4; 16], &sealed_with(&ring)), Err(SealError::Tampered));
    }

    #[test]
    fn a_changed_or_truncated_secret_does_not_open() {
        let ring = ring(&[(1, 7)]);
        let sealed = sealed_with(&ring);
        for index in 0..sealed.bytes.len() {
            let mut changed = sealed.clone();
            changed.bytes[index] ^= 1;
            assert_eq!(opened(&ring, ENDPOINT, &changed), Err(SealError::Tampered), "byte {index}");
            let truncated = Sealed { bytes: sealed.bytes[..index].to_vec(), ..sealed };
            assert_eq!(opened(&ring, ENDPOINT, &truncated), Err(SealError::Tampered), "length {index}");
        }
    }

    #[test]
    fn a_previous_key_still_opens_after_a_rotation() {
        let before = ring(&[(1, 7)]);
        let after = ring(&[(2, 8), (1, 7)]);
        assert_eq!(opened(&after, ENDPOINT, &sealed_with(&before)).as_deref(), Ok(SECRET));
        assert_eq!(sealed_with(&after).key_id, 2);
        assert_eq!(opened(&before, ENDPOINT, &sealed_with(&after)), Err(SealError::UnknownKey(2)));
    }
}
