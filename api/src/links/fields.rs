//! The fields of a link that a caller may set: their rules, shared by create and update.

use chrono::{DateTime, Utc};
use schemas::message::ForwardQuery;
use serde::{Deserialize, Deserializer};
use service::http::ApiError;
use url::Url;

use super::{destination, slug};
use crate::faults::{Faults, check_text};

/// The optional fields beyond the specification, as a body may carry them.
///
/// The outer `Option` is whether the field is there; the inner one, where there is one, whether it is null.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fields {
    pub(super) name: Option<String>,
    pub(super) destination: Option<String>,
    pub(super) slug: Option<String>,
    pub(super) is_active: Option<bool>,
    #[serde(default, deserialize_with = "present")]
    pub(super) external_id: Option<Option<String>>,
    pub(super) tags: Option<Vec<String>>,
    pub(super) redirect_status: Option<i16>,
    pub(super) forward_query: Option<ForwardQuery>,
    pub(super) append_click_id: Option<bool>,
    #[serde(default, deserialize_with = "present")]
    pub(super) expires_at: Option<Option<String>>,
}

/// Tells a field that is null from one that is not there.
fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// Fields that passed every rule; `None` is: not given.
#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) name: Option<String>,
    pub(super) destination: Option<String>,
    pub(super) slug: Option<String>,
    pub(super) is_active: Option<bool>,
    pub(super) external_id: Option<Option<String>>,
    pub(super) tags: Option<Vec<String>>,
    pub(super) redirect_status: Option<i16>,
    pub(super) forward_query: Option<ForwardQuery>,
    pub(super) append_click_id: Option<bool>,
    pub(super) expires_at: Option<Option<DateTime<Utc>>>,
}

impl Fields {
    /// Checks every field and reports every fault at once.
    pub(super) fn check(self, public_url: &Url) -> Result<Checked, ApiError> {
        let mut faults = Faults::default();
        let name = self.name.map(|name| name.trim().to_owned());
        if let Some(name) = &name {
            faults.note("name", check_text(name, 200));
        }
        if let Some(destination) = &self.destination {
            faults.note("destination", destination::check(destination, public_url));
        }
        if let Some(slug) = &self.slug {
            faults.note("slug", slug::check(slug));
        }
        if let Some(Some(external_id)) = &self.external_id {
            faults.note("external_id", check_text(external_id, 200));
        }
        if let Some(tags) = &self.tags {
            faults.note("tags", check_tags(tags));
        }
        if let Some(status) = self.redirect_status {
            let known = matches!(status, 301 | 302 | 307 | 308);
            faults.note("redirect_status", if known { Ok(()) } else { Err("must be 301, 302, 307 or 308") });
        }
        let expires_at = self.expires_at.map(|text| {
            text.and_then(|text| match DateTime::parse_from_rfc3339(&text) {
                Ok(time) => Some(schemas::time::to_millis(time.to_utc())),
                Err(_) => {
                    faults.note("expires_at", Err("must be a time such as 2027-01-31T12:00:00Z, or null"));
                    None
                }
            })
        });
        faults.into_result()?;
        Ok(Checked {
            name,
            destination: self.destination,
            slug: self.slug,
            is_active: self.is_active,
            external_id: self.external_id,
            tags: self.tags,
            redirect_status: self.redirect_status,
            forward_query: self.forward_query,
            append_click_id: self.append_click_id,
            expires_at,
        })
    }
}

fn check_tags(tags: &[String]) -> Result<(), &'static str> {
    if tags.len() > 10 {
        return Err("must have at most 10 entries");
    }
    if tags.iter().any(|tag| check_text(tag, 50).is_err()) {
        return Err("must have entries of 1 to 50 characters without control characters");
    }
    let mut seen = std::collections::HashSet::new();
    if !tags.iter().all(|tag| seen.insert(tag)) {
        return Err("must have no entry twice");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: serde_json::Value) -> Result<Checked, ApiError> {
        let fields: Fields = serde_json::from_value(body).unwrap();
        fields.check(&Url::parse("https://go.example").unwrap())
    }

    #[test]
    fn every_fault_is_reported_at_once() {
        let error = check(serde_json::json!({
            "name": "  ", "destination": "ftp://x", "slug": "a b", "redirect_status": 200, "expires_at": "2026-02-30",
            "tags": ["a", "a"], "external_id": "",
        }))
        .unwrap_err();
        let body = error.body();
        let fields: Vec<&str> = body["details"]
            .as_array()
            .unwrap()
            .iter()
            .map(|detail| detail["field"].as_str().unwrap())
            .collect();
        assert_eq!(
            fields,
            ["name", "destination", "slug", "external_id", "tags", "redirect_status", "expires_at"]
        );
    }

    #[test]
    fn null_is_told_from_absent() {
        let cleared = check(serde_json::json!({"expires_at": null, "external_id": null})).unwrap();
        assert_eq!(cleared.expires_at, Some(None));
        assert_eq!(cleared.external_id, Some(None));
        let untouched = check(serde_json::json!({})).unwrap();
        assert_eq!(untouched.expires_at, None);
        assert_eq!(untouched.external_id, None);
    }

    #[test]
    fn a_name_is_trimmed_and_a_time_keeps_its_instant() {
        let checked =
            check(serde_json::json!({"name": " Spring ", "expires_at": "2027-01-01T01:00:00+01:00"}))
                .unwrap();
        assert_eq!(checked.name.as_deref(), Some("Spring"));
        assert_eq!(checked.expires_at.unwrap().unwrap().to_rfc3339(), "2027-01-01T00:00:00+00:00");
    }
}
