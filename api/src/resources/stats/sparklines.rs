//! `GET /sparklines`, only for members

use std::collections::BTreeMap;

use chrono::{Days, NaiveTime, Utc};
use schemas::id::LinkId;
use serde::{Deserialize, Serialize};
use service::http::ApiError;
use uuid::Uuid;

use crate::app::App;
use crate::store::clicks;
use crate::store::clicks::pieces::Range;
use crate::store::clicks::{Classes, Of, Question, Snapshot};
use crate::web::caller::Caller;
use crate::web::request::Query;

/// Days of a line, including today: the retention of the smallest plan.
const DAYS: i64 = 30;

/// Most links of a request.
const MAX_LINKS: usize = 100;

/// Milliseconds of a day.
const DAY: i64 = 86_400_000;

/// The query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    /// Links, separated by commas.
    ids: String,
}

/// The human clicks of each link on each of the last 30 UTC days, the oldest first.
#[derive(Debug, Serialize)]
pub(crate) struct Sparklines {
    series: BTreeMap<String, Vec<i64>>,
}

/// Returns a line for each requested link. A link of another workspace has no clicks in it.
pub(crate) async fn sparklines(
    caller: Caller,
    Query(query): Query<Parameters>,
    app: App,
) -> Result<Sparklines, ApiError> {
    let ids = query.ids.split(',').map(str::parse).collect::<Result<Vec<LinkId>, _>>();
    let ids = ids.map_err(|_| ApiError::invalid_field("ids", "must be link ids separated by commas"))?;
    if ids.len() > MAX_LINKS {
        return Err(ApiError::invalid_field("ids", "must have at most 100 ids"));
    }
    let links: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
    let today = Utc::now().date_naive().and_time(NaiveTime::MIN).and_utc();
    let end = (today + Days::new(1)).timestamp_millis();
    let days: Vec<Range> =
        (1..=DAYS).rev().map(|back| Range { start: end - back * DAY, end: end - (back - 1) * DAY }).collect();
    let window = Range { start: end - DAYS * DAY, end };
    let question = Question {
        workspace: caller.workspace,
        of: Of::Links(&links),
        classes: Classes::HUMAN,
        window,
        taken_until: None,
    };
    let queries = &app.clicks.counters;
    let counted = queries
        .with_permit(caller.workspace, async {
            let snapshot = Snapshot::read(queries, &question).await?;
            clicks::by_link_and_day(queries, &snapshot, &question, &days).await
        })
        .await?;
    let empty = vec![0; days.len()];
    let mut series: BTreeMap<String, Vec<i64>> =
        ids.iter().map(|id| (id.to_string(), empty.clone())).collect();
    for (link, day, total) in counted {
        let place = usize::try_from(day - window.start / DAY).ok();
        let line = series.get_mut(&LinkId::from_uuid(link).to_string());
        if let Some(point) = place.zip(line).and_then(|(place, line)| line.get_mut(place)) {
            *point = total;
        }
    }
    Ok(Sparklines { series })
}
