//! `POST …/links/import`

use std::time::Duration;

use bytes::BytesMut;
use chrono::Utc;
use futures_util::{StreamExt as _, stream};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use schemas::id::ImportId;
use serde::{Deserialize, Serialize};
use serde_json::json;
use service::http::{ApiError, require_plain};
use sha2::{Digest as _, Sha256};
use sqlx::PgPool;
use uuid::Uuid;

use super::report;
use super::rows::Rows;
use crate::app::App;
use crate::error::database;
use crate::store::audit::Of;
use crate::store::imports::Report;
use crate::store::{audit, imports};
use crate::web::caller::{Caller, Editor};
use crate::web::idempotency::{Answer, IdempotencyKey, NamedRequest};
use crate::web::limits::until_midnight;
use crate::web::request::{Argument, Body, Query, Request};

/// Largest file, in bytes.
const MAX_FILE: usize = 512 << 20;

/// Bytes of a piece, which bounds the memory of an upload.
const PIECE: usize = 1 << 20;

/// Timeouts of the next bytes of a file, and of the whole file.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);
const FILE_TIMEOUT: Duration = Duration::from_secs(3_600);

/// Unfinished imports of an account, over all its workspaces.
const MOST: i64 = 10;

/// How long the answer waits for the import. Small files are done by then.
const WAIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// A body of CSV as it arrives.
pub(crate) struct CsvFile(Body);

impl Argument for CsvFile {
    async fn take(request: &mut Request) -> Result<Self, ApiError> {
        let media_type = request.head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
        if media_type.eq_ignore_ascii_case("text/csv") {
            require_plain(&request.head.headers)?;
            return Ok(Self(std::mem::replace(&mut request.body, stream::empty().boxed())));
        }
        Err(ApiError::unsupported_media_type("Send the file as text/csv."))
    }
}

/// The query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    /// Whether to create nothing and only report.
    #[serde(default)]
    dry_run: bool,
    /// A former import of the same file, to ask for its progress.
    import_id: Option<ImportId>,
}

/// The answer kept under the idempotency key.
#[derive(Serialize, Deserialize)]
struct Begun {
    import_id: ImportId,
}

/// Receives a file and returns the progress of its import, which continues in the background.
///
/// A file that is sent again under its key is compared and answered with the import that it began.
pub(crate) async fn import(
    Editor(caller): Editor,
    key: Option<IdempotencyKey>,
    Query(parameters): Query<Parameters>,
    CsvFile(body): CsvFile,
    app: App,
) -> Result<Report, ApiError> {
    if let Some(id) = parameters.import_id {
        // A dry run and an import must not be confused.
        report::find(&app, &caller, id, Some(parameters.dry_run)).await?;
        // The file is stored already.
        receive(&app, &caller, None, body).await?;
        return settled(&app, &caller, id).await;
    }
    let is_known = match &key {
        Some(key) => key.is_known(&app.pool, caller.workspace).await.map_err(database)?,
        None => false,
    };
    let arriving = if is_known { None } else { Some(begin(&app, &caller, parameters.dry_run).await?) };
    let sha256 = receive(&app, &caller, arriving.as_ref().map(|arriving| arriving.id), body).await?;
    let named = key
        .map(|key| NamedRequest::new(caller.workspace, key, "import links", &(parameters.dry_run, sha256)));
    let id = take(&app, &caller, named.transpose()?.as_ref(), arriving, parameters.dry_run).await?;
    app.imports.notify_one();
    settled(&app, &caller, id).await
}

/// An import whose file is being received. It is deleted when the file is not received completely.
struct Arriving {
    id: ImportId,
    pool: PgPool,
    is_whole: bool,
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if self.is_whole {
            return;
        }
        // Also when the browser has gone. If this fails, the import counts for an hour.
        let (pool, id) = (self.pool.clone(), self.id);
        tokio::spawn(async move { imports::remove(&pool, id).await });
    }
}

async fn begin(app: &App, caller: &Caller, is_dry_run: bool) -> Result<Arriving, ApiError> {
    let id = ImportId::from_uuid(Uuid::now_v7());
    if !imports::begin(&app.pool, id, caller.account, caller.workspace, caller.user, is_dry_run, MOST)
        .await
        .map_err(database)?
    {
        let message =
            format!("The account already has {MOST} unfinished imports. Try again when one is done.");
        return Err(ApiError::rate_limited(message).with_retry_after(Duration::from_secs(30)));
    }
    Ok(Arriving { id, pool: app.pool.clone(), is_whole: false })
}

/// Marks the file as received and keeps the idempotency key, in one transaction. Returns the import, or the one of the
/// same earlier request.
async fn take(
    app: &App,
    caller: &Caller,
    named: Option<&NamedRequest>,
    arriving: Option<Arriving>,
    is_dry_run: bool,
) -> Result<ImportId, ApiError> {
    let mut transaction = app.pool.begin().await.map_err(database)?;
    if let Some(named) = named
        && let Some(answer) = named.claim(&mut transaction).await?
    {
        return Ok(answer.value::<Begun>()?.import_id);
    }
    // The key was known when the upload began, and has expired since.
    let Some(mut arriving) = arriving else { return Err(ApiError::unavailable("the key has expired")) };
    imports::set_received(&mut transaction, arriving.id).await.map_err(database)?;
    if !is_dry_run {
        audit::record(
            &mut transaction,
            &caller.actor(),
            "import-links",
            &arriving.id.to_string(),
            Of::Workspace(caller.workspace),
            json!({}),
        )
        .await
        .map_err(database)?;
    }
    if let Some(named) = named {
        let begun = Answer::new(StatusCode::OK, &Begun { import_id: arriving.id }, None)?;
        named.keep(&mut transaction, &begun).await.map_err(database)?;
    }
    // Before the commit: its answer may be lost, and a committed import must not be deleted.
    arriving.is_whole = true;
    transaction.commit().await.map_err(database)?;
    Ok(arriving.id)
}

/// Reads a file to its end and returns its digest. With an import, stores it in pieces.
async fn receive(
    app: &App,
    caller: &Caller,
    id: Option<ImportId>,
    mut body: Body,
) -> Result<[u8; 32], ApiError> {
    let most = app.plans.import_bytes_per_day(caller.plan);
    let mut piece = BytesMut::with_capacity(PIECE);
    let mut sha256 = Sha256::new();
    let (mut number, mut total) = (0, 0);
    let late = || ApiError::bad_request("The file did not arrive in time.");
    let until = tokio::time::Instant::now() + FILE_TIMEOUT;
    loop {
        let chunk = tokio::time::timeout(CHUNK_TIMEOUT, body.next())
            .await
            .map_err(|_| late())?
            .transpose()
            .map_err(|error| ApiError::bad_request("The file ended early.").with_source(error))?;
        if tokio::time::Instant::now() > until {
            return Err(late());
        }
        let is_end = chunk.is_none();
        if let Some(chunk) = chunk {
            total += chunk.len();
            if total > MAX_FILE {
                let message = format!("The file has more than {} MB.", MAX_FILE >> 20);
                return Err(ApiError::payload_too_large(message));
            }
            sha256.update(&chunk);
            piece.extend_from_slice(&chunk);
        }
        if piece.len() < PIECE && !is_end {
            continue;
        }
        if let Some(id) = id {
            if number == 0 {
                // Before the rest is received.
                Rows::check_header(&piece).map_err(|fault| ApiError::invalid_field("header", fault))?;
            }
            let added = imports::add_piece(&app.pool, caller.account, id, number, &piece, most);
            if !added.await.map_err(database)? {
                let message = format!("The account has sent {} GB of files to import today.", most >> 30);
                return Err(ApiError::rate_limited(message).with_retry_after(until_midnight(Utc::now())));
            }
            number += 1;
        }
        piece.clear();
        if is_end {
            return Ok(sha256.finalize().into());
        }
    }
}

/// Returns the report when the import is done, or after a while.
async fn settled(app: &App, caller: &Caller, id: ImportId) -> Result<Report, ApiError> {
    let until = tokio::time::Instant::now() + WAIT;
    loop {
        let report = report::find(app, caller, id, None).await?;
        if report.done || tokio::time::Instant::now() >= until {
            return Ok(report);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use service::http::parse_query;

    use super::*;

    #[test]
    fn a_fault_of_the_query_names_the_parameter_and_the_reason() {
        for (query, message) in [
            ("import_id=imp_1", "Import ID must be an ID: imp_ and 26 characters of base 32."),
            ("import_id=", "Import ID must be an ID: imp_ and 26 characters of base 32."),
            ("dry_run=1", "Dry run must be true or false."),
            ("colour=red", "Colour is not a known parameter."),
            ("=true", "A parameter of the query has no name."),
        ] {
            assert_eq!(parse_query::<Parameters>(query).err().unwrap().message(), message, "{query}");
        }
    }
}
