//! Single clicks: pages, and exports as they come.

mod export;
mod format;
mod list;

use chrono::{DateTime, Utc};
use schemas::id::LinkId;
use serde::{Deserialize, Serialize};

pub(crate) use format::Format;
pub(crate) use list::{Answer, clicks};

use crate::stats::store::ClickRow;

/// The query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    start_date: Option<String>,
    end_date: Option<String>,
    class: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

/// A click as callers see it: nothing of the visitor but what the request said of itself. Null is: not known.
#[derive(Debug, Serialize)]
struct Click {
    click_id: String,
    link_id: LinkId,
    slug: String,
    #[serde(with = "schemas::time::millis")]
    occurred_at: DateTime<Utc>,
    class: String,
    country: Option<String>,
    device_type: Option<String>,
    browser: Option<String>,
    os: Option<String>,
    referrer: Option<String>,
    utm_source: Option<String>,
    utm_medium: Option<String>,
    utm_campaign: Option<String>,
    utm_term: Option<String>,
    utm_content: Option<String>,
    external_click_id: Option<String>,
}

impl From<ClickRow> for Click {
    fn from(row: ClickRow) -> Self {
        let known = |text: String| Some(text).filter(|text| !text.is_empty());
        Self {
            click_id: row.click_id,
            link_id: LinkId::from_uuid(row.link_id),
            slug: row.slug,
            occurred_at: DateTime::from_timestamp_millis(row.at).unwrap_or_default(),
            class: row.class,
            country: known(row.country),
            device_type: known(row.device_type),
            browser: known(row.browser),
            os: known(row.os),
            referrer: known(row.referrer),
            utm_source: known(row.utm_source),
            utm_medium: known(row.utm_medium),
            utm_campaign: known(row.utm_campaign),
            utm_term: known(row.utm_term),
            utm_content: known(row.utm_content),
            external_click_id: known(row.external_click_id),
        }
    }
}
