//! The cookie of a browser in which a member has signed in before.
//!
//! It is no way in. Attempts to sign in from such a browser have a limit of their own, so that somebody else's wrong
//! passwords cannot lock the member out.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
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

/// Returns the value of `Set-Cookie` that makes a browser known for a member.
pub(super) fn cookie(app: &App, user: Uuid, is_secure: bool) -> HeaderValue {
    let secure = if is_secure { "; Secure" } else { "" };
    let value = sign(app, user, &URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>()));
    let text = format!("{NAME}={value}; Path=/app; Max-Age={MAX_AGE}; HttpOnly; SameSite=Lax{secure}");
    // Base 64 and our own words are always a header value.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

/// Returns the name of the browser, if it is known for a member.
pub(super) fn known<'a>(app: &App, user: Uuid, headers: &'a HeaderMap) -> Option<&'a str> {
    let value = single(headers, NAME)?;
    let (device, _) = value.split_once('.')?;
    bool::from(sign(app, user, device).as_bytes().ct_eq(value.as_bytes())).then_some(device)
}

fn sign(app: &App, user: Uuid, device: &str) -> String {
    let text = [user.as_bytes(), device.as_bytes()].concat();
    format!("{device}.{}", URL_SAFE_NO_PAD.encode(deployment_hash(app, "device", &text)))
}
