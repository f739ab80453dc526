//! Files that are sent as they are read.

use std::time::Duration;

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use serde_json::json;
use service::http::ApiError;
use service::slots::Slot;
use uuid::Uuid;
use warp::reply::{Reply as _, Response};

use super::caller::Caller;
use super::operation::Answer;
use crate::app::App;
use crate::error::database;
use crate::store::audit::{self, Of};

/// Maximum concurrent exports of a workspace in one process.
const MAX_EXPORTS: usize = 4;

/// When to retry: an export of a small workspace takes less, of a large one more.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// An export that has begun: one of the few of its workspace, and whom it is for.
pub(crate) struct Export {
    slot: Slot<Uuid>,
    app: App,
    caller: Caller,
}

impl Export {
    /// Begins an export.
    ///
    /// # Errors
    /// 429 when the workspace has [`MAX_EXPORTS`].
    pub(crate) fn begin(app: &App, caller: Caller) -> Result<Self, ApiError> {
        let slot = app.exports.take(caller.workspace, MAX_EXPORTS).ok_or_else(|| {
            let message = format!("{MAX_EXPORTS} exports of this workspace are running. Try again later.");
            ApiError::rate_limited(message).with_retry_after(RETRY_AFTER)
        })?;
        Ok(Self { slot, app: app.clone(), caller })
    }
}

/// A file on its way to the caller.
pub(crate) struct Download {
    media_type: &'static str,
    disposition: &'static str,
    slot: Slot<Uuid>,
    chunks: BoxStream<'static, Result<Vec<u8>, ApiError>>,
}

impl Download {
    /// Begins a file with a header, followed by chunks; those after the first are sent only while the caller is still
    /// accepted. A disposition is `inline`, or names the file to save.
    ///
    /// # Errors
    /// The error of the first chunk. A later one truncates the chunked answer, which the caller notices.
    pub(crate) async fn begin(
        Export { slot, app, caller }: Export,
        media_type: &'static str,
        disposition: &'static str,
        header: Vec<u8>,
        chunks: impl Stream<Item = Result<Vec<u8>, ApiError>> + Send + 'static,
    ) -> Result<Self, ApiError> {
        let mut chunks = chunks.boxed();
        let first = chunks.try_next().await?;
        let mut connection = app.pool.acquire().await.map_err(database)?;
        let (actor, of) = (caller.actor(), Of::Workspace(caller.workspace));
        audit::record(&mut connection, &actor, "export", media_type, of, json!({}))
            .await
            .map_err(database)?;
        drop(connection);
        let begin = stream::iter([header].into_iter().chain(first)).map(Ok);
        let still_accepted = move |chunk| {
            let app = app.clone();
            async move {
                match caller.is_valid(&app).await.map_err(database)? {
                    true => Ok(chunk),
                    false => Err(ApiError::unauthorized("The key or session ended during the export.")),
                }
            }
        };
        let rest = chunks.and_then(still_accepted).inspect_err(|error| {
            tracing::warn!(error = error as &dyn std::error::Error, "a download ended early");
        });
        Ok(Self { media_type, disposition, slot, chunks: begin.chain(rest).boxed() })
    }
}

impl Answer for Download {
    fn respond(self, status: StatusCode) -> Response {
        // warp requires a stream that is `Sync`.
        let mut chunks = tokio::sync::Mutex::new(self.chunks);
        let slot = self.slot;
        let chunks = stream::poll_fn(move |context| {
            // Ends with the stream, whether it was read to its end or not.
            let _slot = &slot;
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
