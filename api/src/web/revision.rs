//! The revision of a link as an entity tag, and changes of nothing newer than the caller has read (RFC 9110, 8.8.3 and
//! 13.1.1).

use http::header::{ETAG, IF_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};
use service::http::{ApiError, Code};
use warp::reply::Response;

use super::operation::Answer;
use super::request::{Argument, Request};

/// An answer with one link, and the link's revision.
///
/// Its tag is strong although counters change without a new revision: it is for `If-Match`, and nothing is answered
/// with 304.
pub(crate) struct Tagged<A>(pub(crate) A, pub(crate) i64);

impl<A: Answer> Answer for Tagged<A> {
    fn respond(self, status: StatusCode) -> Response {
        let mut response = self.0.respond(status);
        // Digits and quotes are always a header's value.
        if let Ok(tag) = HeaderValue::try_from(format!("\"{}\"", self.1)) {
            response.headers_mut().insert(ETAG, tag);
        }
        response
    }
}

/// The revisions of which one a link must have to be changed; `None` is any.
pub(crate) struct IfMatch(Option<Vec<String>>);

impl Argument for IfMatch {
    async fn take(request: &mut Request) -> Result<Self, ApiError> {
        read(&request.head.headers)
    }
}

impl IfMatch {
    /// Checks the revision of a link that is about to be changed, and locked until it is.
    ///
    /// # Errors
    /// 412 for another revision than the caller has read.
    pub(crate) fn check(&self, revision: i64) -> Result<(), ApiError> {
        match &self.0 {
            Some(tags) if !tags.contains(&format!("\"{revision}\"")) => Err(stale()),
            _ => Ok(()),
        }
    }

    /// Checks that a link may be created.
    ///
    /// # Errors
    /// 412 if the caller has read one, which is gone.
    pub(crate) fn check_new(&self) -> Result<(), ApiError> {
        if self.0.is_some() { Err(stale()) } else { Ok(()) }
    }
}

fn stale() -> ApiError {
    ApiError::new(
        Code::PreconditionFailed,
        "The link has changed since it was read. Read it again, and repeat the change if it is still right.",
    )
}

fn read(headers: &HeaderMap) -> Result<IfMatch, ApiError> {
    let mut tags = Vec::new();
    for value in headers.get_all(IF_MATCH) {
        tags.extend(value.to_str().unwrap_or_default().split(',').map(str::trim));
    }
    if tags.is_empty() || tags == ["*"] {
        return Ok(IfMatch(None));
    }
    let is_tag = |tag: &&str| {
        let tag = tag.strip_prefix("W/").unwrap_or(tag);
        tag.len() >= 2 && tag.starts_with('"') && tag.ends_with('"')
    };
    if !tags.iter().all(is_tag) {
        return Err(ApiError::invalid_field(
            "If-Match",
            "must be an ETag in its quotes, several of them, or *",
        ));
    }
    // A weak tag stays among them: it equals none of ours.
    Ok(IfMatch(Some(tags.into_iter().map(str::to_owned).collect())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the status of a change of revision 3.
    fn status(values: &[&'static str]) -> u16 {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IF_MATCH, HeaderValue::from_static(value));
        }
        match read(&headers).and_then(|wanted| wanted.check(3)) {
            Ok(()) => 200,
            Err(error) => error.status().as_u16(),
        }
    }

    #[test]
    fn a_change_may_name_the_revision_that_it_changes() {
        for good in [&[][..], &["*"], &["\"3\""], &["\"2\", \"3\""], &["\"2\"", "\"3\""]] {
            assert_eq!(status(good), 200, "{good:?}");
        }
        for stale in [&["\"2\""][..], &["\"03\""], &["W/\"3\""], &["\"\""], &["\"2\",\"4\""]] {
            assert_eq!(status(stale), 412, "{stale:?}");
        }
        for bad in
            [&["3"][..], &[""], &["\"3"], &["\""], &["\"3\","], &["*, \"3\""], &["\"3\"", "*"], &["w/\"3\""]]
        {
            assert_eq!(status(bad), 400, "{bad:?}");
        }
    }
}
