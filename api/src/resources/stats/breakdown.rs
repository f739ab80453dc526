//! `GET /links/{id}/stats/{dimension}` and `GET /stats/{dimension}`

use chrono::{DateTime, Utc};
use schemas::id::LinkId;
use serde::{Deserialize, Serialize};
use service::http::ApiError;

use crate::app::App;
use crate::resources::stats::subject::{Subject, SubjectParameters};
use crate::store::clicks;
use crate::store::clicks::{Classes, Dimension, Snapshot};
use crate::web::caller::Caller;
use crate::web::page::parse_limit;
use crate::web::request::{Query, Segment};

/// The query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    start_date: Option<String>,
    end_date: Option<String>,
    class: Option<String>,
    limit: Option<String>,
}

/// The values of a dimension with the most clicks.
#[derive(Debug, Serialize)]
pub(crate) struct Breakdown {
    #[serde(with = "schemas::time::millis")]
    start_date: DateTime<Utc>,
    #[serde(with = "schemas::time::millis")]
    end_date: DateTime<Utc>,
    #[serde(with = "schemas::time::optional_millis")]
    as_of: Option<DateTime<Utc>>,
    items: Vec<Item>,
}

/// The clicks of one value; null is unknown.
#[derive(Debug, Serialize)]
struct Item {
    value: Option<String>,
    total_clicks: u64,
    unique_clicks: u64,
}

/// Returns the values with the most clicks of a link, or of the workspace.
pub(crate) async fn breakdown(
    caller: Caller,
    link: Option<LinkId>,
    Segment(dimension): Segment,
    Query(query): Query<Parameters>,
    app: App,
) -> Result<Breakdown, ApiError> {
    let dimension = Dimension::parse(&dimension)?;
    let limit = parse_limit(query.limit.as_deref())?;
    let asked = SubjectParameters {
        start_date: query.start_date.as_deref(),
        end_date: query.end_date.as_deref(),
        class: query.class.as_deref(),
        // One class would have one value.
        otherwise: if dimension == Dimension::Class { Classes::All } else { Classes::HUMAN },
    };
    let subject = Subject::read(&app, &caller, link, asked).await?;
    let question = subject.question();
    let queries = &app.clicks.reports;
    let (as_of, items) = queries
        .with_permit(caller.workspace, async {
            let snapshot = Snapshot::read(queries, &question).await?;
            let items = clicks::breakdown(queries, &snapshot, &question, dimension, limit).await?;
            Ok((snapshot.as_of, items))
        })
        .await?;
    let item = |item: clicks::Item| Item {
        value: Some(item.value).filter(|value| !value.is_empty()),
        total_clicks: item.count.total,
        unique_clicks: item.count.unique,
    };
    Ok(Breakdown {
        start_date: subject.window.start,
        end_date: subject.end_date(),
        as_of,
        items: items.into_iter().map(item).collect(),
    })
}
