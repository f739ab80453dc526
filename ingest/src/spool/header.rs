//! What a segment file begins with.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | what the file is |
//! | 4 | version of the format, little endian |
//! | 4 | CRC-32 of these twelve bytes, little endian |
//! | 8 | a random number that is this segment's alone |
//! | 4 | CRC-32 of that number, little endian |
//!
//! The first sixteen bytes are the same in every version, so that each build can tell a segment of another one from
//! a damaged one.

/// Bytes of a header.
pub(super) const LEN: usize = 28;

const MAGIC: [u8; 8] = *b"hopspool";

/// The version of segments that this build reads and writes: what the module `record` says of records, and this.
const VERSION: u32 = 1;

/// What the first bytes of a file say about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// A segment, with its number unless that is damaged.
    Segment(Option<u64>),
    /// A segment of a build that writes it differently.
    Foreign(u32),
    /// Nothing certain.
    Damaged,
}

/// Returns the header of the segment with that number of its own.
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

/// Reads the header that some bytes begin with.
pub(super) fn decode(bytes: &[u8]) -> Header {
    version(bytes).map_or(Header::Damaged, |version| {
        if version == VERSION { Header::Segment(nonce(bytes)) } else { Header::Foreign(version) }
    })
}

fn version(bytes: &[u8]) -> Option<u32> {
    let version = u32::from_le_bytes(checked(bytes, 12)?.strip_prefix(&MAGIC)?.try_into().ok()?);
    Some(version)
}

fn nonce(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(checked(bytes.get(16..)?, 8)?.try_into().ok()?))
}

/// Returns the first bytes if the checksum behind them is theirs.
fn checked(bytes: &[u8], len: usize) -> Option<&[u8]> {
    let (content, rest) = bytes.split_at_checked(len)?;
    (crc32fast::hash(content).to_le_bytes() == *rest.first_chunk()?).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_fixed_because_an_upgrade_must_read_what_was_left_behind() {
        let mut expected = b"hopspool\x01\x00\x00\x00".to_vec();
        expected.extend(crc32fast::hash(b"hopspool\x01\x00\x00\x00").to_le_bytes());
        expected.extend([7, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend(crc32fast::hash(&[7, 0, 0, 0, 0, 0, 0, 0]).to_le_bytes());
        assert_eq!(encode(7)[..], expected);
    }

    #[test]
    fn another_version_is_told_from_damage() {
        let mut bytes = encode(7);
        assert_eq!(decode(&bytes), Header::Segment(Some(7)));
        bytes[8] = 9;
        assert_eq!(decode(&bytes), Header::Damaged);
        let sum = crc32fast::hash(&bytes[..12]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(decode(&bytes), Header::Foreign(9));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
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
