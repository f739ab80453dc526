//! The cookie that holds a session's token.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};
use sha2::{Digest as _, Sha256};

use crate::app::App;
use crate::web::limits::Visit;

/// The cookie's name.
const NAME: &str = "hopline_session";

/// Bytes of a token.
const TOKEN_LEN: usize = 32;

/// Seconds for which a browser keeps the cookie: the longest life of a session.
const MAX_AGE: u32 = 30 * 24 * 3_600;

/// A `Set-Cookie`: a token, or its removal.
pub(crate) struct Cookie {
    token: Option<String>,
    is_secure: bool,
}

impl Cookie {
    /// Draws a token. With `is_secure` browsers send it only over TLS.
    pub(super) fn draw(is_secure: bool) -> Self {
        Self { token: Some(URL_SAFE_NO_PAD.encode(rand::random::<[u8; TOKEN_LEN]>())), is_secure }
    }

    /// Removes the token.
    pub(super) fn removed(is_secure: bool) -> Self {
        Self { token: None, is_secure }
    }

    /// Returns the digest that is stored.
    pub(super) fn digest(&self) -> [u8; 32] {
        digest(self.token.as_deref().unwrap_or_default())
    }

    /// Returns the value of `Set-Cookie`.
    ///
    /// Scripts cannot read it, requests of other sites carry it only when they navigate here, and short links never
    /// receive it.
    pub(crate) fn header(&self) -> HeaderValue {
        let (token, age) = match &self.token {
            Some(token) => (token.as_str(), MAX_AGE),
            None => ("", 0),
        };
        let secure = if self.is_secure { "; Secure" } else { "" };
        let text = format!("{NAME}={token}; Path=/app; Max-Age={age}; HttpOnly; SameSite=Lax{secure}");
        // Base 64 and our own words are always a header value.
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }
}

/// Returns whether browsers reach the dashboard over TLS only.
pub(super) fn is_secure(app: &App, visit: &Visit) -> bool {
    visit.is_tls() || app.dashboard_url.as_ref().is_some_and(|url| url.scheme() == "https")
}

/// Returns the token of a request. Two cookies count as none: another host of the domain may have set one.
pub(super) fn token(headers: &HeaderMap) -> Option<&str> {
    single(headers, NAME)
}

/// Returns the value of a cookie that is there once.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut tokens = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='));
    let token = tokens.next()?;
    tokens.next().is_none().then_some(token)
}

/// Returns the digest under which a session is stored.
pub(super) fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(cookies: &'static [&'static str]) -> HeaderMap {
        cookies.iter().map(|cookie| (COOKIE, HeaderValue::from_static(cookie))).collect()
    }

    #[test]
    fn a_token_is_read_from_its_cookie() {
        assert_eq!(token(&headers(&["a=b; hopline_session=t; c=d"])), Some("t"));
        assert_eq!(token(&headers(&["a=b", "hopline_session=t"])), Some("t"));
        for none in [
            &[][..],
            &["a=b"],
            &["hopline_session2=t"],
            &["xhopline_session=t"],
            &["hopline_session=t; hopline_session=u"],
        ] {
            assert_eq!(token(&headers(none)), None, "{none:?}");
        }
    }

    #[test]
    fn a_cookie_is_limited_to_the_dashboard() {
        let cookie = Cookie::draw(true);
        let header = cookie.header();
        let (pair, rest) = header.to_str().unwrap().split_once("; ").unwrap();
        assert_eq!(rest, "Path=/app; Max-Age=2592000; HttpOnly; SameSite=Lax; Secure");
        let drawn = pair.strip_prefix("hopline_session=").unwrap();
        assert_eq!((drawn.len(), digest(drawn)), (43, cookie.digest()));
        assert_ne!(Cookie::draw(false).digest(), cookie.digest());
        let removed = Cookie::removed(false).header();
        assert_eq!(removed, "hopline_session=; Path=/app; Max-Age=0; HttpOnly; SameSite=Lax");
    }
}
