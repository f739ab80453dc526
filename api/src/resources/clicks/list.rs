//! `GET /links/{id}/clicks` and `GET /clicks`

use std::ops::ControlFlow;

use http::StatusCode;
use schemas::id::LinkId;
use serde::{Deserialize, Serialize};
use service::http::{ApiError, json};
use warp::reply::Response;

use super::click::Click;
use super::export::export;
use crate::app::App;
use crate::resources::clicks::format::Format;
use crate::resources::stats::subject::{Subject, SubjectParameters};
use crate::store::clicks::{Classes, NewestFirst, Position};
use crate::web::caller::Caller;
use crate::web::download::Download;
use crate::web::operation;
use crate::web::page::{cut, decode_cursor, encode_cursor, invalid_cursor, parse_limit};
use crate::web::request::Query;

/// The query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    start_date: Option<String>,
    end_date: Option<String>,
    class: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
    /// Alternative to `Accept`, for links in a browser.
    format: Option<Format>,
}

/// A page of clicks.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    clicks: Vec<Click>,
    next_cursor: Option<String>,
}

/// The place of a page's last click: its time, in milliseconds, and its position in the log.
#[derive(Debug, Serialize, Deserialize)]
enum Cursor {
    #[serde(rename = "c")]
    Clicks(i64, u32, u64),
}

/// A page or an export.
pub(crate) enum Answer {
    /// Complete.
    Page(Page),
    /// As the rows come.
    Export(Download),
}

impl operation::Answer for Answer {
    fn respond(self, status: StatusCode) -> Response {
        match self {
            Self::Page(page) => json(status, &page),
            Self::Export(export) => export.respond(status),
        }
    }
}

/// Returns a page of the clicks of a link, or of the workspace; or all of them in a format for exports.
pub(crate) async fn list(
    caller: Caller,
    link: Option<LinkId>,
    format: Format,
    Query(query): Query<Parameters>,
    app: App,
) -> Result<Answer, ApiError> {
    let asked = SubjectParameters {
        start_date: query.start_date.as_deref(),
        end_date: query.end_date.as_deref(),
        class: query.class.as_deref(),
        otherwise: Classes::HUMAN,
    };
    let format = query.format.unwrap_or(format);
    if format != Format::Json {
        for (parameter, given) in [("limit", &query.limit), ("cursor", &query.cursor)] {
            if given.is_some() {
                let message = "is not allowed for an export, which has all clicks of the window";
                return Err(ApiError::invalid_field(parameter, message));
            }
        }
        let subject = Subject::read(&app, &caller, link, asked).await?;
        return export(caller, subject, format, app).await.map(Answer::Export);
    }
    let limit = parse_limit(query.limit.as_deref())?;
    let after = query.cursor.as_deref().map(parse_cursor).transpose()?;
    let subject = Subject::read(&app, &caller, link, asked).await?;
    let question = subject.question();
    let queries = &app.clicks.reports;
    let mut reader = NewestFirst::new(&question, after, subject.now.timestamp_millis());
    // One more row than the limit shows whether there is a next page.
    let mut rows = Vec::new();
    let batch = reader.batch(queries, &question, limit + 1, |row| {
        rows.push(row);
        ControlFlow::Continue(())
    });
    queries.with_permit(subject.workspace, batch).await?;
    let last = cut(&mut rows, limit).map(|row| row.position());
    let next_cursor = last.map(|Position { at, src, koff }| encode_cursor(&Cursor::Clicks(at, src, koff)));
    let clicks = rows.into_iter().map(|row| Click::of_row(row, caller.is_viewer())).collect();
    Ok(Answer::Page(Page { clicks, next_cursor }))
}

fn parse_cursor(text: &str) -> Result<Position, ApiError> {
    decode_cursor(text)
        .map(|Cursor::Clicks(at, src, koff)| Position { at, src, koff })
        // Anyone can compute a checksum, so the time is checked.
        .filter(|position| (0..crate::store::clicks::pieces::END).contains(&position.at))
        .ok_or_else(|| invalid_cursor("clicks"))
}
