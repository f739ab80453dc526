//! Files that are sent as they are read.

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use service::http::ApiError;
use warp::reply::{Reply as _, Response};

use super::caller::Caller;
use super::exports::Export;
use super::operation::Answer;
use crate::app::App;
use crate::error::database;

/// A file on its way to the caller.
pub(crate) struct Download {
    media_type: &'static str,
    disposition: &'static str,
    export: Export,
    chunks: BoxStream<'static, Result<Vec<u8>, ApiError>>,
}

impl Download {
    /// Begins a file with a header, followed by chunks, each sent only while the caller is still accepted. A disposition is
    /// `inline`, or names the file to save.
    ///
    /// # Errors
    /// 429 when the workspace has too many exports, and the error of the first chunk. A later one truncates the chunked
    /// answer, which the caller notices.
    pub(crate) async fn begin(
        app: &App,
        caller: Caller,
        media_type: &'static str,
        disposition: &'static str,
        header: Vec<u8>,
        chunks: impl Stream<Item = Result<Vec<u8>, ApiError>> + Send + 'static,
    ) -> Result<Self, ApiError> {
        let export = app.exports.begin(caller.workspace)?;
        let app = app.clone();
        let still_accepted = move |chunk| {
            let app = app.clone();
            async move {
                match caller.is_valid(&app).await.map_err(database)? {
                    true => Ok(chunk),
                    false => Err(ApiError::unauthorized("The key or session ended during the export.")),
                }
            }
        };
        let mut chunks = chunks.and_then(still_accepted).boxed();
        let first = chunks.try_next().await?;
        let begin = stream::iter([header].into_iter().chain(first)).map(Ok);
        let rest = chunks.inspect_err(|error| {
            tracing::warn!(error = error as &dyn std::error::Error, "A download ended early");
        });
        Ok(Self { media_type, disposition, export, chunks: begin.chain(rest).boxed() })
    }
}

impl Answer for Download {
    fn respond(self, status: StatusCode) -> Response {
        // warp requires a stream that is `Sync`.
        let mut chunks = tokio::sync::Mutex::new(self.chunks);
        let export = self.export;
        let chunks = stream::poll_fn(move |context| {
            // Ends with the stream, whether it was read to its end or not.
            let _export = &export;
            chunks.get_mut().poll_next_unpin(context)
        });
        let mut response = warp::reply::stream(chunks).into_response();
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static(self.disposition));
        response
    }
}
