//! The header of a segment file.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | magic |
//! | 4 | version of the format, little endian |
//! | 4 | CRC-32 of the twelve bytes before, little endian |
//! | 8 | nonce: a random number of this segment, little endian |
//! | 4 | CRC-32 of the nonce, little endian |
//!
//! The first sixteen bytes have the same layout in every version, so that a build can distinguish another version from
//! damage.

/// The length of a header.
pub(super) const LEN: usize = 28;

const MAGIC: [u8; 8] = *b"hopspool";

/// The version of this header and of the records (module `record`) that this build reads and writes.
const VERSION: u32 = 1;

/// The decoded beginning of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// A segment with its nonce, unless the nonce is damaged.
    Segment(Option<u64>),
    /// A segment in a version that this build does not know.
    UnknownVersion(u32),
    /// Not a segment, or a damaged one.
    Damaged,
}

/// Returns the header of a segment.
pub(super) fn encode(nonce: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let sum = crc32fast::hash(&bytes[..12]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    bytes[16..24].copy_from_slice(&nonce.to_le_bytes());
    let sum = crc32fast::hash(&bytes[16..24]);
    bytes[24..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Decodes the header at the beginning of `bytes`.
pub(super) fn decode(bytes: &[u8]) -> Header {
    version(bytes).map_or(Header::Damaged, |version| {
        if version == VERSION { Header::Segment(nonce(bytes)) } else { Header::UnknownVersion(version) }
    })
}

fn version(bytes: &[u8]) -> Option<u32> {
    let version = u32::from_le_bytes(checked(bytes, 12)?.strip_prefix(&MAGIC)?.try_into().ok()?);
    Some(version)
}

fn nonce(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(checked(bytes.get(16..)?, 8)?.try_into().ok()?))
}

/// Returns the first `len` bytes if the checksum after them matches.
fn checked(bytes: &[u8], len: usize) -> Option<&[u8]> {
    let (content, rest) = bytes.split_at_checked(len)?;
    (crc32fast::hash(content).to_le_bytes() == *rest.first_chunk()?).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_layout_never_changes() {
        // An upgraded edge must read the segments of an earlier version.
        let mut expected = b"hopspool\x01\x00\x00\x00".to_vec();
        expected.extend(crc32fast::hash(b"hopspool\x01\x00\x00\x00").to_le_bytes());
        expected.extend([7, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend(crc32fast::hash(&[7, 0, 0, 0, 0, 0, 0, 0]).to_le_bytes());
        assert_eq!(encode(7)[..], expected);
    }

    #[test]
    fn another_version_is_distinguished_from_damage() {
        let mut bytes = encode(7);
        assert_eq!(decode(&bytes), Header::Segment(Some(7)));
        bytes[8] = 9;
        assert_eq!(decode(&bytes), Header::Damaged);
        let sum = crc32fast::hash(&bytes[..12]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(decode(&bytes), Header::UnknownVersion(9));
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        for byte in 0..LEN {
            for bit in 0..8 {
                let mut bytes = encode(7);
                bytes[byte] ^= 1 << bit;
                let expected = if byte < 16 { Header::Damaged } else { Header::Segment(None) };
                assert_eq!(decode(&bytes), expected, "bit {bit} of byte {byte}");
            }
        }
        assert_eq!(decode(&encode(7)[..20]), Header::Segment(None));
        assert_eq!(decode(b""), Header::Damaged);
    }
}
