//! The signature by which a receiver verifies requests.
//!
//! `X-Service-Signature: t=<unix seconds>,v1=<hex>`, where the hex is HMAC-SHA256, keyed with the UTF-8 bytes of the
//! displayed secret, over the decimal `t`, a full stop and the exact bytes of the body. While a secret is being
//! replaced there are two, `t=...,v1=<hex>,v1=<hex>`: the new secret's first, then the former one's.

use std::fmt::Write as _;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Returns the header's value for a body sent at `t`, in Unix seconds, signed with each of the secrets.
#[must_use]
pub(crate) fn header<'a>(secrets: impl IntoIterator<Item = &'a str>, t: i64, body: &[u8]) -> String {
    let mut value = format!("t={t}");
    for secret in secrets {
        value.push_str(",v1=");
        for byte in mac(secret, t, body) {
            // Writing to a String does not fail.
            let _ = write!(value, "{byte:02x}");
        }
    }
    value
}

fn mac(secret: &str, t: i64, body: &[u8]) -> [u8; 32] {
    let mut state =
        Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
    state.update(t.to_string().as_bytes());
    state.update(b".");
    state.update(body);
    state.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Secret, time, body, hex; computed with other implementations.
    const VECTORS: [(&str, i64, &str, &str); 4] = [
        (
            "whsec_test_secret",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
            "10c96c6fd3f320fcfc264cdc4f476c15060ede8e8a08404cea2ddf3b72544a9c",
        ),
        ("whsec_test_secret", 1, "", "72a0d5db585ba2c43502db342967281f0d98f88ad9a739d64b64b0e90ec5b49c"),
        (
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            1_760_000_000,
            r#"{"id":"018f6a3e-7c1b-5b7e-9a51-2f1d3c4b5a69","event":"link.updated","created_at":"2025-10-09T08:53:20.123Z","data":{"name":"Café ☕ – 日本"}}"#,
            "c2597ec5ea483c989468c32830eedae52209a407888b58fbbc5a1a157bd380f4",
        ),
        (
            "secret",
            1_636_936_200,
            "hello !",
            "1b3d69df55f1e52f05224ba94a5162abeb17ef52cd7f4948c390f810d6a87e98",
        ),
    ];

    #[test]
    fn every_test_vector_has_the_expected_signature() {
        for (secret, t, body, hex) in VECTORS {
            assert_eq!(header([secret], t, body.as_bytes()), format!("t={t},v1={hex}"));
        }
    }

    #[test]
    fn two_secrets_give_two_signatures_of_one_time() {
        let [one, two] = ["new", "former"].map(|secret| header([secret], 7, b"body"));
        let both = header(["new", "former"], 7, b"body");
        assert_eq!(both, format!("{one},{}", two.strip_prefix("t=7,").unwrap()));
    }

    #[test]
    fn a_different_body_or_time_changes_the_signature() {
        let signed = header(["secret"], 1, b"body");
        assert_ne!(header(["secret"], 1, b"bodx"), signed);
        assert_ne!(
            header(["secret"], 2, b"body").split_once(',').unwrap().1,
            signed.split_once(',').unwrap().1
        );
    }
}
