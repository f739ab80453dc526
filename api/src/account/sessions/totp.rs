//! Time-based one-time passwords: RFC 6238 with SHA-1, 6 digits, 30 seconds, which every authenticator has.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha1::Sha1;
use subtle::ConstantTimeEq as _;

/// Bytes of a secret: as many as SHA-1 has, RFC 4226 section 4.
pub(super) const SECRET_LEN: usize = 20;

/// Seconds of a step.
const STEP: i64 = 30;

/// The alphabet of RFC 4648, in which authenticators take secrets.
const BASE_32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// Returns the step of a code, if it is one of now, of the step before or of the one after: clocks differ.
pub(super) fn step_of(secret: &[u8], code: &str, unix_seconds: i64) -> Option<i64> {
    let now = unix_seconds / STEP;
    [now, now - 1, now + 1]
        .into_iter()
        .find(|step| bool::from(code_at(secret, *step).as_bytes().ct_eq(code.as_bytes())))
}

/// Returns the code of a step: RFC 4226 section 5.3.
fn code_at(secret: &[u8], step: i64) -> String {
    let mut mac = Hmac::<Sha1>::new_from_slice(secret).expect("HMAC takes a key of any length");
    mac.update(&step.to_be_bytes());
    let digest = mac.finalize().into_bytes();
    let offset = usize::from(digest[19] & 15);
    let bytes = [digest[offset] & 0x7f, digest[offset + 1], digest[offset + 2], digest[offset + 3]];
    format!("{:06}", u32::from_be_bytes(bytes) % 1_000_000)
}

/// Returns a secret as people type it. Its length has to be a multiple of five bytes.
pub(super) fn base32(secret: &[u8]) -> String {
    let group = |bytes: &[u8]| {
        let bits = bytes.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        (0..8)
            .rev()
            .map(move |place| char::from(BASE_32[(bits >> (5 * place) & 31) as usize]))
            .collect::<String>()
    };
    secret.chunks_exact(5).map(group).collect()
}

/// Returns the URL that authenticators read from a QR code.
pub(super) fn otpauth_url(secret: &[u8], email: &str) -> String {
    let mut url = url::Url::parse("otpauth://totp/").expect("the text is a URL");
    url.set_path(&format!("Hopline:{email}"));
    url.query_pairs_mut().append_pair("secret", &base32(secret)).append_pair("issuer", "Hopline");
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_match_rfc_6238() {
        // Appendix B, cut to 6 digits.
        for (seconds, code) in
            [(59, "287082"), (1_111_111_109, "081804"), (1_234_567_890, "005924"), (20_000_000_000, "353130")]
        {
            let secret = b"12345678901234567890";
            assert_eq!(step_of(secret, code, seconds), Some(seconds / 30));
            assert_eq!(step_of(secret, code, seconds + 30), Some(seconds / 30), "a clock behind");
            assert_eq!(step_of(secret, code, seconds - 30), Some(seconds / 30), "a clock ahead");
            assert_eq!(step_of(secret, code, seconds + 90), None);
            assert_eq!(step_of(secret, &code[1..], seconds), None);
        }
    }

    #[test]
    fn a_secret_has_the_format_of_authenticators() {
        assert_eq!(base32(b"12345678901234567890"), "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ");
        let url = otpauth_url(b"12345678901234567890", "ada+b@example.com");
        assert_eq!(
            url,
            "otpauth://totp/Hopline:ada+b@example.com?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&issuer=Hopline"
        );
    }
}
