//! The types of ClickHouse's `RowBinary` that the rows use.
//!
//! Source: the ClickHouse reference, "RowBinary": numbers are little endian, a string follows its length as LEB128, a
//! UUID is two little-endian 64-bit halves with the high one first, a `DateTime64(3)` is signed milliseconds.

use chrono::{DateTime, Utc};
use uuid::Uuid;

pub(super) fn uuid(out: &mut Vec<u8>, value: Uuid) {
    let (high, low) = value.as_u64_pair();
    out.extend_from_slice(&high.to_le_bytes());
    out.extend_from_slice(&low.to_le_bytes());
}

pub(super) fn millis(out: &mut Vec<u8>, value: DateTime<Utc>) {
    out.extend_from_slice(&value.timestamp_millis().to_le_bytes());
}

pub(super) fn text(out: &mut Vec<u8>, value: &str) {
    let mut rest = value.len();
    while rest >= 0x80 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
    out.extend_from_slice(value.as_bytes());
}

/// Writes a missing value as an empty string: half the size of a `Nullable`, and no column has empty values otherwise.
pub(super) fn optional_text(out: &mut Vec<u8>, value: Option<&impl AsRef<str>>) {
    text(out, value.map(AsRef::as_ref).unwrap_or_default());
}

/// Reads the output of [`uuid`].
pub(super) fn read_uuid(bytes: &[u8]) -> Uuid {
    let half = |at| u64::from_le_bytes(array(bytes, at));
    Uuid::from_u64_pair(half(0), half(8))
}

/// Reads the output of [`text`].
pub(super) fn read_text(bytes: &[u8]) -> &str {
    let (mut len, mut at) = (0, 0);
    loop {
        len |= usize::from(bytes[at] & 0x7f) << (7 * at);
        at += 1;
        if bytes[at - 1] < 0x80 {
            break;
        }
    }
    str::from_utf8(&bytes[at..at + len]).unwrap_or_default()
}

/// Returns the `N` bytes at `at`.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_above_127_takes_two_bytes() {
        let mut out = Vec::new();
        text(&mut out, &"x".repeat(300));
        assert_eq!(&out[..3], &[0xac, 0x02, b'x']);
        assert_eq!(out.len(), 302);
        assert_eq!(read_text(&out).len(), 300);
    }

    #[test]
    fn a_uuid_is_two_little_endian_halves_high_one_first() {
        let mut out = Vec::new();
        let value = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
        uuid(&mut out, value);
        assert_eq!(read_uuid(&out), value);
        assert_eq!(
            out,
            [0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 0x88]
        );
    }
}
