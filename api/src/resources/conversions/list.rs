//! `GET /links/{id}/conversions` and `GET /conversions`

use chrono::{DateTime, Utc};
use schemas::id::{ConversionId, LinkId};
use schemas::message::Class;
use serde::{Deserialize, Serialize};
use service::http::ApiError;
use uuid::Uuid;

use crate::app::App;
use crate::error::database;
use crate::resources::stats::subject::{Subject, SubjectParameters};
use crate::store::clicks::{Classes, Converted, are_of_class};
use crate::store::conversions;
use crate::store::conversions::ListedRow;
use crate::web::caller::Caller;
use crate::web::page::{cut, decode_cursor, encode_cursor, invalid_cursor, parse_limit};
use crate::web::request::Query;

/// Most conversions whose classes one query reads.
const LARGEST_BATCH: usize = 4_000;

/// Growth of a batch after one that did not fill the page.
const GROWTH: usize = 8;

/// The query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    start_date: Option<String>,
    end_date: Option<String>,
    class: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

/// A page of conversions.
#[derive(Debug, Serialize)]
pub(crate) struct Conversions {
    conversions: Vec<FullConversion>,
    next_cursor: Option<String>,
}

/// A conversion in full.
#[derive(Debug, Serialize)]
struct FullConversion {
    id: ConversionId,
    click_id: Option<String>,
    link_id: LinkId,
    #[serde(with = "schemas::time::millis")]
    clicked_at: DateTime<Utc>,
    external_user_id: Option<String>,
    user_name: Option<String>,
    user_email: Option<String>,
    host: Option<String>,
    page_url: Option<String>,
    #[serde(with = "schemas::time::millis")]
    created_at: DateTime<Utc>,
}

impl FullConversion {
    /// Returns a conversion as the caller may see it. A viewer sees neither its user nor more of its page than the
    /// host, because a path or a query may name a person.
    fn of_row(row: ListedRow, is_viewer: bool) -> Self {
        let unless_viewer = |text: Option<String>| text.filter(|_| !is_viewer);
        Self {
            id: ConversionId::from_uuid(row.id),
            click_id: row.click_id,
            link_id: LinkId::from_uuid(row.link_id),
            clicked_at: row.clicked_at,
            external_user_id: unless_viewer(row.external_user_id),
            user_name: unless_viewer(row.user_name),
            user_email: unless_viewer(row.user_email),
            host: row.host,
            page_url: unless_viewer(row.page_url),
            created_at: row.created_at,
        }
    }
}

/// The place of a page's last conversion: the time of its click, in microseconds, and its id.
#[derive(Debug, Serialize, Deserialize)]
enum Cursor {
    #[serde(rename = "v")]
    Conversions(i64, Uuid),
}

/// Returns a page of the conversions of a link, or of the workspace, the newest click first.
pub(crate) async fn list(
    caller: Caller,
    link: Option<LinkId>,
    Query(query): Query<Parameters>,
    app: App,
) -> Result<Conversions, ApiError> {
    let limit = parse_limit(query.limit.as_deref())?;
    let after = query.cursor.as_deref().map(parse_cursor).transpose()?;
    let asked = SubjectParameters {
        start_date: query.start_date.as_deref(),
        end_date: query.end_date.as_deref(),
        class: query.class.as_deref(),
        otherwise: Classes::HUMAN,
    };
    let subject = Subject::read(&app, &caller, link, asked).await?;
    // One more row than the limit shows whether there is a next page.
    let mut rows = match subject.classes {
        Classes::All => page(&app, &subject, after, limit + 1).await.map_err(database)?,
        Classes::One(class) => {
            let queries = &app.clicks.reports;
            let page = of_class(&app, &subject, class, after, limit + 1);
            queries.with_permit(caller.workspace, page).await?.map_err(database)?
        }
    };
    let next_cursor = cut(&mut rows, limit)
        .map(|row| encode_cursor(&Cursor::Conversions(row.clicked_at.timestamp_micros(), row.id)));
    let is_viewer = caller.is_viewer();
    let conversions = rows.into_iter().map(|row| FullConversion::of_row(row, is_viewer)).collect();
    Ok(Conversions { conversions, next_cursor })
}

/// Reads conversions of clicks in the subject's window.
async fn page(
    app: &App,
    subject: &Subject,
    after: Option<(DateTime<Utc>, Uuid)>,
    limit: usize,
) -> sqlx::Result<Vec<ListedRow>> {
    let Subject { workspace, link, window, .. } = *subject;
    conversions::page(&app.pool, workspace, link, (window.start, window.end), after, limit).await
}

/// Reads up to `limit` conversions of one class: the conversions from Postgres, the classes of their clicks from
/// ClickHouse.
///
/// Most conversions are human, so the first batch is a page. A rare class needs larger batches.
async fn of_class(
    app: &App,
    subject: &Subject,
    class: Class,
    mut after: Option<(DateTime<Utc>, Uuid)>,
    limit: usize,
) -> clickhouse::error::Result<sqlx::Result<Vec<ListedRow>>> {
    let mut found = Vec::new();
    let mut batch = limit;
    loop {
        let rows = match page(app, subject, after, batch).await {
            Ok(rows) => rows,
            Err(error) => return Ok(Err(error)),
        };
        let is_last = rows.len() < batch;
        after = rows.last().map(|row| (row.clicked_at, row.id)).or(after);
        let clicks: Vec<Converted<'_>> = rows.iter().map(converted).collect();
        let are_of_class = are_of_class(&app.clicks.reports, subject.workspace, class, &clicks).await?;
        let of_class = std::iter::zip(rows, are_of_class).filter(|(_, is_of_class)| *is_of_class);
        found.extend(of_class.map(|(row, _)| row));
        if found.len() >= limit || is_last {
            found.truncate(limit);
            return Ok(Ok(found));
        }
        batch = (batch * GROWTH).min(LARGEST_BATCH);
    }
}

fn converted(row: &ListedRow) -> Converted<'_> {
    let click_id = row.click_id.as_deref().unwrap_or_default();
    Converted { link: row.link_id, at: row.clicked_at.timestamp_millis(), click_id }
}

fn parse_cursor(text: &str) -> Result<(DateTime<Utc>, Uuid), ApiError> {
    decode_cursor(text)
        // Anyone can compute a checksum, so the time is checked: 1970 to 2199.
        .filter(|Cursor::Conversions(micros, _)| (0..7_258_118_400_000_000).contains(micros))
        .and_then(|Cursor::Conversions(micros, id)| Some((DateTime::from_timestamp_micros(micros)?, id)))
        .ok_or_else(|| invalid_cursor("conversions"))
}
