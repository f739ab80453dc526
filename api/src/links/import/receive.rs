//! `POST …/links/import`

use std::time::Duration;

use bytes::{Buf, BufMut as _, BytesMut};
use futures_util::{Stream, StreamExt as _};
use schemas::id::ImportId;
use serde::Deserialize;
use service::http::ApiError;
use uuid::Uuid;

use super::report::{Report, not_found};
use super::rows::Rows;
use super::store;
use crate::App;
use crate::auth::{Caller, Editor};
use crate::error::database;

/// Largest file, in bytes.
const MAX_FILE: usize = 512 << 20;

/// Bytes of a piece: what is in memory of a file at a time.
const PIECE: usize = 1 << 20;

/// How long the next bytes of a file may take.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);

/// Imports of a workspace that are not done at a time.
const MOST: i64 = 10;

/// How long an answer waits for an import to be done: small files are, and then there is nothing to ask again.
const WAIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// The query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    /// Whether only to say what would happen.
    #[serde(default)]
    dry_run: bool,
    /// An import of the same file, to ask how far it is.
    import_id: Option<ImportId>,
}

/// Receives a file and answers how far its import is. It goes on by itself, whether or not somebody asks.
pub(crate) async fn import<B: Buf>(
    Editor(caller): Editor,
    parameters: Parameters,
    body: impl Stream<Item = Result<B, warp::Error>>,
    app: App,
) -> Result<Report, ApiError> {
    let known = match parameters.import_id {
        Some(id) => Some(
            // A try-out has made nothing, and what goes on as an import would make nothing either.
            store::report(&app.pool, caller.workspace, id, Some(parameters.dry_run))
                .await
                .map_err(database)?
                .ok_or_else(not_found)?,
        ),
        None => None,
    };
    let Some(known) = known else {
        let id = ImportId::from_uuid(Uuid::now_v7());
        let begun = store::begin(&app.pool, id, caller.workspace, caller.user, parameters.dry_run, MOST);
        if !begun.await.map_err(database)? {
            let message = format!("The workspace has {MOST} imports that are not done yet");
            return Err(ApiError::rate_limited(message).with_retry_after(Duration::from_secs(30)));
        }
        if let Err(error) = receive(&app, Some(id), body).await {
            // What stays when this fails too is removed after a day.
            let _ = store::remove(&app.pool, id).await;
            return Err(error);
        }
        store::set_received(&app.pool, id).await.map_err(database)?;
        app.imports.notify_one();
        return settled(&app, &caller, id).await;
    };
    // Its file is here, and it goes on by itself.
    receive(&app, None, body).await?;
    settled(&app, &caller, known.import_id).await
}

/// Reads a file to its end and stores it in pieces; without an import it is only read.
async fn receive<B: Buf>(
    app: &App,
    id: Option<ImportId>,
    body: impl Stream<Item = Result<B, warp::Error>>,
) -> Result<(), ApiError> {
    let mut body = std::pin::pin!(body);
    let mut piece = BytesMut::with_capacity(PIECE);
    let (mut number, mut total) = (0, 0);
    loop {
        let chunk = tokio::time::timeout(CHUNK_TIMEOUT, body.next())
            .await
            .map_err(|_| ApiError::bad_request("the file did not arrive in time"))?
            .transpose()
            .map_err(|error| ApiError::bad_request("the file ended early").with_source(error))?;
        let is_end = chunk.is_none();
        if let Some(mut chunk) = chunk {
            total += chunk.remaining();
            if total > MAX_FILE {
                let message = format!("the file is larger than {} MB", MAX_FILE >> 20);
                return Err(ApiError::payload_too_large(message));
            }
            piece.put(&mut chunk);
        }
        if piece.len() < PIECE && !is_end {
            continue;
        }
        let Some(id) = id else {
            piece.clear();
            if is_end { return Ok(()) } else { continue }
        };
        if number == 0 {
            // Before anything is done with the rest.
            Rows::check_header(&piece).map_err(|fault| ApiError::invalid_field("header", fault))?;
        }
        store::add_piece(&app.pool, id, number, &piece).await.map_err(database)?;
        piece.clear();
        number += 1;
        if is_end {
            return Ok(());
        }
    }
}

/// The report when the import is done, or after a while.
async fn settled(app: &App, caller: &Caller, id: ImportId) -> Result<Report, ApiError> {
    let until = tokio::time::Instant::now() + WAIT;
    loop {
        let report = store::report(&app.pool, caller.workspace, id, None)
            .await
            .map_err(database)?
            .ok_or_else(not_found)?;
        if report.done || tokio::time::Instant::now() >= until {
            return Ok(report);
        }
        tokio::time::sleep(PAUSE).await;
    }
}
