//! `GET …/tags` and `GET …/slugs/{slug}`

use serde::Serialize;
use service::http::ApiError;

use crate::app::App;
use crate::error::database;
use crate::resources::links::slug::{SlugFault, check_slug};
use crate::store::links;
use crate::web::caller::Caller;
use crate::web::request::Segment;

/// Most tags in an answer.
const MAX_TAGS: i64 = 1_000;

/// Every tag of a workspace.
#[derive(Debug, Serialize)]
pub(crate) struct Tags {
    tags: Vec<String>,
}

/// Whether a slug is available.
#[derive(Debug, Serialize)]
pub(crate) struct Slug {
    available: bool,
    /// The reason if it is not.
    reason: Option<&'static str>,
}

/// Returns the tags of a workspace, sorted.
pub(crate) async fn tags(caller: Caller, app: App) -> Result<Tags, ApiError> {
    Ok(Tags { tags: links::tags(&app.pool, caller.workspace, MAX_TAGS).await.map_err(database)? })
}

/// Returns whether a slug is available now. Only creating the link reserves it.
pub(crate) async fn slug(caller: Caller, Segment(slug): Segment, app: App) -> Result<Slug, ApiError> {
    let reason = match check_slug(&slug) {
        Err(SlugFault::Reserved) => Some("reserved"),
        Err(SlugFault::Malformed(_)) => Some("malformed"),
        Ok(()) => links::is_slug_taken(&app.pool, caller.workspace, &slug)
            .await
            .map_err(database)?
            .then_some("taken"),
    };
    Ok(Slug { available: reason.is_none(), reason })
}
