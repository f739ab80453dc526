//! What Postgres stores of a password.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use crate::{Error, random};

/// Returns the verifier of a password of letters and digits, of one iteration (RFC 5802, section 3, in the form of
/// Postgres' `pg_authid.rolpassword`).
///
/// Iterations protect secrets, and the passwords of tests are none. The usual 4,096 take a client without optimisation
/// 40 ms for each connection.
pub(super) fn of(password: &str) -> Result<String, Error> {
    let salt = random::bytes::<16>()?;
    let salted = mac(password.as_bytes(), &[&salt[..], &1_u32.to_be_bytes()].concat());
    let stored = Sha256::digest(mac(&salted, b"Client Key"));
    let server = mac(&salted, b"Server Key");
    let [salt, stored, server] = [&salt[..], &stored, &server].map(|bytes| BASE64_STANDARD.encode(bytes));
    Ok(format!("SCRAM-SHA-256$1:{salt}${stored}:{server}"))
}

fn mac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of HMAC has any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}
