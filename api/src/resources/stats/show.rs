//! `GET /links/{id}/stats` and `GET /stats`

use chrono::{DateTime, TimeDelta, Utc};
use schemas::id::LinkId;
use serde::{Deserialize, Serialize};
use service::http::ApiError;

use super::buckets::Interval;
use super::{buckets, conversion_rate};
use crate::app::App;
use crate::resources::stats::subject::{Subject, SubjectParameters};
use crate::store::clicks;
use crate::store::clicks::{Classes, Snapshot};
use crate::web::caller::Caller;
use crate::web::dates::Window;
use crate::web::request::Query;

/// The longest window of a series from raw rows: a month, and an hour for a change of the clock.
const LONGEST_OF_RAW: TimeDelta = TimeDelta::hours(31 * 24 + 1);

/// The query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    start_date: Option<String>,
    end_date: Option<String>,
    interval: Option<String>,
    timezone: Option<String>,
    class: Option<String>,
}

/// Counts of a window, and of its parts.
#[derive(Debug, Serialize)]
pub(crate) struct Stats {
    #[serde(with = "schemas::time::millis")]
    start_date: DateTime<Utc>,
    #[serde(with = "schemas::time::millis")]
    end_date: DateTime<Utc>,
    #[serde(with = "schemas::time::optional_millis")]
    as_of: Option<DateTime<Utc>>,
    total_clicks: u64,
    unique_clicks: u64,
    /// Null when they take too long: their clicks must be looked up one by one.
    conversions: Option<u64>,
    conversion_rate: Option<f64>,
    series: Vec<Point>,
}

/// A point of the window, by its beginning.
#[derive(Debug, Serialize)]
struct Point {
    #[serde(with = "schemas::time::millis")]
    start: DateTime<Utc>,
    total_clicks: u64,
    unique_clicks: u64,
}

/// Returns the counts of a link, or of the workspace.
pub(crate) async fn show(
    caller: Caller,
    link: Option<LinkId>,
    Query(query): Query<Parameters>,
    app: App,
) -> Result<Stats, ApiError> {
    let asked = SubjectParameters {
        start_date: query.start_date.as_deref(),
        end_date: query.end_date.as_deref(),
        class: query.class.as_deref(),
        otherwise: Classes::HUMAN,
    };
    let subject = Subject::read(&app, &caller, link, asked).await?;
    let Subject { window, now, .. } = subject;
    let points = Points::of(&window, query.interval.as_deref(), query.timezone.as_deref(), now)?;
    let question = subject.question();
    let queries = &app.clicks.reports;
    let (as_of, (whole, counts), conversions) = queries
        .with_permit(caller.workspace, async {
            let snapshot = Snapshot::read(queries, &question).await?;
            let (counted, conversions) = tokio::join!(
                clicks::series(queries, &snapshot, &question, &points.starts, points.by_hour),
                queries.with_half_timeout(clicks::conversions(queries, &question)),
            );
            Ok((snapshot.as_of, counted?, conversions))
        })
        .await?;
    // Clicks and conversions are counted at two moments.
    let conversions = clicks::known(conversions).map(|conversions| conversions.min(whole.total));
    let series = std::iter::zip(points.starts, counts)
        .map(|(start, count)| Point {
            start: DateTime::from_timestamp(start, 0).unwrap_or_default(),
            total_clicks: count.total,
            unique_clicks: count.unique,
        })
        .collect();
    Ok(Stats {
        start_date: window.start,
        end_date: subject.end_date(),
        as_of,
        total_clicks: whole.total,
        unique_clicks: whole.unique,
        conversions,
        conversion_rate: conversions.map(|conversions| conversion_rate(conversions, whole.unique)),
        series,
    })
}

/// The points of a series.
struct Points {
    starts: Vec<i64>,
    by_hour: bool,
}

impl Points {
    /// The default interval is a day, or a month if there would be too many points.
    fn of(
        window: &Window,
        interval: Option<&str>,
        zone: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<Self, ApiError> {
        let zone = buckets::parse_zone(zone)?;
        // An open window ends with the point that contains now, so that it includes the newest clicks.
        let (start, end) =
            (window.start, window.end.unwrap_or(window.start.max(now + TimeDelta::milliseconds(1))));
        let of = |interval| buckets::starts(interval, zone, start, end).map(|starts| (interval, starts));
        let (interval, starts) = match interval {
            Some(text) => of(Interval::parse(text)?)?,
            None => of(Interval::Day).or_else(|_| of(Interval::Month))?,
        };
        let by_hour = interval != Interval::Minute && buckets::are_on_the_hour(&starts);
        if !by_hour && end - start > LONGEST_OF_RAW {
            let message = "is off UTC by a part of an hour, where a series covers at most 31 days: ask for a shorter \
                           window, or for a series in UTC";
            return Err(ApiError::invalid_field("timezone", message));
        }
        Ok(Self { starts, by_hour })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(
        start: &str,
        end: Option<&str>,
        interval: Option<&str>,
        zone: &str,
    ) -> Result<Points, ApiError> {
        let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
        let window = Window { start: at(start), end: end.map(at) };
        Points::of(&window, interval, Some(zone), at("2026-11-21T08:30:00Z"))
    }

    #[test]
    fn the_default_interval_is_days_or_months() {
        assert_eq!(points("2026-10-21T00:00:00Z", None, None, "UTC").unwrap().starts.len(), 32);
        assert_eq!(points("2023-11-22T00:00:00Z", None, None, "UTC").unwrap().starts.len(), 37);
        assert!(points("2026-10-21T00:00:00Z", Some("9999-12-31T00:00:00Z"), None, "UTC").is_err());
        assert!(points("9999-12-31T00:00:00Z", None, None, "UTC").unwrap().starts.is_empty());
    }

    #[test]
    fn a_part_hour_zone_has_at_most_31_days() {
        let month = |end, interval| points("2026-09-30T18:30:00Z", Some(end), Some(interval), "Asia/Kolkata");
        assert!(!month("2026-10-31T18:30:00Z", "day").unwrap().by_hour);
        for interval in ["day", "hour"] {
            let refused = month("2026-10-31T20:00:00Z", interval).err().unwrap();
            assert!(refused.message().starts_with("Timezone "), "{refused}");
        }
        assert!(month("2026-10-01T06:00:00Z", "minute").is_ok());
        assert!(points("2025-11-21T00:00:00Z", None, Some("day"), "Europe/Berlin").unwrap().by_hour);
    }
}
