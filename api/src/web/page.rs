//! Pages of lists: their size, and the cursor to the next one.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use service::http::{ApiError, Code};
use sha2::{Digest as _, Sha256};

/// Longest accepted cursor, in bytes; a name of 200 four-byte characters gives 1,200.
const MAX_CURSOR: usize = 2_048;

/// Bytes of a cursor's checksum.
const CHECKSUM_LEN: usize = 4;

/// The query of a list that is only paged.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paging {
    pub(crate) limit: Option<String>,
    pub(crate) cursor: Option<String>,
}

impl Paging {
    /// Returns the page's limit, and the place of the last row of the page before. `rows` names the list's rows.
    ///
    /// # Errors
    /// 400 for an invalid limit, or a text that is no place of this list.
    pub(crate) fn parse<T: DeserializeOwned>(&self, rows: &str) -> Result<(usize, Option<T>), ApiError> {
        let limit = parse_limit(self.limit.as_deref())?;
        let parse = |text| decode_cursor(text).ok_or_else(|| invalid_cursor(rows));
        Ok((limit, self.cursor.as_deref().map(parse).transpose()?))
    }
}

/// Returns the 400 for a text that is no place of a list.
pub(crate) fn invalid_cursor(rows: &str) -> ApiError {
    ApiError::invalid_field("cursor", format!("is not a cursor of a list of {rows}"))
}

/// Removes the row beyond the limit, which was read to know whether there is a next page. If there is, returns the
/// page's last row.
pub(crate) fn cut<T>(rows: &mut Vec<T>, limit: usize) -> Option<&T> {
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    rows.last().filter(|_| has_more)
}

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
    fn a_cursor_round_trips_and_a_damaged_one_is_rejected() {
        let id = uuid::Uuid::now_v7();
        let good = encode_cursor(&id);
        assert_eq!(decode_cursor(&good), Some(id));
        for place in 0..good.len() {
            let mut mangled = good.clone();
            mangled.replace_range(place..=place, if &good[place..=place] == "x" { "y" } else { "x" });
            assert_eq!(decode_cursor::<uuid::Uuid>(&mangled), None, "{place}");
        }
        for bad in ["", "x", &good[1..], &format!("{good}A"), &"A".repeat(10_000), &"é".repeat(13)] {
            assert_eq!(decode_cursor::<uuid::Uuid>(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_page_ends_at_its_limit_and_knows_whether_it_is_the_last() {
        let page = |limit: usize| {
            let mut rows = vec![1, 2, 3];
            let last = cut(&mut rows, limit).copied();
            (rows, last)
        };
        assert_eq!(page(2), (vec![1, 2], Some(2)));
        assert_eq!(page(3), (vec![1, 2, 3], None));
        assert_eq!(page(4), (vec![1, 2, 3], None));
    }

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
