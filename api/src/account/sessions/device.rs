//! The cookie of a browser in which a member has signed in before.
//!
//! It is no way in. Attempts to sign in from such a browser have a limit of their own, so that somebody else's wrong
//! passwords cannot lock the member out.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::Utc;
use http::{HeaderMap, HeaderValue};
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use super::cookie::single;
use super::deployment_hash::deployment_hash;
use crate::app::App;

/// The cookie's name.
const NAME: &str = "hopline_device";

/// Seconds for which a browser keeps it: a year.
const MAX_AGE: u32 = 365 * 24 * 3_600;

/// Returns the value of `Set-Cookie` that makes a browser known for a member, until the password is another one.
pub(super) fn cookie(app: &App, user: Uuid, password_hash: &str, is_secure: bool) -> HeaderValue {
    let secure = if is_secure { "; Secure" } else { "" };
    let device = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>());
    let until = (Utc::now().timestamp() + i64::from(MAX_AGE)).to_string();
    let signature = sign(app, user, password_hash, &device, &until);
    let text = format!(
        "{NAME}={device}.{until}.{signature}; Path=/app; Max-Age={MAX_AGE}; HttpOnly; SameSite=Lax{secure}"
    );
    // Base 64 and our own words are always a header value.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

/// Returns the name of the browser, if it is known for a member with this password.
pub(super) fn known<'a>(
    app: &App,
    user: Uuid,
    password_hash: &str,
    headers: &'a HeaderMap,
) -> Option<&'a str> {
    let mut parts = single(headers, NAME)?.split('.');
    let (device, until, signature) = (parts.next()?, parts.next()?, parts.next()?);
    let is_signed = sign(app, user, password_hash, device, until).as_bytes().ct_eq(signature.as_bytes());
    let is_over = until.parse::<i64>().ok()? <= Utc::now().timestamp();
    (bool::from(is_signed) && !is_over && parts.next().is_none()).then_some(device)
}

fn sign(app: &App, user: Uuid, password_hash: &str, device: &str, until: &str) -> String {
    // No part but the last one has a blank.
    let text = format!("{user} {device} {until} {password_hash}");
    URL_SAFE_NO_PAD.encode(deployment_hash(app, "device", text.as_bytes()))
}
