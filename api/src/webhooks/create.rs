//! `POST /webhooks`

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::Utc;
use serde::{Deserialize, Serialize};
use service::destination::DestinationRules;
use service::http::ApiError;
use service::sealed;
use url::Url;
use uuid::Uuid;

use super::store::{self, EndpointRow};
use super::{CLICK_CLASSES, EVENTS, Endpoint};
use crate::App;
use crate::auth::Writer;
use crate::error::database;
use crate::faults::Faults;

/// The body.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewEndpoint {
    url: String,
    #[serde(default)]
    description: String,
    events: Vec<String>,
    click_classes: Option<Vec<String>>,
}

/// The endpoint, and its secret for the only time.
#[derive(Debug, Serialize)]
pub(crate) struct Created {
    #[serde(flatten)]
    endpoint: Endpoint,
    secret: String,
}

/// Creates an endpoint and draws its signing secret.
pub(crate) async fn create(Writer(caller): Writer, body: NewEndpoint, app: App) -> Result<Created, ApiError> {
    let click_classes = body.click_classes.unwrap_or_else(|| vec!["human".to_owned()]);
    let mut faults = Faults::default();
    if let Err(message) = check_url(&body.url, &app.webhook_rules) {
        faults.add("url", message);
    }
    if body.description.chars().count() > 200 || body.description.chars().any(char::is_control) {
        faults.add("description", "must have at most 200 characters and no control characters");
    }
    faults.note("events", check_choice(&body.events, &EVENTS));
    faults.note("click_classes", check_choice(&click_classes, &CLICK_CLASSES));
    faults.into_result()?;

    let id = Uuid::now_v7();
    let secret = format!("whsec_{}", STANDARD.encode(rand::random::<[u8; 32]>()));
    let sealed =
        sealed::seal(&app.secret_keys, id.as_bytes(), &secret, rand::random()).map_err(ApiError::internal)?;
    let now = schemas::time::to_millis(Utc::now());
    let row = EndpointRow {
        id,
        url: body.url,
        description: body.description,
        events: body.events,
        click_classes,
        status: "enabled".to_owned(),
        disabled_reason: None,
        consecutive_exhausted: 0,
        created_at: now,
        updated_at: now,
    };
    store::insert(&app.pool, caller.workspace, &row, &sealed).await.map_err(database)?;
    Ok(Created { endpoint: row.into(), secret })
}

/// Says what is wrong with an endpoint's URL. The dispatcher looks again before every send, at the addresses too.
fn check_url(text: &str, rules: &DestinationRules) -> Result<(), String> {
    let url = Url::parse(text).map_err(|_| "must be an absolute URL".to_owned())?;
    rules.check_url(&url).map(|_| ()).map_err(|refused| refused.to_string())
}

fn check_choice(given: &[String], known: &[&str]) -> Result<(), &'static str> {
    if given.is_empty() {
        return Err("must have at least one entry");
    }
    if !given.iter().all(|one| known.contains(&one.as_str())) {
        return Err("has an entry that does not exist");
    }
    let mut sorted: Vec<&String> = given.iter().collect();
    sorted.sort();
    sorted.dedup();
    if sorted.len() == given.len() { Ok(()) } else { Err("must have no entry twice") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_names_kinds_that_exist_once_each() {
        let check = |events: &[&str]| {
            check_choice(&events.iter().map(|&event| event.to_owned()).collect::<Vec<_>>(), &EVENTS)
        };
        assert!(check(&["click.created", "link.deleted"]).is_ok());
        assert!(check(&[]).is_err());
        assert!(check(&["click.deleted"]).is_err());
        assert!(check(&["click.created", "click.created"]).is_err());
    }
}
