//! Single clicks: pages, and exports as they come.

mod export;
mod format;
mod list;

use chrono::{DateTime, Utc};
use schemas::id::LinkId;
use schemas::message;
use serde::{Deserialize, Serialize};

pub(crate) use format::Format;
pub(crate) use list::clicks;

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
    /// Another way to say what `Accept` says, for addresses that browsers follow.
    format: Option<Format>,
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

impl From<message::Click> for Click {
    fn from(click: message::Click) -> Self {
        Self {
            click_id: click.click_id,
            link_id: click.link_id,
            slug: click.slug,
            occurred_at: click.occurred_at,
            class: click.class.as_str().to_owned(),
            country: click.country,
            device_type: click.device_type,
            browser: click.browser,
            os: click.os,
            referrer: click.referrer,
            utm_source: click.utm_source,
            utm_medium: click.utm_medium,
            utm_campaign: click.utm_campaign,
            utm_term: click.utm_term,
            utm_content: click.utm_content,
            external_click_id: click.external_click_id,
        }
    }
}

/// A click of the topic as callers see it, on one line.
pub(crate) fn json(click: message::Click) -> String {
    // Texts, ids and times always become JSON.
    serde_json::to_string(&Click::from(click)).unwrap_or_default()
}
