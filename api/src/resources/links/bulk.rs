//! `POST /links/bulk`

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use service::http::{ApiError, parse_entry};
use sqlx::PgConnection;

use super::create;
use crate::account::quota::LinkQuota;
use crate::app::App;
use crate::error::{database, retry_deadlocks};
use crate::resources::links::fields::{Checked, Fields};
use crate::resources::links::object::{FullLink, LinkObject};
use crate::store::audit::Of;
use crate::store::{audit, links};
use crate::web::caller::{Caller, Editor};
use crate::web::idempotency::{Answer, IdempotencyKey, NamedRequest};
use crate::web::request::Json;

/// Most entries of a request.
const MAX_LINKS: usize = 100;

/// The body. Each entry is parsed separately, so that a malformed one does not affect the others.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewLinks {
    links: Vec<Box<RawValue>>,
}

/// What became of each entry, in their order.
#[derive(Debug, Serialize)]
struct Results {
    results: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Entry {
    index: usize,
    status: u16,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Link(Box<FullLink>),
    Error(Value),
}

/// Creates links, each with an outcome of its own, in one transaction: a crash leaves none of them.
pub(crate) async fn bulk(
    Editor(caller): Editor,
    key: Option<IdempotencyKey>,
    Json(body): Json<NewLinks>,
    app: App,
) -> Result<Answer, ApiError> {
    if !(1..=MAX_LINKS).contains(&body.links.len()) {
        return Err(ApiError::invalid_field("links", "must have 1 to 100 entries"));
    }
    let named = key.map(|key| NamedRequest::new(caller.workspace, key, "create links", &body)).transpose()?;
    let read = |entry: &RawValue| parse_entry::<Fields>(entry.get().as_bytes())?.check_new(&app.destinations);
    let entries: Vec<Result<Checked, ApiError>> = body.links.iter().map(|entry| read(entry)).collect();
    let (named, entries, app) = (named.as_ref(), &entries, &app);
    retry_deadlocks(|| bulk_once(named, &caller, entries, app)).await
}

async fn bulk_once(
    named: Option<&NamedRequest>,
    caller: &Caller,
    entries: &[Result<Checked, ApiError>],
    app: &App,
) -> Result<Answer, ApiError> {
    let (mut transaction, mut quota) = LinkQuota::begin(app, caller).await?;
    if let Some(named) = named
        && let Some(answer) = named.claim(&mut transaction).await?
    {
        return Ok(answer);
    }
    let names = entries.iter().flatten().map(Checked::names);
    links::queue_for_names(&mut transaction, caller.workspace, names).await.map_err(database)?;
    let mut results = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let (status, outcome) = match create_entry(&mut transaction, entry, caller, &mut quota, app).await {
            Ok(link) => (StatusCode::CREATED, Outcome::Link(Box::new(link))),
            // Not an outcome of one entry: nothing of the request is done.
            Err(error) if error.status().is_server_error() => return Err(error),
            Err(error) => (error.status(), Outcome::Error(error.body())),
        };
        results.push(Entry { index, status: status.as_u16(), outcome });
    }
    let created = results.iter().filter(|entry| matches!(entry.outcome, Outcome::Link(_))).count();
    let answer = Answer::new(StatusCode::OK, &Results { results }, None)?;
    if created == 0 {
        // Nothing to repeat, so the key is not kept, as after an error.
        return Ok(answer);
    }
    if let Some(named) = named {
        named.keep(&mut transaction, &answer).await.map_err(database)?;
    }
    audit::record(
        &mut transaction,
        &caller.actor(),
        "create-links",
        "links",
        Of::Workspace(caller.workspace),
        json!({ "created": created }),
    )
    .await
    .map_err(database)?;
    transaction.commit().await.map_err(database)?;
    Ok(answer)
}

async fn create_entry(
    transaction: &mut PgConnection,
    entry: &Result<Checked, ApiError>,
    caller: &Caller,
    quota: &mut LinkQuota,
    app: &App,
) -> Result<FullLink, ApiError> {
    let checked = entry.as_ref().map_err(Clone::clone)?;
    let row = create::insert(transaction, checked, caller, quota, app).await?;
    Ok(FullLink::unclicked(LinkObject::new(&row, app)))
}
