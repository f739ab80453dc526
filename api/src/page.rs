//! Pages of lists: how long one is.

use service::http::ApiError;

/// Reads a `limit`: 1 to 100, 50 when not given. More is refused and never silently cut.
pub(crate) fn parse_limit(text: Option<&str>) -> Result<usize, ApiError> {
    let Some(text) = text else { return Ok(50) };
    // Digits alone: a number that is parsed may have a plus sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(limit @ 1..=100) if digits => Ok(limit),
        _ => {
            let message = "must be a whole number from 1 to 100";
            Err(ApiError::invalid_limit(format!("limit {message}")).with_detail("limit", message))
        }
    }
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
