//! Hashes that only this deployment can make.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::app::App;

/// The block size of SHA-256; HMAC pads a shorter key with zeros.
const BLOCK: usize = 64;

/// Returns the HMAC-SHA-256 of a text under the deployment's key, which all instances share. `purpose` separates uses.
pub(super) fn deployment_hash(app: &App, purpose: &str, text: &[u8]) -> [u8; 32] {
    let (_, key) = app.secret_keys.current();
    let mut block = [0; BLOCK];
    block[..key.bytes().len()].copy_from_slice(key.bytes());
    let mut mac = Hmac::<Sha256>::new(&block.into());
    for part in [b"hopline ", purpose.as_bytes(), b"\0", text] {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}
