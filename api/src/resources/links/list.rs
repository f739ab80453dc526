//! `GET /links`

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use schemas::id::LinkId;
use serde::{Deserialize, Serialize};
use service::http::ApiError;
use uuid::Uuid;

use super::counters::{Conversions, Counted, Counters, Totals};
use super::cursor::{Clicks, Created, Cursor, Named, Sort};
use super::fields::check_tag;
use crate::app::App;
use crate::error::database;
use crate::store::clicks::Classes;
use crate::store::links;
use crate::store::links::{Filter, LinkRow, Place};
use crate::web::caller::Caller;
use crate::web::dates::Window;
use crate::web::faults::check_text;
use crate::web::page::parse_limit;
use crate::web::request::Query;

/// Longest search text, in characters.
const MAX_SEARCH: usize = 200;

/// The query of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    start_date: Option<String>,
    end_date: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
    q: Option<String>,
    is_active: Option<String>,
    is_locked: Option<String>,
    tag: Option<String>,
    sort: Option<String>,
    class: Option<String>,
}

/// A page of links.
#[derive(Debug, Serialize)]
pub(crate) struct Links {
    links: Vec<Item>,
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize)]
struct Item {
    id: LinkId,
    slug: String,
    name: String,
    destination: String,
    is_active: bool,
    total_clicks: Option<u64>,
    unique_clicks: Option<u64>,
    #[serde(with = "schemas::time::millis")]
    created_at: DateTime<Utc>,
    /// Only for members: the specification lists every field that a key sees.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    shown: Option<Shown>,
}

/// Further fields for the dashboard.
#[derive(Debug, Serialize)]
struct Shown {
    is_locked: bool,
    tags: Vec<String>,
    #[serde(with = "schemas::time::optional_millis")]
    expires_at: Option<DateTime<Utc>>,
    conversions: Option<u64>,
}

/// Returns a page of the workspace's links and their counters.
pub(crate) async fn list(caller: Caller, Query(page): Query<Page>, app: App) -> Result<Links, ApiError> {
    let now = schemas::time::to_millis(Utc::now());
    let limit = parse_limit(page.limit.as_deref())?;
    let sort = Sort::parse(page.sort.as_deref())?;
    let classes = page.class.as_deref().map_or(Ok(Classes::HUMAN), Classes::parse)?;
    let cursor = page.cursor.as_deref().map(|text| Cursor::parse(text, sort, classes)).transpose()?;
    let filter = Filter {
        workspace: caller.workspace,
        words: page.q.as_deref().map(words).transpose()?.unwrap_or_default(),
        is_active: page.is_active.map(|text| parse_bool("is_active", &text)).transpose()?,
        is_locked: page.is_locked.map(|text| parse_bool("is_locked", &text)).transpose()?,
        tag: page.tag.map(check_tag_parameter).transpose()?,
    };
    // All pages of a list by clicks are of the first page's instant.
    let instant = match &cursor {
        Some(Cursor::Clicks(Clicks(instant, ..))) => *instant,
        _ => now,
    };
    // The index knows parts of three characters. A shorter word reads every link of the workspace, one request at a
    // time.
    let is_short = filter.words.iter().any(|word| word.chars().count() < 3);
    let _turn = if is_short { app.searches.take(caller.workspace).await } else { None };
    let window = Window::parse(
        page.start_date.as_deref(),
        page.end_date.as_deref(),
        app.plans.retention_days(caller.plan),
        instant,
    )?;
    let counted = Counted { window, classes, taken_until: None };
    if sort == Sort::MostClicksFirst {
        let counted = Counted { taken_until: Some(instant), ..counted };
        return by_clicks(&app, &caller, &filter, cursor, counted, limit).await;
    }
    let place = match (sort, cursor) {
        (Sort::OldestFirst, Some(Cursor::Oldest(Created(at, id)))) => Place::Oldest(Some((at, id))),
        (Sort::OldestFirst, _) => Place::Oldest(None),
        (Sort::ByName, Some(Cursor::Name(Named(name, id)))) => Place::Name(Some((name, id))),
        (Sort::ByName, _) => Place::Name(None),
        (_, Some(Cursor::Newest(Created(at, id)))) => Place::Newest(Some((at, id))),
        _ => Place::Newest(None),
    };
    // One more row than the limit shows whether there is a next page.
    let mut rows = links::page(&app.pool, &filter, place, limit + 1).await.map_err(database)?;
    let next_cursor = last_of_page(&mut rows, limit).map(|row| {
        match sort {
            Sort::OldestFirst => Cursor::Oldest(Created(row.created_at, row.id)),
            Sort::ByName => Cursor::Name(Named(row.name.to_ascii_lowercase(), row.id)),
            _ => Cursor::Newest(Created(row.created_at, row.id)),
        }
        .encode()
    });
    let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
    let (counters, conversions) = tokio::join!(
        Counters::read(&app, caller.workspace, counted, &ids),
        conversions(&app, &caller, counted, &ids),
    );
    let items = rows.into_iter().map(|row| item(row, &counters, conversions.as_ref()));
    Ok(Links { links: items.collect(), next_cursor })
}

/// Reads a page in the order of total clicks: the totals from ClickHouse, the links from Postgres.
async fn by_clicks(
    app: &App,
    caller: &Caller,
    filter: &Filter,
    cursor: Option<Cursor>,
    counted: Counted,
    limit: usize,
) -> Result<Links, ApiError> {
    let after = match cursor {
        Some(Cursor::Clicks(Clicks(_, _, total, id))) => Some((total, id)),
        _ => None,
    };
    let totals = Totals::read(app, filter.workspace, counted).await?;
    let mut rows = links::page_by_totals(&app.pool, filter, &totals.links, &totals.totals, after, limit + 1)
        .await
        .map_err(database)?;
    let next_cursor = last_of_page(&mut rows, limit).and_then(|last| {
        let instant = counted.taken_until?;
        Some(Cursor::Clicks(Clicks(instant, counted.classes, last.total, last.link.id)).encode())
    });
    let ids: Vec<Uuid> = rows.iter().map(|row| row.link.id).collect();
    let (counters, conversions) = tokio::join!(
        Counters::read(app, filter.workspace, counted, &ids),
        conversions(app, caller, counted, &ids),
    );
    let counters = counters.require()?;
    let items = rows.into_iter().map(|row| item(row.link, &counters, conversions.as_ref()));
    Ok(Links { links: items.collect(), next_cursor })
}

/// Reads the conversions of a page, which only members see.
async fn conversions(app: &App, caller: &Caller, counted: Counted, links: &[Uuid]) -> Option<Conversions> {
    if !caller.is_member() {
        return None;
    }
    Some(Conversions::read(app, caller.workspace, counted, links).await)
}

/// Truncates the rows to a page. Returns its last row if there are more.
fn last_of_page<R>(rows: &mut Vec<R>, limit: usize) -> Option<&R> {
    if rows.len() <= limit {
        return None;
    }
    rows.truncate(limit);
    rows.last()
}

fn item(row: LinkRow, counters: &Counters, conversions: Option<&Conversions>) -> Item {
    let (total_clicks, unique_clicks) = counters.of(row.id).unzip();
    Item {
        id: row.link_id(),
        slug: row.slug,
        name: row.name,
        destination: row.destination,
        is_active: row.is_active,
        total_clicks,
        unique_clicks,
        created_at: row.created_at,
        shown: conversions.map(|conversions| Shown {
            conversions: conversions.of(row.id, counters),
            is_locked: row.is_locked,
            tags: row.tags,
            expires_at: row.expires_at,
        }),
    }
}

/// Returns the distinct words of a search; a link must contain all of them.
fn words(q: &str) -> Result<Vec<String>, ApiError> {
    check_parameter("q", check_text(q, MAX_SEARCH))?;
    let words: BTreeSet<&str> = q.split_whitespace().collect();
    Ok(words.into_iter().map(str::to_owned).collect())
}

/// Checks a tag as it is stored, or as it was given when a link was created.
fn check_tag_parameter(tag: String) -> Result<String, ApiError> {
    check_parameter("tag", check_tag(&tag).or_else(|_| check_tag(tag.trim()))).map(|()| tag)
}

fn parse_bool(parameter: &'static str, text: &str) -> Result<bool, ApiError> {
    text.parse().map_err(|_| ApiError::invalid_field(parameter, "must be true or false"))
}

fn check_parameter(parameter: &'static str, outcome: Result<(), String>) -> Result<(), ApiError> {
    outcome.map_err(|message| ApiError::invalid_field(parameter, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_cursor_if_there_are_more() {
        let mut rows = vec![1, 2, 3];
        assert_eq!(last_of_page(&mut rows, 3), None);
        assert_eq!(last_of_page(&mut rows, 2), Some(&2));
        assert_eq!(rows, [1, 2]);
    }
}
