//! The SQL of lists. Each order has its index, and so has each filter that leaves few links.

use chrono::{DateTime, Utc};
use sqlx::{PgPool, Postgres, QueryBuilder};
use uuid::Uuid;

use crate::store::links::LinkRow;

/// Which links of a workspace; `None` is: any.
#[derive(Debug)]
pub(crate) struct Filter {
    pub(crate) workspace: Uuid,
    /// Each is a part of slug, name, destination or a tag, without regard to case.
    pub(crate) words: Vec<String>,
    pub(crate) is_active: Option<bool>,
    pub(crate) is_locked: Option<bool>,
    pub(crate) tag: Option<String>,
}

/// An order, and the place in it after which the page begins.
#[derive(Debug)]
pub(crate) enum Place {
    Newest(Option<(DateTime<Utc>, Uuid)>),
    Oldest(Option<(DateTime<Utc>, Uuid)>),
    /// The name is in lower case, as the order sees it.
    Name(Option<(String, Uuid)>),
}

/// A link with the total of an order by totals.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct RankedRow {
    #[sqlx(flatten)]
    pub(crate) link: LinkRow,
    pub(crate) total: i64,
}

/// Reads a page of a workspace's links.
pub(crate) async fn page(
    pool: &PgPool,
    filter: &Filter,
    place: Place,
    limit: usize,
) -> sqlx::Result<Vec<LinkRow>> {
    let mut query = QueryBuilder::new("SELECT l.* FROM links l");
    push_filter(&mut query, filter);
    match place {
        Place::Newest(after) => {
            push_after(&mut query, "(l.created_at, l.id) <", after);
            query.push(" ORDER BY l.created_at DESC, l.id DESC");
        }
        Place::Oldest(after) => {
            push_after(&mut query, "(l.created_at, l.id) >", after);
            query.push(" ORDER BY l.created_at, l.id");
        }
        Place::Name(after) => {
            push_after(&mut query, "(lower(l.name COLLATE \"C\"), l.id) >", after);
            query.push(" ORDER BY lower(l.name COLLATE \"C\"), l.id");
        }
    }
    query.push(" LIMIT ").push_bind(limit as i64);
    query.build_query_as().persistent(is_planned_once(filter)).fetch_all(pool).await
}

/// Reads a page of a workspace's links in the order of the totals given, most first; who has none has zero.
pub(crate) async fn page_by_totals(
    pool: &PgPool,
    filter: &Filter,
    links: &[Uuid],
    totals: &[i64],
    after: Option<(i64, Uuid)>,
    limit: usize,
) -> sqlx::Result<Vec<RankedRow>> {
    let mut query =
        QueryBuilder::new("SELECT l.*, coalesce(t.total, 0) AS total FROM links l LEFT JOIN unnest(");
    query
        .push_bind(links)
        .push("::uuid[], ")
        .push_bind(totals)
        .push("::bigint[]) AS t (id, total) ON t.id = l.id");
    push_filter(&mut query, filter);
    push_after(&mut query, "(coalesce(t.total, 0), l.id) <", after);
    query.push(" ORDER BY coalesce(t.total, 0) DESC, l.id DESC LIMIT ").push_bind(limit as i64);
    query.build_query_as().persistent(is_planned_once(filter)).fetch_all(pool).await
}

/// Whether a prepared statement's plan suits every value. How many links a word or a tag leaves depends on it.
fn is_planned_once(filter: &Filter) -> bool {
    filter.words.is_empty() && filter.tag.is_none()
}

fn push_filter(query: &mut QueryBuilder<Postgres>, filter: &Filter) {
    query.push(" WHERE l.workspace_id = ").push_bind(filter.workspace);
    for word in &filter.words {
        // The expression is that of index links_search, to the letter.
        query
            .push(
                " AND (l.slug || E'\\n' || l.name || E'\\n' || l.destination
                  || CASE WHEN l.tags = '{}' THEN '' ELSE lines_of_tags(l.tags) END) ILIKE ",
            )
            .push_bind(contains(word));
    }
    if let Some(tag) = &filter.tag {
        query.push(" AND l.tags @> ARRAY[").push_bind(tag.clone()).push("::text]");
    }
    // As literals and not as values: the partial indexes are for one of the two.
    match filter.is_active {
        Some(true) => drop(query.push(" AND l.is_active")),
        Some(false) => drop(query.push(" AND NOT l.is_active")),
        None => {}
    }
    match filter.is_locked {
        Some(true) => drop(query.push(" AND l.is_locked")),
        Some(false) => drop(query.push(" AND NOT l.is_locked")),
        None => {}
    }
}

fn push_after<T>(query: &mut QueryBuilder<Postgres>, order: &'static str, after: Option<(T, Uuid)>)
where
    T: sqlx::Type<Postgres> + for<'q> sqlx::Encode<'q, Postgres> + Send + 'static,
{
    if let Some((value, id)) = after {
        query.push(" AND ").push(order).push(" (").push_bind(value).push(", ").push_bind(id).push(")");
    }
}

/// The pattern of texts that contain `part`, in which no character of it means anything but itself.
fn contains(part: &str) -> String {
    let mut pattern = String::with_capacity(part.len() + 2);
    pattern.push('%');
    for character in part.chars() {
        if matches!(character, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('%');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_searched_text_means_itself() {
        assert_eq!(contains("spring"), "%spring%");
        assert_eq!(contains(r"50%_off\"), r"%50\%\_off\\%");
    }
}
