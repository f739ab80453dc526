//! Prefixed ids: UUID v7 inside, text such as `lnk_01j9…` outside.
//!
//! The text after the prefix is the UUID's 128 bits in Crockford's base 32, lower case, 26 characters, most
//! significant bits first. It sorts like the UUID, so by time of creation, and survives a double click.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

/// Crockford's alphabet: no i, l, o, u.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Characters that 128 bits take at 5 bits each.
const TEXT_LEN: usize = 26;

/// The error for text that is not an id of the expected kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be an ID: `{prefix}_` and 26 characters of base 32")]
pub struct InvalidId {
    prefix: &'static str,
}

/// Maps each byte to its base 32 value, or to [`NOT_IN_ALPHABET`].
const VALUES: [u8; 256] = {
    let mut values = [NOT_IN_ALPHABET; 256];
    let mut index = 0;
    while index < ALPHABET.len() {
        values[ALPHABET[index] as usize] = index as u8;
        index += 1;
    }
    values
};

const NOT_IN_ALPHABET: u8 = u8::MAX;

fn write_base32(uuid: Uuid, out: &mut [u8; TEXT_LEN]) {
    let bits = uuid.as_u128();
    for (index, byte) in out.iter_mut().enumerate() {
        let shift = 5 * (TEXT_LEN - 1 - index);
        *byte = ALPHABET[((bits >> shift) & 31) as usize];
    }
}

fn read_base32(text: &[u8]) -> Option<Uuid> {
    // 26 × 5 = 130 bits: a first character above 7 would not fit into 128.
    if text.len() != TEXT_LEN || text[0] > b'7' {
        return None;
    }
    let mut bits: u128 = 0;
    for byte in text {
        let value = VALUES[usize::from(*byte)];
        if value == NOT_IN_ALPHABET {
            return None;
        }
        bits = (bits << 5) | u128::from(value);
    }
    Some(Uuid::from_u128(bits))
}

macro_rules! prefixed_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Uuid);

        impl $name {
            /// Wraps a UUID.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The UUID inside.
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut text = [0; TEXT_LEN];
                write_base32(self.0, &mut text);
                // Never lossy: the alphabet is ASCII.
                write!(f, "{}_{}", $prefix, String::from_utf8_lossy(&text))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                text.strip_prefix(concat!($prefix, "_"))
                    .and_then(|rest| read_base32(rest.as_bytes()))
                    .map(Self)
                    .ok_or(InvalidId { prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl de::Visitor<'_> for Text {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("an ID that begins with ", $prefix, "_"))
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
    };
}

prefixed_id!(
    /// Identifies an account, which has a plan.
    AccountId,
    "acc"
);
prefixed_id!(
    /// Identifies a workspace, which an API key belongs to.
    WorkspaceId,
    "wsp"
);
prefixed_id!(
    /// Identifies a member of an account.
    UserId,
    "usr"
);
prefixed_id!(
    /// Identifies an API key; it is not the key.
    KeyId,
    "key"
);
prefixed_id!(
    /// Identifies a link permanently; a slug may move to another link.
    LinkId,
    "lnk"
);
prefixed_id!(
    /// Identifies a conversion.
    ConversionId,
    "cnv"
);
prefixed_id!(
    /// Identifies a webhook endpoint.
    EndpointId,
    "whe"
);
prefixed_id!(
    /// Identifies an edge token; it is not the token.
    EdgeTokenId,
    "edg"
);
prefixed_id!(
    /// Identifies a session; it is not its token.
    SessionId,
    "ses"
);
prefixed_id!(
    /// Identifies an import of links.
    ImportId,
    "imp"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_round_trips_through_text_and_json() {
        for bits in [0, 1, u128::MAX, 0x0192_6f3e_7c1b_7b7e_9a51_2f1d_3c4b_5a69] {
            let id = LinkId::from_uuid(Uuid::from_u128(bits));
            let text = id.to_string();
            assert_eq!(text.len(), 30);
            assert_eq!(text.parse::<LinkId>(), Ok(id));
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!(serde_json::from_str::<LinkId>(&json).unwrap(), id);
        }
    }

    #[test]
    fn the_text_form_is_fixed() {
        let id = LinkId::from_uuid(Uuid::from_u128(0x0192_6f3e_7c1b_7b7e_9a51_2f1d_3c4b_5a69));
        assert_eq!(id.to_string(), "lnk_01j9qkwz0vfdz9mm9f3my4ppk9");
    }

    #[test]
    fn the_text_form_sorts_like_the_uuid() {
        let earlier = LinkId::from_uuid(Uuid::from_u128(1 << 90)).to_string();
        let later = LinkId::from_uuid(Uuid::from_u128((1 << 90) + 1)).to_string();
        assert!(earlier < later);
    }

    #[test]
    fn invalid_ids_are_rejected() {
        let good = LinkId::from_uuid(Uuid::from_u128(7)).to_string();
        for bad in [
            "",
            "lnk_",
            "lnk",
            &good[4..],
            &good.replace("lnk_", "cnv_"),
            &good.to_uppercase(),
            &format!("{good}0"),
            &good[..29],
            &good.replacen("lnk_0", "lnk_8", 1),
            &good.replacen("00", "0u", 1),
            "lnk_ééééééééééééé",
        ] {
            assert!(bad.parse::<LinkId>().is_err(), "{bad}");
        }
    }
}
