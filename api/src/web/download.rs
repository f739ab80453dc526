//! Files that are sent as they are read.

use std::iter;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use serde_json::json;
use service::http::{ApiError, Code};
use service::slots::{Full, Slot};
use uuid::Uuid;
use warp::reply::{Reply as _, Response};

use super::caller::Caller;
use super::operation::Answer;
use crate::app::App;
use crate::error::database;
use crate::store::audit::{self, Of};

/// Maximum concurrent exports of an account in one process.
const MOST_OF_ACCOUNT: usize = 4;

/// Maximum concurrent exports of one process. Each holds a batch of a few megabytes while its reader waits.
pub(crate) const MOST_EXPORTS: usize = 16;

/// Bytes that are handed to the connection at a time, which holds them until they are sent.
const PIECE: usize = 64 << 10;

/// When to retry: an export of a small workspace takes less, of a large one more.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// An export that has begun: one of the few of its account, and whom it is for.
pub(crate) struct Export {
    slot: Slot<Uuid>,
    app: App,
    caller: Caller,
}

impl Export {
    /// Begins an export.
    ///
    /// # Errors
    /// 429 when the account has [`MOST_OF_ACCOUNT`], 503 when the process has [`MOST_EXPORTS`].
    pub(crate) fn begin(app: &App, caller: Caller) -> Result<Self, ApiError> {
        let slot = app.exports.take(caller.account, MOST_OF_ACCOUNT).map_err(|full| {
            let error = match full {
                Full::Owner => ApiError::rate_limited(format!(
                    "The account already has {MOST_OF_ACCOUNT} exports. Try again later."
                )),
                Full::All => ApiError::new(
                    Code::Unavailable,
                    "This server has no more exports to give. Try again later.",
                ),
            };
            error.with_retry_after(RETRY_AFTER)
        })?;
        Ok(Self { slot, app: app.clone(), caller })
    }
}

/// A file on its way to the caller.
pub(crate) struct Download {
    media_type: &'static str,
    disposition: &'static str,
    slot: Slot<Uuid>,
    chunks: BoxStream<'static, Result<Bytes, ApiError>>,
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
        // The trail has what left.
        if !caller.is_head {
            let mut connection = app.pool.acquire().await.map_err(database)?;
            let (actor, of) = (caller.actor(), Of::Workspace(caller.workspace));
            audit::record(&mut connection, &actor, "export", media_type, of, json!({}))
                .await
                .map_err(database)?;
        }
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
        let chunks = begin.chain(rest).map_ok(pieces).try_flatten().boxed();
        Ok(Self { media_type, disposition, slot, chunks })
    }
}

/// Divides a chunk.
fn pieces(chunk: Vec<u8>) -> impl Stream<Item = Result<Bytes, ApiError>> {
    let mut rest = Bytes::from(chunk);
    let pieces = iter::from_fn(move || {
        let piece = rest.split_to(PIECE.min(rest.len()));
        (!piece.is_empty()).then_some(piece)
    });
    stream::iter(pieces.map(Ok))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_chunk_is_divided_without_a_loss() {
        for length in [0, 1, PIECE, PIECE + 1, 3 * PIECE - 1] {
            let chunk: Vec<u8> = (0..length).map(|place| (place % 251) as u8).collect();
            let pieces: Vec<Bytes> = pieces(chunk.clone()).map(|piece| piece.unwrap()).collect().await;
            assert!(pieces.iter().all(|piece| (1..=PIECE).contains(&piece.len())), "{length}");
            assert_eq!(pieces.concat(), chunk);
        }
    }
}
