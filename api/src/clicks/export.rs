//! Exports: every click of a window, written as it is read.

use futures_util::stream;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use service::http::ApiError;
use tokio::sync::mpsc;
use warp::Reply as _;
use warp::reply::Response;

use super::format::{CSV_HEADER, write_csv, write_json_line};
use super::{Click, Format};
use crate::App;
use crate::stats::Subject;
use crate::stats::store::{ClickRow, NewestFirst, Silence};
use crate::web::operation::Answer;

/// Clicks of one query, a few megabytes; also the most that ClickHouse looks up after it has put them in order.
const BATCH: usize = 10_000;

/// Batches that wait for a slow reader.
const AHEAD: usize = 1;

/// The clicks of a window on their way, newest first.
pub(crate) struct Export {
    format: Format,
    chunks: mpsc::Receiver<Result<Vec<u8>, Silence>>,
}

impl Export {
    /// Begins to read.
    ///
    /// # Errors
    /// When the first clicks cannot be had. What goes wrong later ends the answer before its end, and the coding of
    /// the transfer tells the reader so.
    pub(super) async fn begin(subject: Subject, format: Format, app: App) -> Result<Self, ApiError> {
        let mut reader = NewestFirst::new(&subject.question(), None, subject.now.timestamp_millis());
        let first = read(&mut reader, &subject, &app).await?;
        let (sender, chunks) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            let mut bytes = if format == Format::Csv { CSV_HEADER.as_bytes().to_vec() } else { Vec::new() };
            let mut batch = Ok(first);
            loop {
                let is_last = batch.as_ref().map_or(true, |rows| rows.len() < BATCH);
                let chunk = batch.map(|rows| {
                    rows.into_iter().for_each(|row| write(&mut bytes, format, &row.into()));
                    std::mem::take(&mut bytes)
                });
                if let Err(silence) = &chunk {
                    tracing::warn!(error = silence as &dyn std::error::Error, "An export ended early");
                }
                // Nobody takes it any more when the reader has left.
                if sender.send(chunk).await.is_err() || is_last {
                    return;
                }
                batch = read(&mut reader, &subject, &app).await;
            }
        });
        Ok(Self { format, chunks })
    }
}

impl Answer for Export {
    fn respond(self, _: StatusCode) -> Response {
        let Self { format, mut chunks } = self;
        let chunks = stream::poll_fn(move |context| chunks.poll_recv(context));
        let mut response = warp::reply::stream(chunks).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
        headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static(format.disposition()));
        response
    }
}

/// Each batch waits for its turn, so an export leaves room for the workspace's other requests.
async fn read(reader: &mut NewestFirst, subject: &Subject, app: &App) -> Result<Vec<ClickRow>, Silence> {
    let desk = &app.store.reports;
    desk.in_turn(subject.workspace, reader.batch(desk, &subject.question(), BATCH)).await
}

fn write(bytes: &mut Vec<u8>, format: Format, click: &Click) {
    match format {
        Format::Csv => write_csv(bytes, click),
        Format::Json | Format::JsonLines => write_json_line(bytes, click),
    }
}
