//! Checks the signature of a webhook. Needs the crates `hmac` 0.13 and `sha2` 0.11: Rust's standard library has no
//! HMAC.
//!
//! ```sh
//! WEBHOOK_SECRET=whsec_... cargo run -p dispatcher --example verify -- "$X_SERVICE_SIGNATURE" < body
//! ```
//!
//! Prints `verified` and exits with 0, or `NOT VERIFIED` and 1. A second argument is the time to judge by, in Unix
//! seconds.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;
use std::time::SystemTime;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// A signed request that is older (or newer) than this is refused: somebody may have recorded it.
const TOLERANCE_SECONDS: u64 = 300;

/// Tells whether `header` signs the bytes `body` with `secret`, at about the time `now` in Unix seconds.
///
/// The header is `t=<unix seconds>,v1=<hex>`; while a secret is being rotated it has a second `v1`. The body must be
/// the bytes as they came: JSON that was parsed and written again may differ.
fn verify(secret: &str, header: &str, body: &[u8], now: u64) -> bool {
    let parts = || header.split(',').filter_map(|part| part.split_once('='));
    let mut times = parts().filter(|(name, _)| *name == "t").map(|(_, value)| value);
    let (Some(time), None) = (times.next(), times.next()) else { return false };
    // A number that is parsed may have a plus sign.
    if time.len() > 14 || !time.bytes().all(|byte| byte.is_ascii_digit()) {
        return false;
    }
    if !time.parse::<u64>().is_ok_and(|time| now.abs_diff(time) <= TOLERANCE_SECONDS) {
        return false;
    }
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else { return false };
    mac.update(time.as_bytes());
    mac.update(b".");
    mac.update(body);
    // verify_slice takes the same time wherever the first difference is.
    let matches =
        |signature: &str| bytes(signature).is_some_and(|given| mac.clone().verify_slice(&given).is_ok());
    parts().filter(|(name, value)| *name == "v1" && matches(value)).count() > 0
}

/// Reads lower-case hexadecimal digits, two for each byte.
fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex
        .bytes()
        .map(|byte| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        })
        .collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let header = arguments.next().unwrap_or_default();
    let now = match arguments.next() {
        Some(now) => now.parse()?,
        None => SystemTime::UNIX_EPOCH.elapsed()?.as_secs(),
    };
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body)?;
    let verified = verify(&std::env::var("WEBHOOK_SECRET")?, &header, &body, now);
    writeln!(std::io::stdout(), "{}", if verified { "verified" } else { "NOT VERIFIED" })?;
    Ok(if verified { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
