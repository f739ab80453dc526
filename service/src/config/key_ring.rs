//! Secret keys and key rings.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use secrecy::{ExposeSecret as _, SecretBox};

/// Length of a key in bytes.
const LENGTH: usize = 32;

/// The error for a malformed key or ring; it never contains the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// A key is not 32 bytes in hexadecimal.
    #[error("a key must be 64 hexadecimal digits")]
    NotHex,
    /// A key of a ring has no id.
    #[error("expected id:key, more of them separated by commas")]
    NoId,
    /// An id is out of range.
    #[error("the id of a key must be a number from 1 to 255")]
    Id,
    /// A ring has two keys with the same id.
    #[error("two keys have the id {0}")]
    RepeatedId(u8),
}

/// A secret key of 32 bytes, wiped from memory when the last clone is dropped.
#[derive(Clone)]
pub struct Key(Arc<SecretBox<[u8; LENGTH]>>);

impl Key {
    /// Wraps the bytes of a key.
    #[must_use]
    pub fn new(bytes: [u8; LENGTH]) -> Self {
        Self(Arc::new(SecretBox::new(Box::new(bytes))))
    }

    /// Returns the bytes of the key.
    #[must_use]
    pub fn bytes(&self) -> &[u8; LENGTH] {
        self.0.expose_secret()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key(not shown)")
    }
}

impl FromStr for Key {
    type Err = KeyFault;

    fn from_str(text: &str) -> Result<Self, KeyFault> {
        let digits = text.as_bytes();
        if digits.len() != 2 * LENGTH {
            return Err(KeyFault::NotHex);
        }
        let mut bytes = [0; LENGTH];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self::new(bytes))
    }
}

fn nibble(digit: u8) -> Result<u8, KeyFault> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(KeyFault::NotHex),
    }
}

/// Keys with ids, for key rotation: the first one signs or encrypts, all of them verify or decrypt.
///
/// Written as `id:key[,id:key]`, with ids from 1 to 255 and keys of 64 hexadecimal digits.
#[derive(Debug, Clone)]
pub struct KeyRing {
    current: (u8, Key),
    previous: Arc<[(u8, Key)]>,
}

impl KeyRing {
    /// Returns the id and the key for new values.
    #[must_use]
    pub fn current(&self) -> (u8, &Key) {
        (self.current.0, &self.current.1)
    }

    /// Returns the key with that id.
    #[must_use]
    pub fn get(&self, id: u8) -> Option<&Key> {
        self.iter().find(|(other, _)| *other == id).map(|(_, key)| key)
    }

    /// Returns all keys with their ids, the current one first.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &Key)> {
        std::iter::once(&self.current).chain(self.previous.iter()).map(|(id, key)| (*id, key))
    }
}

impl FromStr for KeyRing {
    type Err = KeyFault;

    fn from_str(text: &str) -> Result<Self, KeyFault> {
        let mut keys: Vec<(u8, Key)> = Vec::new();
        for item in text.split(',') {
            let (id, key) = item.trim().split_once(':').ok_or(KeyFault::NoId)?;
            let id = id.parse().map_err(|_| KeyFault::Id)?;
            if id == 0 {
                return Err(KeyFault::Id);
            }
            if keys.iter().any(|(other, _)| *other == id) {
                return Err(KeyFault::RepeatedId(id));
            }
            keys.push((id, key.parse()?));
        }
        let previous = keys.split_off(1.min(keys.len()));
        let current = keys.pop().ok_or(KeyFault::NoId)?;
        Ok(Self { current, previous: previous.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONES: &str = "0101010101010101010101010101010101010101010101010101010101010101";
    const LETTERS: &str = "abCDabCDabCDabCDabCDabCDabCDabCDabCDabCDabCDabCDabCDabCDabCDabCD";

    #[test]
    fn the_first_key_is_current_and_get_finds_all() {
        let ring: KeyRing = format!("7:{ONES}, 255:{LETTERS}").parse().unwrap();
        assert_eq!(ring.current().0, 7);
        assert_eq!(ring.current().1.bytes(), &[1; 32]);
        assert_eq!(ring.get(7).unwrap().bytes(), &[1; 32]);
        assert_eq!(ring.get(255).unwrap().bytes()[..2], [0xab, 0xcd]);
        assert!(ring.get(1).is_none());
        assert_eq!(ring.iter().map(|(id, _)| id).collect::<Vec<_>>(), [7, 255]);
    }

    #[test]
    fn malformed_rings_are_rejected() {
        for (text, fault) in [
            (String::new(), KeyFault::NoId),
            (ONES.to_owned(), KeyFault::NoId),
            (format!("0:{ONES}"), KeyFault::Id),
            (format!("256:{ONES}"), KeyFault::Id),
            (format!("x:{ONES}"), KeyFault::Id),
            (format!("1:{}", &ONES[1..]), KeyFault::NotHex),
            (format!("1:g{}", &ONES[1..]), KeyFault::NotHex),
            (format!("1:{ONES},"), KeyFault::NoId),
            (format!("1:{ONES},1:{LETTERS}"), KeyFault::RepeatedId(1)),
        ] {
            assert_eq!(text.parse::<KeyRing>().map(drop), Err(fault), "{text}");
        }
    }

    #[test]
    fn debug_output_never_shows_a_key() {
        let ring: KeyRing = format!("1:{ONES}").parse().unwrap();
        let shown = format!("{ring:?}");
        assert!(
            !shown.contains("01, 1") && !shown.contains("1, 1") && shown.contains("not shown"),
            "{shown}"
        );
    }
}
