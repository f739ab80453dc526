//! API keys and edge tokens: drawn once, shown once, stored as a digest.

use rand::Rng;
use sha2::{Digest as _, Sha256};

/// The prefix of API keys.
const KEY_PREFIX: &str = "hop_live_";

/// The prefix of edge tokens.
const EDGE_TOKEN_PREFIX: &str = "hop_edge_";

/// Characters after the prefix: 32 of randomness (190 bits) and 6 of checksum.
const RANDOM_LEN: usize = 32;
const CHECKSUM_LEN: usize = 6;

/// How many characters of a key may be shown again: the prefix and four more.
const DISPLAY_LEN: usize = 13;

/// The name of a key that is created without one.
pub(crate) const DEFAULT_NAME: &str = "API key";

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A secret in plain text, to be shown to its creator. It has no `Debug` and no `Display`.
pub(crate) struct PlainToken(String);

impl PlainToken {
    /// Draws an API key.
    pub(crate) fn api_key(rng: &mut impl Rng) -> Self {
        Self::draw(KEY_PREFIX, rng)
    }

    /// Draws an edge token.
    pub(crate) fn edge_token(rng: &mut impl Rng) -> Self {
        Self::draw(EDGE_TOKEN_PREFIX, rng)
    }

    fn draw(prefix: &str, rng: &mut impl Rng) -> Self {
        let random: String = (0..RANDOM_LEN).map(|_| char::from(BASE62[rng.random_range(0..62)])).collect();
        let checksum = checksum(&random);
        Self(format!("{prefix}{random}{checksum}"))
    }

    /// The text to show, once.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// The first characters, which may be shown again.
    pub(crate) fn display_prefix(&self) -> &str {
        &self.0[..DISPLAY_LEN]
    }

    /// What is stored.
    pub(crate) fn digest(&self) -> [u8; 32] {
        digest(&self.0)
    }
}

/// The digest under which a key or token is stored and looked up.
pub(crate) fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Returns the digest of a text that is an API key by its form; `None` without asking the database for any other.
pub(crate) fn digest_of_api_key(text: &str) -> Option<[u8; 32]> {
    let (random, sum) = text.strip_prefix(KEY_PREFIX)?.split_at_checked(RANDOM_LEN)?;
    // Anyone can compute the checksum, so the comparison need not take constant time.
    (checksum(random) == sum).then(|| digest(text))
}

/// Returns six base 62 digits of the first four bytes of SHA-256.
///
/// Scanners for leaked secrets recognise a key by it, and a text without it is rejected without a lookup. It proves
/// nothing: anyone can compute it.
fn checksum(random: &str) -> String {
    let digest = digest(random);
    let mut number = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]) as usize;
    let mut text = [b'0'; CHECKSUM_LEN];
    for place in text.iter_mut().rev() {
        *place = BASE62[number % 62];
        number /= 62;
    }
    text.iter().map(|byte| char::from(*byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_formed_keys_have_a_digest() {
        let key = PlainToken::api_key(&mut rand::rng());
        assert_eq!(digest_of_api_key(key.reveal()), Some(key.digest()));
        let token = PlainToken::edge_token(&mut rand::rng());
        let (shorter, longer) = (&key.reveal()[..46], format!("{}0", key.reveal()));
        let other = if key.reveal().ends_with('0') { '1' } else { '0' };
        let changed = format!("{shorter}{other}");
        let letters = format!("hop_live_{}", "é".repeat(19));
        for text in ["", "hop_live_", "Bearer", shorter, &longer, &changed, token.reveal(), &letters] {
            assert_eq!(digest_of_api_key(text), None, "{text}");
        }
    }

    #[test]
    fn a_key_is_prefix_randomness_and_checksum() {
        let key = PlainToken::api_key(&mut rand::rng());
        let rest = key.reveal().strip_prefix("hop_live_").unwrap();
        assert_eq!(rest.len(), 38);
        assert!(rest.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_eq!(rest[32..], checksum(&rest[..32]));
        assert_eq!(key.display_prefix(), &key.reveal()[..13]);
        assert_ne!(PlainToken::api_key(&mut rand::rng()).reveal(), key.reveal());
        assert!(PlainToken::edge_token(&mut rand::rng()).reveal().starts_with("hop_edge_"));
    }
}
