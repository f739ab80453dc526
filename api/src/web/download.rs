//! Files that are sent as they are read.

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use service::http::ApiError;
use warp::reply::{Reply as _, Response};

use super::operation::Answer;

/// A file on its way to the caller.
pub(crate) struct Download {
    media_type: &'static str,
    disposition: &'static str,
    chunks: BoxStream<'static, Result<Vec<u8>, ApiError>>,
}

impl Download {
    /// Begins a file with a header, followed by chunks. A disposition is `inline`, or names the file to save.
    ///
    /// # Errors
    /// The error of the first chunk. A later one cuts the chunked answer short, which the caller notices.
    pub(crate) async fn begin(
        media_type: &'static str,
        disposition: &'static str,
        header: Vec<u8>,
        chunks: impl Stream<Item = Result<Vec<u8>, ApiError>> + Send + 'static,
    ) -> Result<Self, ApiError> {
        let mut chunks = chunks.boxed();
        let first = chunks.try_next().await?;
        let begin = stream::iter([header].into_iter().chain(first)).map(Ok);
        let rest = chunks.inspect_err(|error| {
            tracing::warn!(error = error as &dyn std::error::Error, "A download ended early");
        });
        Ok(Self { media_type, disposition, chunks: begin.chain(rest).boxed() })
    }
}

impl Answer for Download {
    fn respond(self, status: StatusCode) -> Response {
        // warp requires a stream that is `Sync`.
        let mut chunks = tokio::sync::Mutex::new(self.chunks);
        let chunks = stream::poll_fn(move |context| chunks.get_mut().poll_next_unpin(context));
        let mut response = warp::reply::stream(chunks).into_response();
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static(self.disposition));
        response
    }
}
