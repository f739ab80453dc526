//! `POST /webhooks`

use chrono::Utc;
use schemas::id::EndpointId;
use serde::Deserialize;
use service::http::ApiError;
use uuid::Uuid;

use super::fields::Given;
use super::{Endpoint, WithSecret, record, secret, sends_to};
use crate::account::quota;
use crate::app::App;
use crate::error::database;
use crate::store::endpoints;
use crate::store::endpoints::EndpointRow;
use crate::web::caller::Writer;
use crate::web::faults::Faults;
use crate::web::request::Json;

/// Endpoints of a workspace on any plan: each multiplies the deliveries of every click.
const MAX_ENDPOINTS: i64 = 20;

/// The body.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewEndpoint {
    url: String,
    #[serde(default)]
    description: String,
    events: Vec<String>,
    #[serde(default = "humans")]
    click_classes: Vec<String>,
}

fn humans() -> Vec<String> {
    vec!["human".to_owned()]
}

/// Creates an endpoint and draws its signing secret. A 21st of a workspace is rejected: 403, `PLAN_LIMIT`.
pub(crate) async fn create(
    Writer(caller): Writer,
    Json(body): Json<NewEndpoint>,
    app: App,
) -> Result<WithSecret, ApiError> {
    let mut faults = Faults::default();
    let given = Given {
        url: Some(&body.url),
        description: Some(&body.description),
        events: Some(&body.events),
        click_classes: Some(&body.click_classes),
    };
    given.check(&app.webhook_rules, &mut faults);
    faults.into_result()?;

    let id = Uuid::now_v7();
    let (secret, sealed) = secret::draw(&app, id)?;
    let now = schemas::time::to_millis(Utc::now());
    let row = EndpointRow {
        id,
        url: body.url,
        description: body.description,
        events: body.events,
        click_classes: body.click_classes,
        status: "enabled".to_owned(),
        disabled_reason: None,
        consecutive_exhausted: 0,
        created_at: now,
        updated_at: now,
        last_success_at: None,
        last_failure_at: None,
        is_full: false,
        dropped: 0,
        first_dropped_at: None,
        last_dropped_at: None,
    };
    let mut transaction = app.pool.begin().await.map_err(database)?;
    quota::share_to_write(&mut transaction, caller.account).await?;
    if endpoints::lock_and_count(&mut transaction, caller.workspace).await.map_err(database)? >= MAX_ENDPOINTS
    {
        return Err(ApiError::plan_limit(format!(
            "A workspace can have at most {MAX_ENDPOINTS} webhook endpoints, on every plan."
        )));
    }
    endpoints::insert(&mut transaction, caller.workspace, &row, &sealed).await.map_err(database)?;
    record(&mut transaction, &caller, "create-endpoint", EndpointId::from_uuid(id), sends_to(&row.url))
        .await?;
    transaction.commit().await.map_err(database)?;
    Ok(WithSecret { endpoint: Endpoint::from(row), secret })
}
