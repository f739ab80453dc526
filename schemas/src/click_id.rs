//! The signed click id: it proves that this deployment's edge answered a click on a link at a given time.
//!
//! A holder of the keys verifies an id without a look-up, so the API accepts a conversion before any consumer has read
//! its click.
//!
//! Layout, 45 bytes, as 60 characters of unpadded base64url:
//!
//! | bytes | content |
//! |---|---|
//! | 1 | id of the MAC key, for key rotation |
//! | 16 | the link's UUID |
//! | 6 | time of the click, milliseconds since 1970, big endian |
//! | 10 | random |
//! | 12 | HMAC-SHA-256 over the 33 bytes before, truncated to 96 bits |

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use crate::id::LinkId;

/// Length of a click id's text in characters.
pub const TEXT_LEN: usize = 60;

/// Random bytes in a click id: enough to make two ids of the same link and millisecond distinct in practice.
pub const RANDOM_LEN: usize = 10;

const SIGNED_LEN: usize = 1 + 16 + 6 + RANDOM_LEN;
const MAC_LEN: usize = 12;
const LEN: usize = SIGNED_LEN + MAC_LEN;

/// The content of a verified click id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifiedClick {
    /// The link that was clicked.
    pub link_id: LinkId,
    /// When the edge answered, to the millisecond.
    pub occurred_at: DateTime<Utc>,
}

/// The error for text that no key of this deployment has signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a click id of this deployment")]
pub struct InvalidClickId;

/// The MAC keys of a deployment: the first one signs, all of them verify.
#[derive(Clone)]
pub struct ClickIdKeys {
    /// Keyed states, cloned for each click: keying an HMAC hashes two blocks.
    keys: Vec<(u8, Hmac<Sha256>)>,
}

impl fmt::Debug for ClickIdKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<u8> = self.keys.iter().map(|(id, _)| *id).collect();
        f.debug_struct("ClickIdKeys").field("ids", &ids).finish_non_exhaustive()
    }
}

impl ClickIdKeys {
    /// Creates a key ring from ids and keys; `current` signs, `previous` only verify.
    pub fn new(current: (u8, [u8; 32]), previous: impl IntoIterator<Item = (u8, [u8; 32])>) -> Self {
        let keys = std::iter::once(current)
            .chain(previous)
            .map(|(id, key)| {
                // HMAC pads a key with zeros to the hash's block size.
                let mut block = [0; 64];
                block[..32].copy_from_slice(&key);
                (id, Hmac::<Sha256>::new(&block.into()))
            })
            .collect();
        Self { keys }
    }

    /// Returns a new id for a click on `link_id` at `occurred_at`.
    ///
    /// A time before 1970 becomes 1970: the layout has no sign.
    pub fn mint(&self, link_id: LinkId, occurred_at: DateTime<Utc>, random: [u8; RANDOM_LEN]) -> String {
        sign(&self.keys[0], link_id, occurred_at, random)
    }

    /// Returns a new id as [`mint`](Self::mint) does, but signed with the last key.
    ///
    /// A rotation puts the new key first, so the same input gives the same id before and after it.
    pub fn mint_with_last(
        &self,
        link_id: LinkId,
        occurred_at: DateTime<Utc>,
        random: [u8; RANDOM_LEN],
    ) -> String {
        sign(&self.keys[self.keys.len() - 1], link_id, occurred_at, random)
    }

    /// Decodes an id and checks its MAC in constant time.
    pub fn verify(&self, text: &str) -> Result<VerifiedClick, InvalidClickId> {
        let mut id = [0; LEN];
        if text.len() != TEXT_LEN || URL_SAFE_NO_PAD.decode_slice(text, &mut id) != Ok(LEN) {
            return Err(InvalidClickId);
        }
        let (_, key) = self.keys.iter().find(|(key_id, _)| *key_id == id[0]).ok_or(InvalidClickId)?;
        let expected = mac(key, &id[..SIGNED_LEN]);
        if !bool::from(expected.ct_eq(&id[SIGNED_LEN..])) {
            return Err(InvalidClickId);
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&id[1..17]);
        let mut millis = [0; 8];
        millis[2..].copy_from_slice(&id[17..23]);
        let occurred_at = i64::try_from(u64::from_be_bytes(millis))
            .ok()
            .and_then(DateTime::from_timestamp_millis)
            .ok_or(InvalidClickId)?;
        Ok(VerifiedClick { link_id: LinkId::from_uuid(Uuid::from_bytes(uuid)), occurred_at })
    }
}

fn sign(
    (key_id, key): &(u8, Hmac<Sha256>),
    link_id: LinkId,
    occurred_at: DateTime<Utc>,
    random: [u8; RANDOM_LEN],
) -> String {
    let millis = u64::try_from(occurred_at.timestamp_millis()).unwrap_or(0);
    let mut id = [0; LEN];
    id[0] = *key_id;
    id[1..17].copy_from_slice(link_id.uuid().as_bytes());
    id[17..23].copy_from_slice(&millis.to_be_bytes()[2..]);
    id[23..SIGNED_LEN].copy_from_slice(&random);
    let mac = mac(key, &id[..SIGNED_LEN]);
    id[SIGNED_LEN..].copy_from_slice(&mac);
    URL_SAFE_NO_PAD.encode(id)
}

fn mac(key: &Hmac<Sha256>, signed: &[u8]) -> [u8; MAC_LEN] {
    let mut state = key.clone();
    state.update(signed);
    let full = state.finalize().into_bytes();
    let mut truncated = [0; MAC_LEN];
    truncated.copy_from_slice(&full[..MAC_LEN]);
    truncated
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(millis).unwrap()
    }

    fn link() -> LinkId {
        LinkId::from_uuid(Uuid::from_u128(0x0192_6f3e_7c1b_7b7e_9a51_2f1d_3c4b_5a69))
    }

    fn keys() -> ClickIdKeys {
        ClickIdKeys::new((1, [7; 32]), [])
    }

    #[test]
    fn a_minted_id_verifies_and_holds_link_and_time() {
        let id = keys().mint(link(), at(1_790_000_000_123), [9; RANDOM_LEN]);
        assert_eq!(id.len(), TEXT_LEN);
        assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
        assert_eq!(
            keys().verify(&id),
            Ok(VerifiedClick { link_id: link(), occurred_at: at(1_790_000_000_123) })
        );
    }

    #[test]
    fn changing_any_character_invalidates_an_id() {
        let id = keys().mint(link(), at(1_790_000_000_123), [9; RANDOM_LEN]);
        for index in 0..id.len() {
            let mut bytes = id.clone().into_bytes();
            bytes[index] = if bytes[index] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert_eq!(keys().verify(&changed), Err(InvalidClickId), "{index}");
        }
    }

    #[test]
    fn an_id_of_another_deployment_is_invalid() {
        let other = ClickIdKeys::new((1, [8; 32]), []);
        let id = other.mint(link(), at(0), [0; RANDOM_LEN]);
        assert_eq!(keys().verify(&id), Err(InvalidClickId));
    }

    #[test]
    fn a_previous_key_still_verifies_after_a_rotation() {
        let old = keys().mint(link(), at(5), [1; RANDOM_LEN]);
        let rotated = ClickIdKeys::new((2, [6; 32]), [(1, [7; 32])]);
        assert!(rotated.verify(&old).is_ok());
        let new = rotated.mint(link(), at(5), [1; RANDOM_LEN]);
        assert_eq!(keys().verify(&new), Err(InvalidClickId), "the old ring does not know key 2");
    }

    #[test]
    fn the_last_key_signs_the_same_after_a_rotation() {
        let rotated = ClickIdKeys::new((2, [6; 32]), [(1, [7; 32])]);
        let id = keys().mint_with_last(link(), at(5), [1; RANDOM_LEN]);
        assert_eq!(id, keys().mint(link(), at(5), [1; RANDOM_LEN]));
        assert_eq!(id, rotated.mint_with_last(link(), at(5), [1; RANDOM_LEN]));
        assert!(rotated.verify(&id).is_ok());
    }

    #[test]
    fn malformed_ids_are_invalid() {
        for text in
            ["", "A", &"A".repeat(59), &"A".repeat(60), &"A".repeat(61), &"é".repeat(30), &"=".repeat(60)]
        {
            assert_eq!(keys().verify(text), Err(InvalidClickId), "{text}");
        }
    }

    #[test]
    fn the_text_form_is_fixed() {
        let id = keys().mint(link(), at(1_790_000_000_123), [9; RANDOM_LEN]);
        assert_eq!(id, GOLDEN);
    }

    /// Checked against another implementation of HMAC-SHA-256.
    const GOLDEN: &str = "AQGSbz58G3t-mlEvHTxLWmkBoMRQbHsJCQkJCQkJCQkJMvFk5fAerVRhyH4v";
}
