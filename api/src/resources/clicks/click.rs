//! A click as callers see it.

use chrono::{DateTime, Utc};
use schemas::id::LinkId;
use schemas::message;
use schemas::referrer::normalize;
use serde::Serialize;

use crate::store::clicks::ClickRow;

/// A click as callers see it, without the visitor. Null is unknown.
#[derive(Debug, Serialize)]
pub(crate) struct Click {
    pub(super) click_id: String,
    pub(super) link_id: LinkId,
    pub(super) slug: String,
    #[serde(with = "schemas::time::millis")]
    pub(super) occurred_at: DateTime<Utc>,
    pub(super) class: String,
    pub(super) country: Option<String>,
    pub(super) device_type: Option<String>,
    pub(super) browser: Option<String>,
    pub(super) os: Option<String>,
    pub(super) referrer: Option<String>,
    pub(super) utm_source: Option<String>,
    pub(super) utm_medium: Option<String>,
    pub(super) utm_campaign: Option<String>,
    pub(super) utm_term: Option<String>,
    pub(super) utm_content: Option<String>,
    pub(super) external_click_id: Option<String>,
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
            referrer: click.referrer.map(|host| normalize(&host).into_owned()),
            utm_source: click.utm_source,
            utm_medium: click.utm_medium,
            utm_campaign: click.utm_campaign,
            utm_term: click.utm_term,
            utm_content: click.utm_content,
            external_click_id: click.external_click_id,
        }
    }
}

impl Click {
    /// Returns a click without what a viewer does not see: the `click_id` of the short URL's query, which may name a
    /// person.
    pub(super) fn seen_by_viewers(self) -> Self {
        Self { external_click_id: None, ..self }
    }

    /// Returns a row as a caller sees it, who may be a viewer.
    pub(super) fn of_row(row: ClickRow, is_viewer: bool) -> Self {
        let click = Self::from(row);
        if is_viewer { click.seen_by_viewers() } else { click }
    }
}

/// A click of the topic as one line of JSON.
pub(crate) struct Line {
    pub(crate) json: String,
    /// As viewers see it, where that differs.
    pub(crate) of_viewers: Option<String>,
}

impl From<message::Click> for Line {
    fn from(click: message::Click) -> Self {
        // Texts, ids and times always become JSON.
        let json = |click: &Click| serde_json::to_string(click).unwrap_or_default();
        let click = Click::from(click);
        let line = json(&click);
        let has_personal_fields = click.external_click_id.is_some();
        Self { json: line, of_viewers: has_personal_fields.then(|| json(&click.seen_by_viewers())) }
    }
}
