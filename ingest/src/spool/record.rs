//! One click in a segment file, and how to find the next one when bytes in between are damaged.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | marker, so that a reader finds its way again after damage |
//! | 4 | length of the body, little endian |
//! | 4 | CRC-32 of the four bytes of length and the body |
//! | 4 | body: partition, little endian |
//! | 1 | body: length of the key |
//! | n | body: key, then value |

/// What each record begins with; the last byte is the version of this layout.
const MARKER: [u8; 4] = *b"clk\x01";

/// Bytes before the body.
const HEADER_LEN: usize = 12;

/// Bytes of a body before the key.
const BODY_HEADER_LEN: usize = 5;

/// Largest record, in bytes. Every field of a click is cut to a length that keeps it far below.
pub const MAX_LEN: usize = 128 * 1024;

/// A click as it goes to Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The partition chosen when the click was answered; a repeat goes there too, so that it meets the original.
    pub partition: i32,
    /// The message's key.
    pub key: &'a [u8],
    /// The message's value.
    pub value: &'a [u8],
}

/// A record that no segment may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a click of {0} bytes does not fit into a spool record")]
pub struct TooLarge(usize);

impl Record<'_> {
    /// Returns the bytes for the segment file.
    ///
    /// # Errors
    /// When key or value are longer than the layout allows.
    pub fn encode(&self) -> Result<Vec<u8>, TooLarge> {
        let body_len = BODY_HEADER_LEN + self.key.len() + self.value.len();
        let total = HEADER_LEN + body_len;
        let too_large = TooLarge(total);
        let key_len = u8::try_from(self.key.len()).map_err(|_| too_large)?;
        let length = u32::try_from(body_len).ok().filter(|_| total <= MAX_LEN).ok_or(too_large)?;
        let mut bytes = Vec::with_capacity(total);
        bytes.extend_from_slice(&MARKER);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.partition.to_le_bytes());
        bytes.push(key_len);
        bytes.extend_from_slice(self.key);
        bytes.extend_from_slice(self.value);
        let sum = checksum(&bytes[4..8], &bytes[HEADER_LEN..]);
        bytes[8..HEADER_LEN].copy_from_slice(&sum.to_le_bytes());
        Ok(bytes)
    }
}

/// The next good record of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The record.
    pub record: Record<'a>,
    /// How many damaged bytes stood before it.
    pub skipped: usize,
    /// How many bytes to go on from, damage included.
    pub consumed: usize,
}

/// Finds the first good record that begins in the first `limit` bytes.
pub fn find(bytes: &[u8], limit: usize) -> Option<Found<'_>> {
    (0..limit.min(bytes.len())).find_map(|skipped| {
        let (record, len) = read(&bytes[skipped..])?;
        Some(Found { record, skipped, consumed: skipped + len })
    })
}

/// Reads the record at the beginning of some bytes, and its length; `None` unless it is whole and unharmed.
fn read(bytes: &[u8]) -> Option<(Record<'_>, usize)> {
    let rest = bytes.strip_prefix(&MARKER)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let body_len = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    if body_len > MAX_LEN - HEADER_LEN {
        return None;
    }
    let body = rest.get(..body_len)?;
    if checksum(length, body) != u32::from_le_bytes(*sum) {
        return None;
    }
    let (partition, body) = body.split_first_chunk::<4>()?;
    let (key_len, body) = body.split_first()?;
    let (key, value) = body.split_at_checked(usize::from(*key_len))?;
    Some((Record { partition: i32::from_le_bytes(*partition), key, value }, HEADER_LEN + body_len))
}

fn checksum(length: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(length);
    hasher.update(body);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(value: &str) -> Vec<u8> {
        Record { partition: 3, key: b"key", value: value.as_bytes() }.encode().unwrap()
    }

    /// Reads everything the way a reader does; returns the values and the number of damaged stretches.
    fn values(mut bytes: &[u8]) -> (Vec<String>, usize) {
        let (mut values, mut damaged) = (Vec::new(), 0);
        while let Some(found) = find(bytes, bytes.len()) {
            damaged += usize::from(found.skipped > 0);
            values.push(String::from_utf8(found.record.value.to_vec()).unwrap());
            bytes = &bytes[found.consumed..];
        }
        (values, damaged + usize::from(!bytes.is_empty()))
    }

    #[test]
    fn the_layout_is_fixed_because_an_upgrade_must_read_what_was_left_behind() {
        let bytes = encoded("v");
        let expected = [b'c', b'l', b'k', 1, 9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 3, b'k', b'e', b'y', b'v'];
        assert_eq!(bytes[..8], expected[..8]);
        assert_eq!(bytes[12..], expected[12..]);
        // CRC-32 of the length and the body, computed with another implementation.
        assert_eq!(u32::from_le_bytes(bytes[8..12].try_into().unwrap()), 0x136c6500);
    }

    #[test]
    fn a_torn_last_record_is_not_a_record() {
        let mut bytes = [encoded("one"), encoded("two")].concat();
        let whole = bytes.clone();
        for cut in 1..encoded("two").len() {
            bytes.truncate(whole.len() - cut);
            assert_eq!(values(&bytes), (vec!["one".to_owned()], 1), "{cut} bytes short");
        }
    }

    #[test]
    fn every_flipped_bit_costs_one_record_and_no_other() {
        let whole = [encoded("one"), encoded("two"), encoded("three")].concat();
        let (start, end) = (encoded("one").len(), encoded("one").len() + encoded("two").len());
        for byte in start..end {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[byte] ^= 1 << bit;
                assert_eq!(
                    values(&bytes),
                    (vec!["one".to_owned(), "three".to_owned()], 1),
                    "bit {bit} of byte {byte}"
                );
            }
        }
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let value = vec![b'x'; MAX_LEN];
        assert!(Record { partition: 0, key: b"k", value: &value }.encode().is_err());
        assert!(Record { partition: 0, key: &[b'k'; 256], value: b"" }.encode().is_err());
        assert_eq!(
            Record { partition: 0, key: b"", value: &value[..MAX_LEN - HEADER_LEN - BODY_HEADER_LEN] }
                .encode()
                .map(|bytes| bytes.len()),
            Ok(MAX_LEN)
        );
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_read_after_whatever_stood_before(
            damage in proptest::collection::vec(any::<u8>(), 0..64),
            partition in any::<i32>(),
            key in proptest::collection::vec(any::<u8>(), 0..255),
            value in proptest::collection::vec(any::<u8>(), 0..2_000),
        ) {
            let record = Record { partition, key: &key, value: &value };
            let bytes = [damage.clone(), record.encode().unwrap()].concat();
            let found = find(&bytes, bytes.len()).unwrap();
            prop_assert_eq!(found.record, record);
            prop_assert_eq!((found.skipped, found.consumed), (damage.len(), bytes.len()));
        }
    }
}
