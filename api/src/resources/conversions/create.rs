//! `POST /conversions`, for anyone who holds a click id.

use chrono::{DateTime, Utc};
use http::HeaderMap;
use http::header::{ORIGIN, REFERER};
use schemas::id::ConversionId;
use serde::{Deserialize, Serialize};
use service::http::ApiError;
use url::Url;
use uuid::Uuid;

use crate::app::App;
use crate::error::database;
use crate::store::conversions;
use crate::store::conversions::{ConversionRow, MOST_PER_DAY, Outcome};
use crate::web::caller::Anyone;
use crate::web::faults::Faults;
use crate::web::limits::until_midnight;
use crate::web::request::{Argument, Json, Request};

/// Longest personal field, in bytes.
const MAX_FIELD: usize = 500;

/// The body.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewConversion {
    click_id: Option<String>,
    external_user_id: Option<String>,
    user_name: Option<String>,
    user_email: Option<String>,
}

/// The page that sent the request, from its headers.
#[derive(Debug, Default)]
pub(crate) struct Page {
    host: Option<String>,
    url: Option<String>,
}

impl Argument for Page {
    async fn take(request: &mut Request) -> Result<Self, ApiError> {
        Ok(from_request(&request.head.headers))
    }
}

/// Reads `Origin` and `Referer`, ignoring values that are not URLs of the web. Of a page's URL, user information and
/// fragment are not kept.
fn from_request(headers: &HeaderMap) -> Page {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let is_of_web = |url: &Url| matches!(url.scheme(), "http" | "https");
    let parsed = |text: Option<&str>| text.and_then(|text| Url::parse(text).ok()).filter(is_of_web);
    let referer = text(REFERER).filter(|text| text.len() <= 2048);
    let host =
        parsed(text(ORIGIN)).or_else(|| parsed(referer)).and_then(|url| url.host_str().map(str::to_owned));
    let without_secrets = |mut url: Url| {
        url.set_fragment(None);
        // A URL of the web has a host, so it may have user information.
        let _ = url.set_username("").and_then(|()| url.set_password(None));
        url.into()
    };
    Page { host, url: parsed(referer).map(without_secrets) }
}

/// The answer.
#[derive(Debug, Serialize)]
pub(crate) struct Registered {
    success: bool,
    conversion: Conversion,
}

#[derive(Debug, Serialize)]
struct Conversion {
    id: ConversionId,
    click_id: String,
    external_user_id: Option<String>,
    user_name: Option<String>,
    user_email: Option<String>,
    #[serde(with = "schemas::time::millis")]
    created_at: DateTime<Utc>,
}

/// Registers a conversion of a click.
pub(crate) async fn create(
    _: Anyone,
    page: Page,
    Json(body): Json<NewConversion>,
    app: App,
) -> Result<Registered, ApiError> {
    let click_id = body.click_id.filter(|id| !id.is_empty()).ok_or_else(|| {
        ApiError::invalid_field(
            "click_id",
            "is required: the parameter click_id of the URL that the visitor landed on",
        )
    })?;
    let mut faults = Faults::default();
    for (field, value) in [
        ("external_user_id", &body.external_user_id),
        ("user_name", &body.user_name),
        ("user_email", &body.user_email),
    ] {
        faults.note(field, check_field(value.as_deref()));
    }
    faults.into_result()?;

    // Forged ids are rejected here, without a look-up.
    let click = app.click_ids.verify(&click_id).map_err(|_| unknown_click())?;
    let row = ConversionRow {
        id: Uuid::now_v7(),
        click_id,
        link: click.link_id,
        clicked_at: click.occurred_at,
        external_user_id: body.external_user_id,
        user_name: body.user_name,
        user_email: body.user_email,
        host: page.host,
        page_url: page.url,
        created_at: schemas::time::to_millis(Utc::now()),
    };
    match conversions::insert(&app.pool, &row).await.map_err(database)? {
        Outcome::Registered => Ok(Registered {
            success: true,
            conversion: Conversion {
                id: ConversionId::from_uuid(row.id),
                click_id: row.click_id,
                external_user_id: row.external_user_id,
                user_name: row.user_name,
                user_email: row.user_email,
                created_at: row.created_at,
            },
        }),
        Outcome::NoSuchLink => Err(unknown_click()),
        Outcome::TooMany => {
            metrics::counter!("hopline_conversions_over_limit_total").increment(1);
            let message =
                format!("The account has {MOST_PER_DAY} conversions today. Try again tomorrow, by UTC.");
            Err(ApiError::rate_limited(message).with_retry_after(until_midnight(Utc::now())))
        }
        Outcome::Exists => Err(ApiError::conversion_exists("A conversion already exists for this click.")),
    }
}

fn unknown_click() -> ApiError {
    ApiError::not_found("There is no click with this click_id.")
}

/// Personal fields are free text, but Postgres stores no NUL.
fn check_field(value: Option<&str>) -> Result<(), &'static str> {
    match value {
        Some(value) if value.len() > MAX_FIELD => Err("must have at most 500 bytes"),
        Some(value) if value.chars().any(char::is_control) => Err("must not contain control characters"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn page(pairs: &[(http::HeaderName, &'static [u8])]) -> Page {
        let headers = pairs
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_bytes(value).unwrap()))
            .collect();
        from_request(&headers)
    }

    #[test]
    fn the_page_is_read_from_origin_and_referer() {
        let both = page(&[(ORIGIN, b"https://shop.example"), (REFERER, b"https://shop.example/thanks?x=1")]);
        assert_eq!(both.host.as_deref(), Some("shop.example"));
        assert_eq!(both.url.as_deref(), Some("https://shop.example/thanks?x=1"));
        let secret = page(&[(REFERER, b"https://ada:secret@shop.example:8443/thanks?x=1#access_token=1")]);
        assert_eq!(secret.url.as_deref(), Some("https://shop.example:8443/thanks?x=1"));
        assert_eq!(secret.host.as_deref(), Some("shop.example"));
        let referer_only = page(&[(REFERER, b"https://shop.example/thanks")]);
        assert_eq!(referer_only.host.as_deref(), Some("shop.example"));
    }

    #[test]
    fn headers_without_a_url_are_ignored() {
        for bad in [
            &b"null"[..],
            b"\xff\xfe",
            b"",
            b"not a url",
            b"javascript://shop.example/%0aalert(1)",
            b"android-app://com.example",
            b"data:text/html,x",
        ] {
            let page = page(&[(ORIGIN, bad), (REFERER, bad)]);
            assert!(page.host.is_none() && page.url.is_none());
        }
    }
}
