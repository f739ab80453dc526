//! `GET …/tags` and `GET …/slugs/{slug}`

use serde::Serialize;
use service::http::ApiError;

use crate::app::App;
use crate::error::database;
use crate::resources::links::slug::{SlugFault, check_slug};
use crate::store::links;
use crate::web::caller::Caller;
use crate::web::request::Segment;

/// Most tags of an answer.
const MAX_TAGS: i64 = 1_000;

/// Every tag of a workspace.
#[derive(Debug, Serialize)]
pub(crate) struct Tags {
    tags: Vec<String>,
}

/// Whether a link could have a slug.
#[derive(Debug, Serialize)]
pub(crate) struct Slug {
    available: bool,
    /// Why not.
    reason: Option<&'static str>,
}

/// Answers with the tags of a workspace, sorted.
pub(crate) async fn tags(caller: Caller, app: App) -> Result<Tags, ApiError> {
    Ok(Tags { tags: links::tags(&app.pool, caller.workspace, MAX_TAGS).await.map_err(database)? })
}

/// Answers whether a slug is free at this moment; only its link's creation can hold it.
pub(crate) async fn slug(_: Caller, Segment(slug): Segment, app: App) -> Result<Slug, ApiError> {
    let reason = match check_slug(&slug) {
        Err(SlugFault::Reserved) => Some("reserved"),
        Err(SlugFault::Malformed(_)) => Some("malformed"),
        Ok(()) => links::is_slug_taken(&app.pool, &slug).await.map_err(database)?.then_some("taken"),
    };
    Ok(Slug { available: reason.is_none(), reason })
}
