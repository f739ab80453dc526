//! The parts of ClickHouse's `RowBinary` that our rows use.
//!
//! Source: the ClickHouse reference, "RowBinary": numbers little endian, strings after their length as LEB128,
//! a UUID as two little-endian 64-bit halves, the high one first, a `DateTime64(3)` as signed milliseconds.

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

/// A column that may be missing is an empty string: half the size of a `Nullable`, and no dimension has an
/// empty value of its own.
pub(super) fn optional_text(out: &mut Vec<u8>, value: Option<&impl AsRef<str>>) {
    text(out, value.map(AsRef::as_ref).unwrap_or_default());
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
    }

    #[test]
    fn a_uuid_is_two_little_endian_halves_the_high_one_first() {
        let mut out = Vec::new();
        uuid(&mut out, Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff));
        assert_eq!(
            out,
            [0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 0x88]
        );
    }
}
