//! Exports: every click of a window.

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

/// Clicks of one query: a few megabytes, and the most for which ClickHouse reads wide columns after sorting.
const BATCH: usize = 10_000;

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
    let chunks = stream::try_unfold(Some(reader), move |reader| {
        let app = app.clone();
        async move {
            let Some(mut reader) = reader else { return Ok(None) };
            let (queries, question) = (&app.clicks.reports, subject.question());
            let batch = reader.batch(queries, &question, BATCH);
            let rows = queries.with_permit(subject.workspace, batch).await?;
            let next = (rows.len() == BATCH).then_some(reader);
            let mut chunk = Vec::new();
            for row in rows {
                let mut click = Click::from(row);
                if caller.is_viewer() {
                    click.hide_personal_fields();
                }
                write(&mut chunk, format, &click);
            }
            Ok(Some((chunk, next)))
        }
    });
    Download::begin(export, format.media_type(), format.disposition(), header, chunks).await
}

fn write(bytes: &mut Vec<u8>, format: Format, click: &Click) {
    match format {
        Format::Csv => write_csv(bytes, click),
        Format::Json | Format::JsonLines => write_json_line(bytes, click),
    }
}
