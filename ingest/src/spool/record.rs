//! The format of a click in a segment file, and how to find the next one after damaged bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | marker, by which a reader finds the next record after damage |
//! | 4 | CRC-32 of length, body and index, in this order |
//! | 4 | length of the body |
//! | 4 | index: the number of records before this one in the segment |
//! | 8 | body: when the click was answered, in milliseconds since 1970 |
//! | 4 | body: partition |
//! | 1 | body: length of the key |
//! | n | body: key, then value |
//! | 1 | body: a line feed |
//!
//! Numbers are little endian. The last record of a segment is followed by zeroes. The line feed makes sure that a
//! record does not end in a zero, so that the end of the last record can be found.

use std::io;

use crc32fast::Hasher;

/// The beginning of each record. The last byte is the version of this layout.
///
/// It is a control character, which JSON escapes, so a visitor cannot put a marker into a value.
const MARKER: [u8; 4] = *b"clk\x01";

/// The length of the part before the body.
const HEADER_LEN: usize = 16;

/// The length of the part of the body before the key.
const BODY_HEADER_LEN: usize = 13;

/// The last byte of each record.
const TRAILER: u8 = b'\n';

/// The length of the smallest record, in bytes.
pub const MIN_LEN: usize = HEADER_LEN + BODY_HEADER_LEN + 1;

/// The length of the largest record, in bytes. The fields of a click are truncated to far less.
pub const MAX_LEN: usize = 128 * 1024;

/// A click to be sent to Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// When the click was answered, in milliseconds since 1970.
    pub at: i64,
    /// The partition, chosen when the click was answered. A repeat goes to the same one, so that it can be detected.
    pub partition: i32,
    /// The message's key.
    pub key: &'a [u8],
    /// The message's value.
    pub value: &'a [u8],
}

/// A record that is too large for the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a click of {0} bytes does not fit into a spool record")]
pub struct TooLarge(usize);

/// A reusable buffer with an encoded record. Its index is set when it is appended.
#[derive(Debug, Default)]
pub struct Encoded {
    bytes: Vec<u8>,
    at: i64,
    /// The checksum of everything but the index.
    sum: Hasher,
}

impl Encoded {
    /// Replaces the content with a record whose value is written by `value`.
    ///
    /// # Errors
    /// When `value` fails, or key or value are too long. The buffer is empty then.
    pub fn fill(
        &mut self,
        at: i64,
        partition: i32,
        key: &[u8],
        value: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let bytes = &mut self.bytes;
        bytes.clear();
        let key_len = u8::try_from(key.len()).map_err(|_| io::Error::other(TooLarge(key.len())))?;
        bytes.extend_from_slice(&MARKER);
        bytes.extend_from_slice(&[0; HEADER_LEN - MARKER.len()]);
        bytes.extend_from_slice(&at.to_le_bytes());
        bytes.extend_from_slice(&partition.to_le_bytes());
        bytes.push(key_len);
        bytes.extend_from_slice(key);
        let filled = value(bytes).and_then(|()| {
            bytes.push(TRAILER);
            let total = bytes.len();
            let length = u32::try_from(total - HEADER_LEN).ok().filter(|_| total <= MAX_LEN);
            length.ok_or_else(|| io::Error::other(TooLarge(total)))
        });
        let length = match filled {
            Ok(length) => length.to_le_bytes(),
            Err(error) => {
                bytes.clear();
                return Err(error);
            }
        };
        bytes[8..12].copy_from_slice(&length);
        self.sum = Hasher::new();
        self.sum.update(&length);
        self.sum.update(&bytes[HEADER_LEN..]);
        self.at = at;
        Ok(())
    }

    /// Returns the record's length in a segment, in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns when the click was answered, in milliseconds since 1970.
    pub(super) fn at(&self) -> i64 {
        self.at
    }

    /// Sets the index and returns the record's bytes.
    pub(super) fn with_index(&mut self, index: u32) -> &[u8] {
        if let Some(header) = self.bytes.first_chunk_mut::<HEADER_LEN>() {
            let index = index.to_le_bytes();
            let mut sum = self.sum.clone();
            sum.update(&index);
            header[4..8].copy_from_slice(&sum.finalize().to_le_bytes());
            header[12..].copy_from_slice(&index);
        }
        &self.bytes
    }
}

impl Record<'_> {
    /// Encodes the record.
    ///
    /// # Errors
    /// When key or value are too long.
    pub fn encode(&self) -> io::Result<Encoded> {
        let mut encoded = Encoded::default();
        encoded.fill(self.at, self.partition, self.key, |bytes| {
            bytes.extend_from_slice(self.value);
            Ok(())
        })?;
        Ok(encoded)
    }
}

/// A record that was found in a sequence of bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The record.
    pub record: Record<'a>,
    /// The number of records that were written before it in the segment.
    pub index: u32,
    /// The number of damaged bytes before it.
    pub skipped: usize,
    /// The number of bytes up to the record's end, damaged ones included.
    pub consumed: usize,
}

/// Finds the first valid record that begins in the first `limit` bytes.
pub fn find(bytes: &[u8], limit: usize) -> Option<Found<'_>> {
    (0..limit.min(bytes.len())).find_map(|skipped| {
        let (record, index, len) = read(&bytes[skipped..])?;
        Some(Found { record, index, skipped, consumed: skipped + len })
    })
}

/// Reads a record at the beginning of `bytes`; returns it with its index and length, or `None` if it is invalid.
fn read(bytes: &[u8]) -> Option<(Record<'_>, u32, usize)> {
    let rest = bytes.strip_prefix(&MARKER)?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (index, rest) = rest.split_first_chunk::<4>()?;
    let body_len = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    if body_len > MAX_LEN - HEADER_LEN {
        return None;
    }
    let body = rest.get(..body_len)?;
    let mut found = Hasher::new();
    found.update(length);
    found.update(body);
    found.update(index);
    if found.finalize() != u32::from_le_bytes(*sum) {
        return None;
    }
    let (at, body) = body.split_first_chunk::<8>()?;
    let (partition, body) = body.split_first_chunk::<4>()?;
    let (key_len, body) = body.split_first()?;
    let (key, value) = body.split_at_checked(usize::from(*key_len))?;
    let value = value.strip_suffix(&[TRAILER])?;
    let record =
        Record { at: i64::from_le_bytes(*at), partition: i32::from_le_bytes(*partition), key, value };
    Some((record, u32::from_le_bytes(*index), HEADER_LEN + body_len))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(value: &[u8]) -> Record<'_> {
        Record { at: 1_000, partition: 3, key: b"key", value }
    }

    fn encoded(value: &str, index: u32) -> Vec<u8> {
        record(value.as_bytes()).encode().unwrap().with_index(index).to_vec()
    }

    /// Reads all records; returns their values and the number of damaged ranges.
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
    fn the_record_layout_never_changes() {
        // An upgraded edge must read the segments of an earlier version.
        let bytes = encoded("v", 5);
        let expected = [
            &b"clk\x01"[..],
            // CRC-32 of length, body and index, computed with another implementation.
            &0xd71b_46c4_u32.to_le_bytes(),
            &[18, 0, 0, 0],
            &[5, 0, 0, 0],
            &[0xe8, 3, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0],
            b"\x03keyv\n",
        ]
        .concat();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn an_incomplete_last_record_is_ignored() {
        let mut bytes = [encoded("one", 0), encoded("two", 1)].concat();
        let whole = bytes.clone();
        for cut in 1..encoded("two", 1).len() {
            bytes.truncate(whole.len() - cut);
            assert_eq!(values(&bytes), (vec!["one".to_owned()], 1), "{cut} bytes short");
        }
    }

    #[test]
    fn a_flipped_bit_loses_only_its_record() {
        let whole = [encoded("one", 0), encoded("two", 1), encoded("three", 2)].concat();
        let (start, end) = (encoded("one", 0).len(), encoded("one", 0).len() + encoded("two", 1).len());
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
    fn a_record_that_is_too_large_is_rejected() {
        let value = vec![b'x'; MAX_LEN];
        assert!(record(&value).encode().is_err());
        assert!(Record { key: &[b'k'; 256], ..record(b"") }.encode().is_err());
        let largest = Record { key: b"", ..record(&value[..MAX_LEN - MIN_LEN]) };
        assert_eq!(largest.encode().unwrap().len(), MAX_LEN);

        let mut reused = record(b"before").encode().unwrap();
        assert!(reused.fill(0, 0, b"", |_| Err(io::ErrorKind::Other.into())).is_err());
        assert!(reused.is_empty() && reused.with_index(0).is_empty());
    }

    #[test]
    fn a_value_cannot_contain_a_marker() {
        let visitor_sends = String::from_utf8(MARKER.to_vec()).unwrap();
        let value = serde_json::to_vec(&visitor_sends).unwrap();
        assert!(!value.windows(MARKER.len()).any(|window| window == MARKER));
    }

    proptest! {
        #[test]
        fn a_record_is_found_after_any_bytes(
            damage in proptest::collection::vec(any::<u8>(), 0..64),
            index in any::<u32>(),
            at in any::<i64>(),
            partition in any::<i32>(),
            key in proptest::collection::vec(any::<u8>(), 0..255),
            value in proptest::collection::vec(any::<u8>(), 0..2_000),
        ) {
            let record = Record { at, partition, key: &key, value: &value };
            let bytes = [&damage[..], record.encode().unwrap().with_index(index)].concat();
            let found = find(&bytes, bytes.len()).unwrap();
            prop_assert_eq!(found.record, record);
            prop_assert_eq!(found.index, index);
            prop_assert_eq!((found.skipped, found.consumed), (damage.len(), bytes.len()));
        }
    }
}
