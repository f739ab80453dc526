//! `POST /links`

use chrono::Utc;
use http::StatusCode;
use schemas::message::{ForwardQuery, LinkEventKind};
use service::http::ApiError;
use sqlx::PgConnection;
use uuid::Uuid;

use super::slug;
use crate::account::quota::LinkQuota;
use crate::app::App;
use crate::error::{database, retry_deadlocks};
use crate::resources::links::fields::{Checked, Fields, trimmed};
use crate::resources::links::object::{FullLink, LinkObject, external_id_taken, slug_taken};
use crate::store::links;
use crate::store::links::{EventPayload, LinkRow};
use crate::web::caller::{Caller, Editor};
use crate::web::idempotency::{Answer, IdempotencyKey, NamedRequest};
use crate::web::request::Json;
use crate::web::revision::Tagged;

/// Attempts to draw a free slug. With a million links, a draw collides once in a million.
const DRAWS: usize = 8;

/// The revision of a new link.
pub(super) const FIRST_REVISION: i64 = 1;

/// Creates a link and returns it, with its path in `Location`.
pub(crate) async fn create(
    Editor(caller): Editor,
    key: Option<IdempotencyKey>,
    Json(fields): Json<Fields>,
    app: App,
) -> Result<Tagged<Answer>, ApiError> {
    let named =
        key.map(|key| NamedRequest::new(caller.workspace, key, "create link", &fields)).transpose()?;
    let checked = fields.check_new(&app.destinations)?;
    let (named, checked, app) = (named.as_ref(), &checked, &app);
    let answer = retry_deadlocks(|| create_once(named, &caller, checked, app)).await?;
    Ok(Tagged(answer, FIRST_REVISION))
}

async fn create_once(
    named: Option<&NamedRequest>,
    caller: &Caller,
    checked: &Checked,
    app: &App,
) -> Result<Answer, ApiError> {
    // Without an idempotency key and a cap, one statement inserts the link. If it does not, the transaction below finds
    // the reason.
    if named.is_none()
        && app.plans.link_cap(caller.plan).is_none()
        && caller.require_edit(caller.plan).is_ok()
    {
        let (row, told) = draw(checked, caller, app);
        if links::insert(&app.pool, caller.account, caller.plan, &row, told).await.map_err(database)? {
            return created(&row, app);
        }
    }
    let (mut transaction, mut quota) = LinkQuota::begin(app, caller).await?;
    if let Some(named) = named
        && let Some(answer) = named.claim(&mut transaction).await?
    {
        return Ok(answer);
    }
    let row = insert(&mut transaction, checked, caller, &mut quota, app).await?;
    let answer = created(&row, app)?;
    if let Some(named) = named {
        named.keep(&mut transaction, &answer).await.map_err(database)?;
    }
    transaction.commit().await.map_err(database)?;
    Ok(answer)
}

/// Returns the answer for a created link.
pub(crate) fn created(row: &LinkRow, app: &App) -> Result<Answer, ApiError> {
    let location = format!("/api/v1/links/{}", row.link_id());
    Answer::new(StatusCode::CREATED, &FullLink::unclicked(LinkObject::new(row, app)), Some(location))
}

/// Inserts a link from fields that passed [`Fields::check_new`], and queues its messages, in this transaction.
///
/// An error changes nothing, and the transaction can continue.
pub(crate) async fn insert(
    transaction: &mut PgConnection,
    checked: &Checked,
    caller: &Caller,
    quota: &mut LinkQuota,
    app: &App,
) -> Result<LinkRow, ApiError> {
    quota.check()?;
    for _ in 0..DRAWS {
        let (row, told) = draw(checked, caller, app);
        // `ON CONFLICT DO NOTHING` instead of an error, which would end the transaction.
        let inserted = links::insert(&mut *transaction, caller.account, quota.plan(), &row, told).await;
        if inserted.map_err(database)? {
            quota.take();
            return Ok(row);
        }
        let external_id = row.external_id.as_deref();
        if links::has_external_id(transaction, row.workspace_id, external_id).await.map_err(database)? {
            return Err(external_id_taken());
        }
        if checked.slug.is_some() {
            return Err(slug_taken(&row.slug));
        }
    }
    Err(ApiError::internal(NoFreeSlug))
}

/// Builds the row of a link, with a drawn slug if none is given, and its event data.
fn draw(checked: &Checked, caller: &Caller, app: &App) -> (LinkRow, EventPayload) {
    let row = new_row(checked, caller.workspace, caller.user);
    let data = LinkObject::new(&row, app).event_data(None);
    (row, EventPayload { kind: LinkEventKind::Created, data })
}

/// Inserts links from fields that passed [`Fields::check_new`], many with one statement, in this transaction.
///
/// The outcomes are in order, and those that [`insert`] would have had.
pub(crate) async fn insert_all(
    transaction: &mut PgConnection,
    entries: &[&Checked],
    caller: &Caller,
    quota: &mut LinkQuota,
    app: &App,
) -> Result<Vec<Result<(), ApiError>>, ApiError> {
    // Near the cap, each link decides how many are left for the next.
    let together = if quota.has(entries.len()) { entries } else { &[] };
    let links: Vec<_> = together
        .iter()
        .map(|checked| {
            let (row, told) = draw(checked, caller, app);
            (row, told.data)
        })
        .collect();
    let inserted = links::insert_all(transaction, &links).await.map_err(database)?;
    inserted.iter().for_each(|_| quota.take());
    let mut outcomes = Vec::with_capacity(entries.len());
    for (place, checked) in entries.iter().enumerate() {
        if links.get(place).is_some_and(|(row, _)| inserted.contains(&row.id)) {
            outcomes.push(Ok(()));
            continue;
        }
        // One by one, to find what is taken or to draw another slug.
        match insert(transaction, checked, caller, quota, app).await {
            // Not an outcome of this link.
            Err(error) if error.status().is_server_error() => return Err(error),
            outcome => outcomes.push(outcome.map(drop)),
        }
    }
    Ok(outcomes)
}

#[derive(Debug, thiserror::Error)]
#[error("no free slug in {DRAWS} draws")]
struct NoFreeSlug;

fn new_row(checked: &Checked, workspace: Uuid, user: Uuid) -> LinkRow {
    let now = schemas::time::to_millis(Utc::now());
    LinkRow {
        id: Uuid::now_v7(),
        workspace_id: workspace,
        user_id: user,
        slug: checked.slug.clone().unwrap_or_else(|| slug::draw(&mut rand::rng())),
        name: checked.name.clone().unwrap_or_default(),
        destination: checked.destination.clone().unwrap_or_default(),
        is_active: checked.is_active.unwrap_or(true),
        is_locked: false,
        is_blocked: false,
        blocked_reason: None,
        blocked_host: None,
        redirect_status: checked.redirect_status.unwrap_or(302),
        forward_query: checked.forward_query.unwrap_or(ForwardQuery::Append).as_str().to_owned(),
        append_click_id: checked.append_click_id.unwrap_or(true),
        expires_at: checked.expires_at.flatten(),
        external_id: checked.external_id.clone().flatten(),
        tags: checked.tags.clone().map(trimmed).unwrap_or_default(),
        revision: FIRST_REVISION,
        created_at: now,
        updated_at: now,
    }
}
