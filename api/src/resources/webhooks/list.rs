//! `GET /webhooks`

use serde::{Deserialize, Serialize};
use service::http::ApiError;
use uuid::Uuid;

use super::Endpoint;
use crate::app::App;
use crate::error::database;
use crate::store::endpoints;
use crate::web::caller::Writer;
use crate::web::page::{Paging, cut, encode_cursor};
use crate::web::request::Query;

/// A page of a workspace's endpoints, newest first.
#[derive(Debug, Serialize)]
pub(crate) struct Endpoints {
    webhooks: Vec<Endpoint>,
    next_cursor: Option<String>,
}

/// The place of a page's last endpoint: its id, which begins with its time.
#[derive(Debug, Serialize, Deserialize)]
enum Cursor {
    #[serde(rename = "w")]
    Endpoints(Uuid),
}

/// Answers with a page of the workspace's endpoints.
pub(crate) async fn list(
    Writer(caller): Writer,
    Query(paging): Query<Paging>,
    app: App,
) -> Result<Endpoints, ApiError> {
    let (limit, after) = paging.parse("webhook endpoints")?;
    let before = after.map(|Cursor::Endpoints(id)| id);
    // One more row than the limit shows whether there is a next page.
    let mut rows =
        endpoints::page(&app.pool, caller.workspace, before, limit as i64 + 1).await.map_err(database)?;
    let next_cursor = cut(&mut rows, limit).map(|row| encode_cursor(&Cursor::Endpoints(row.id)));
    let webhooks = rows.into_iter().map(Endpoint::from).collect();
    Ok(Endpoints { webhooks, next_cursor })
}
