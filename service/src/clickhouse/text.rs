//! Texts of strangers in answers of ClickHouse.
//!
//! The client library takes a piece of an answer for an error of ClickHouse if it ends with `))\n` and has `Code:`,
//! `DB::` and `Exception:` before that (`extract_exception` of clickhouse 0.15.3), whatever tag the server gave its
//! errors. A visitor can write such a text into a query, and an answer of which a piece ends with it then fails; the
//! line break may also be the length of the next text, which is 10. In Base64 no text has a colon, so statements encode
//! texts that others wrote.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Returns the SQL of a text that others wrote; the field that it is read into has
/// `#[serde(deserialize_with = "service::clickhouse::text::decoded")]`.
#[must_use]
pub fn encoded(expression: &str) -> String {
    format!("base64Encode({expression})")
}

/// Reads a text that was selected [`encoded`].
///
/// # Errors
/// When it is not UTF-8 in Base64.
pub fn decoded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let encoded = <&str>::deserialize(deserializer)?;
    let bytes = BASE64_STANDARD.decode(encoded).map_err(D::Error::custom)?;
    String::from_utf8(bytes).map_err(D::Error::custom)
}
