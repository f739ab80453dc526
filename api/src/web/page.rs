//! Pages of lists: their size, and the cursor to the next one.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use service::http::{ApiError, Code};
use sha2::{Digest as _, Sha256};

/// Longest accepted cursor, in bytes; a name of 200 four-byte characters gives 1,200.
const MAX_CURSOR: usize = 2_048;

/// Bytes of a cursor's checksum.
const CHECKSUM_LEN: usize = 4;

/// Parses a `limit`: 1 to 100, 50 by default. A larger one is an error, never silently cut.
pub(crate) fn parse_limit(text: Option<&str>) -> Result<usize, ApiError> {
    let Some(text) = text else { return Ok(50) };
    // Only digits: `parse` would accept a plus sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(limit @ 1..=100) if digits => Ok(limit),
        _ => {
            let fault = ("limit".to_owned(), "must be a whole number from 1 to 100".to_owned());
            Err(ApiError::invalid_fields(Code::InvalidLimit, [fault]))
        }
    }
}

/// Encodes a place in an order as opaque text.
///
/// A checksum detects damaged cursors. A cursor is neither secret nor permission: the page is read from the caller's
/// own workspace.
pub(crate) fn encode_cursor<T: Serialize>(place: &T) -> String {
    // Numbers, strings and ids always become JSON.
    let mut bytes = serde_json::to_vec(place).unwrap_or_default();
    bytes.extend(checksum(&bytes));
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes a place; `None` for text that [`encode_cursor`] did not write.
pub(crate) fn decode_cursor<T: DeserializeOwned>(text: &str) -> Option<T> {
    if text.len() > MAX_CURSOR {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (json, sum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM_LEN)?)?;
    if sum != checksum(json) {
        return None;
    }
    serde_json::from_slice(json).ok()
}

/// The checksum of a cursor's JSON.
pub(crate) fn checksum(json: &[u8]) -> [u8; CHECKSUM_LEN] {
    let digest = Sha256::digest(json);
    [digest[0], digest[1], digest[2], digest[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_from_1_to_100() {
        assert_eq!(parse_limit(None).unwrap(), 50);
        assert_eq!(parse_limit(Some("1")).unwrap(), 1);
        assert_eq!(parse_limit(Some("100")).unwrap(), 100);
        for bad in ["0", "101", "abc", "", "-1", "+5", "1.5", "99999999999999999999", " 5"] {
            assert!(parse_limit(Some(bad)).is_err(), "{bad}");
        }
    }
}
