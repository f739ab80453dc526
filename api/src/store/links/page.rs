//! Lists of links. Each order has an index, and so does each selective filter.

use chrono::{DateTime, Utc};
use sqlx::{PgPool, Postgres, QueryBuilder};
use uuid::Uuid;

use crate::store::links::LinkRow;

/// Which links of a workspace; `None` means any.
#[derive(Debug)]
pub(crate) struct Filter {
    pub(crate) workspace: Uuid,
    /// Each word is contained in slug, name, destination or a tag, ignoring case.
    pub(crate) words: Vec<String>,
    pub(crate) is_active: Option<bool>,
    pub(crate) is_locked: Option<bool>,
    /// As stored, or with white space around it.
    pub(crate) tag: Option<String>,
}

/// An order, and the place after which the page begins.
#[derive(Debug)]
pub(crate) enum Place {
    Newest(Option<(DateTime<Utc>, Uuid)>),
    Oldest(Option<(DateTime<Utc>, Uuid)>),
    /// The name in lower case, as it is ordered.
    Name(Option<(String, Uuid)>),
}

/// A link and its total, in an order by totals.
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

/// Reads a page of a workspace's links in descending order of the given totals; zero by default.
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

/// Returns whether one plan suits every value. The number of links with a word or tag varies too much.
fn is_planned_once(filter: &Filter) -> bool {
    filter.words.is_empty() && filter.tag.is_none()
}

fn push_filter(query: &mut QueryBuilder<Postgres>, filter: &Filter) {
    query.push(" WHERE l.workspace_id = ").push_bind(filter.workspace);
    for word in &filter.words {
        // Exactly the expression of index links_search.
        query
            .push(
                " AND (l.slug || E'\\n' || l.name || E'\\n' || l.destination
                  || CASE WHEN l.tags = '{}' THEN '' ELSE lines_of_tags(l.tags) END) ILIKE ",
            )
            .push_bind(contains(word));
    }
    if let Some(tag) = &filter.tag {
        // Tags are trimmed, but old ones are stored as they were sent.
        query.push(" AND l.tags && ").push_bind(vec![tag.clone(), tag.trim().to_owned()]);
    }
    // Literals, so that the partial indexes apply.
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

/// Returns the LIKE pattern of texts that contain `part` literally.
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
    fn a_search_text_is_literal() {
        assert_eq!(contains("spring"), "%spring%");
        assert_eq!(contains(r"50%_off\"), r"%50\%\_off\\%");
    }
}
