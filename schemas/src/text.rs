//! Text that borrows from the JSON it was read from.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer};

/// Text that borrows from its JSON, unless it contains an escape.
///
/// Not a plain `Cow`: serde copies one inside an `Option`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text<'a>(Cow<'a, str>);

impl AsRef<str> for Text<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text)))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_borrowed_unless_it_has_escapes() {
        let plain: Option<Text<'_>> = serde_json::from_str("\"plain ü\"").unwrap();
        assert!(matches!(plain, Some(Text(Cow::Borrowed("plain ü")))));
        let escaped: Text<'_> = serde_json::from_str(r#""a\u00fcb\n""#).unwrap();
        assert!(matches!(&escaped.0, Cow::Owned(text) if text == "aüb\n"));
        assert!(serde_json::from_str::<Text<'_>>("7").is_err());
    }
}
