//! Exports: every click of a window.

use std::ops::ControlFlow;

use futures_util::stream;
use service::http::ApiError;

use super::click::Click;
use super::format::{CSV_HEADER, write_csv, write_json_line};
use crate::app::App;
use crate::resources::clicks::format::Format;
use crate::resources::stats::subject::Subject;
use crate::store::clicks::NewestFirst;
use crate::web::caller::Caller;
use crate::web::download::{Download, Export};

/// Bytes of a batch, which ends with the click that reaches them. A waiting export holds a batch in memory; each batch
/// reads the times of the hours that it touches, so a smaller one makes exports of busy hours slower.
const BATCH_BYTES: usize = 4 << 20;

/// The first batch, in clicks: it shows how large they are.
const FIRST_BATCH: usize = 1_000;

/// The largest batch, in clicks: the most for which ClickHouse reads wide columns after sorting.
const LARGEST_BATCH: usize = 10_000;

/// Begins a file with the clicks of a window, newest first.
///
/// Each batch waits for a permit, so an export leaves room for the workspace's other requests.
///
/// # Errors
/// As [`Export::begin`] and [`Download::begin`].
pub(super) async fn export(
    caller: Caller,
    subject: Subject,
    format: Format,
    app: App,
) -> Result<Download, ApiError> {
    let export = Export::begin(&app, caller)?;
    let header = if format == Format::Csv { CSV_HEADER.as_bytes().to_vec() } else { Vec::new() };
    let reader = NewestFirst::new(&subject.question(), None, subject.now.timestamp_millis());
    let chunks = stream::try_unfold((reader, FIRST_BATCH), move |(mut reader, limit)| {
        let app = app.clone();
        async move {
            if reader.is_done() {
                return Ok(None);
            }
            let (queries, question) = (&app.clicks.reports, subject.question());
            let (mut chunk, mut clicks) = (Vec::new(), 0);
            let batch = reader.batch(queries, &question, limit, |row| {
                write(&mut chunk, format, &Click::of_row(row, caller.is_viewer()));
                clicks += 1;
                if chunk.len() < BATCH_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            queries.with_permit(subject.workspace, batch).await?;
            let next = next_batch(chunk.len(), clicks);
            Ok(Some((chunk, (reader, next))))
        }
    });
    Download::begin(export, format.media_type(), format.disposition(), header, chunks).await
}

/// Returns how many clicks the next batch asks for: as many as fit, if they are as large as those of the last one.
fn next_batch(bytes: usize, clicks: usize) -> usize {
    (BATCH_BYTES * clicks).checked_div(bytes).map_or(LARGEST_BATCH, |fit| fit.clamp(1, LARGEST_BATCH))
}

fn write(bytes: &mut Vec<u8>, format: Format, click: &Click) {
    match format {
        Format::Csv => write_csv(bytes, click),
        Format::Json | Format::JsonLines => write_json_line(bytes, click),
    }
}
