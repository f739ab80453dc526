//! Files that are the same for everybody: compressed once, with an entity tag.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use service::http::accepts_gzip;
use sha2::{Digest as _, Sha256};
use warp::reply::Response;

/// The methods of a file.
pub(super) const READ: &str = "GET, HEAD";

/// A file in both of its forms.
#[derive(Debug)]
pub(super) struct File {
    plain: Bytes,
    /// Absent where compression does not make it smaller.
    gzip: Option<Bytes>,
    media_type: &'static str,
    /// The entity tag.
    tag: HeaderValue,
}

impl File {
    pub(super) fn new(media_type: &'static str, plain: Bytes) -> Self {
        let digest = Sha256::digest(&plain);
        let tag: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        // Weak, because the plain and the compressed form share it. Hexadecimal digits are always a header value.
        let tag =
            HeaderValue::try_from(format!("W/\"{tag}\"")).unwrap_or(HeaderValue::from_static("W/\"none\""));
        Self { gzip: compress(&plain), plain, media_type, tag }
    }

    /// Answers a request with the file, or with 304 if the client has it.
    pub(super) fn answer(&self, request: &HeaderMap) -> Response {
        let is_known = request
            .get_all(IF_NONE_MATCH)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|tag| is_same(tag.trim(), &self.tag));
        let gzip = self.gzip.as_ref().filter(|_| accepts_gzip(request));
        let mut response = if is_known {
            let mut response = Response::new(Bytes::new().into());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            Response::new(gzip.unwrap_or(&self.plain).clone().into())
        };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        headers.insert(ETAG, self.tag.clone());
        if self.gzip.is_some() {
            headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        if gzip.is_some() {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }
}

/// Compares entity tags as `If-None-Match` does: weakly (RFC 9110, 8.8.3.2).
fn is_same(asked: &str, tag: &HeaderValue) -> bool {
    fn opaque(tag: &[u8]) -> &[u8] {
        tag.strip_prefix(b"W/").unwrap_or(tag)
    }
    asked == "*" || opaque(asked.as_bytes()) == opaque(tag.as_bytes())
}

fn compress(plain: &Bytes) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain).ok()?;
    encoder.finish().ok().filter(|gzip| gzip.len() < plain.len()).map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use http::header::ACCEPT_ENCODING;

    use super::*;

    fn file(contents: &str) -> File {
        File::new("text/plain", Bytes::from(contents.to_owned()))
    }

    #[test]
    fn a_file_is_sent_compressed_where_that_makes_it_smaller() {
        let request = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("br, gzip"))]);
        let coding = |contents: &str, request: &HeaderMap| {
            let answer = file(contents).answer(request);
            (answer.headers().get(CONTENT_ENCODING).cloned(), answer.headers().contains_key(VARY))
        };
        let script = "let a = 1;".repeat(50);
        assert_eq!(coding(&script, &request), (Some(HeaderValue::from_static("gzip")), true));
        assert_eq!(coding(&script, &HeaderMap::new()), (None, true));
        assert_eq!(coding("free", &request), (None, false));
    }

    #[test]
    fn a_matching_etag_gets_304() {
        let page = file(&"<p>page</p>".repeat(20));
        let tag = page.answer(&HeaderMap::new()).headers()[ETAG].clone();
        let strong = HeaderValue::from_bytes(tag.as_bytes().strip_prefix(b"W/").unwrap()).unwrap();
        for known in [tag, strong, HeaderValue::from_static("*")] {
            let answer = page.answer(&HeaderMap::from_iter([(IF_NONE_MATCH, known)]));
            assert_eq!(answer.status(), StatusCode::NOT_MODIFIED);
        }
        let stale = HeaderMap::from_iter([(IF_NONE_MATCH, HeaderValue::from_static("W/\"0\""))]);
        assert_eq!(page.answer(&stale).status(), StatusCode::OK);
    }
}
