//! The fields of a link that callers set, and their rules.

use chrono::{DateTime, Utc};
use schemas::message::ForwardQuery;
use serde::{Deserialize, Deserializer, Serialize};
use service::http::ApiError;

use super::destination::Destinations;
use super::{destination, slug};
use crate::web::dates::parse_instant;
use crate::web::faults::{Faults, check_name, check_text};

const MAX_EXTERNAL_ID: usize = 200;
const MAX_TAG: usize = 50;
const MAX_TAGS: usize = 10;

/// The fields of a body; `None` is absent.
///
/// With an inner `Option`, null clears the field. Otherwise null is an error.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Fields {
    #[serde(deserialize_with = "present")]
    pub(crate) name: Option<String>,
    #[serde(deserialize_with = "present")]
    pub(crate) destination: Option<String>,
    #[serde(deserialize_with = "present")]
    pub(crate) slug: Option<String>,
    #[serde(deserialize_with = "present")]
    pub(crate) is_active: Option<bool>,
    #[serde(deserialize_with = "present")]
    pub(crate) external_id: Option<Option<String>>,
    #[serde(deserialize_with = "present")]
    pub(crate) tags: Option<Vec<String>>,
    #[serde(deserialize_with = "present")]
    pub(crate) redirect_status: Option<i16>,
    #[serde(deserialize_with = "present")]
    pub(crate) forward_query: Option<ForwardQuery>,
    #[serde(deserialize_with = "present")]
    pub(crate) append_click_id: Option<bool>,
    #[serde(deserialize_with = "present")]
    pub(crate) expires_at: Option<Option<String>>,
}

/// Distinguishes null from an absent field. A type without null rejects it.
fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// Fields that passed every rule; `None` is absent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checked {
    pub(crate) name: Option<String>,
    pub(crate) destination: Option<String>,
    pub(crate) slug: Option<String>,
    pub(crate) is_active: Option<bool>,
    pub(crate) external_id: Option<Option<String>>,
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) redirect_status: Option<i16>,
    pub(crate) forward_query: Option<ForwardQuery>,
    pub(crate) append_click_id: Option<bool>,
    pub(crate) expires_at: Option<Option<DateTime<Utc>>>,
}

impl Checked {
    /// Returns the slug and the external id, if given.
    pub(crate) fn names(&self) -> (Option<&str>, Option<&str>) {
        (self.slug.as_deref(), self.external_id.as_ref().and_then(Option::as_deref))
    }
}

impl Fields {
    /// Checks the fields of a change. The error names every fault.
    pub(crate) fn check(self, destinations: &Destinations) -> Result<Checked, ApiError> {
        self.check_with(Faults::default(), destinations)
    }

    /// Checks the fields of a new link, including that the required ones are present.
    pub(crate) fn check_new(self, destinations: &Destinations) -> Result<Checked, ApiError> {
        let missing = missing(self.name.is_some(), self.destination.is_some());
        self.check_with(missing, destinations)
    }

    fn check_with(self, mut faults: Faults, destinations: &Destinations) -> Result<Checked, ApiError> {
        let name = self.name.map(|name| name.trim().to_owned());
        if let Some(name) = &name {
            faults.note("name", check_name(name));
        }
        if let Some(destination) = &self.destination {
            faults.note("destination", destination::check(destination, destinations));
        }
        if let Some(slug) = &self.slug {
            faults.note("slug", slug::check(slug));
        }
        if let Some(Some(external_id)) = &self.external_id {
            faults.note("external_id", check_text(external_id, MAX_EXTERNAL_ID));
        }
        if let Some(tags) = &self.tags {
            faults.note("tags", check_tags(tags));
        }
        if let Some(status) = self.redirect_status {
            let known = matches!(status, 301 | 302 | 307 | 308);
            faults.note("redirect_status", known.then_some(()).ok_or("must be 301, 302, 307 or 308"));
        }
        let expires_at = self.expires_at.map(|text| {
            text.and_then(|text| {
                parse_instant(&text)
                    .map_err(|_| {
                        faults.add("expires_at", "must be a time such as 2027-01-31T12:00:00Z, or null");
                    })
                    .ok()
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

impl Checked {
    /// Checks that the required fields are present.
    pub(crate) fn check_new(&self) -> Result<(), ApiError> {
        missing(self.name.is_some(), self.destination.is_some()).into_result()
    }
}

/// Returns the faults of missing required fields.
fn missing(has_name: bool, has_destination: bool) -> Faults {
    let mut faults = Faults::default();
    faults.note("name", has_name.then_some(()).ok_or("is required"));
    faults.note("destination", has_destination.then_some(()).ok_or("is required"));
    faults
}

/// Checks a tag, of a link or of a query.
pub(crate) fn check_tag(tag: &str) -> Result<(), String> {
    check_text(tag, MAX_TAG)
}

fn check_tags(tags: &[String]) -> Result<(), &'static str> {
    if tags.len() > MAX_TAGS {
        return Err("must have at most 10 entries");
    }
    if tags.iter().any(|tag| check_tag(tag).is_err()) {
        return Err("must have entries of 1 to 50 characters, without control characters");
    }
    let mut seen = std::collections::HashSet::new();
    if !tags.iter().all(|tag| seen.insert(tag)) {
        return Err("must not have the same entry twice");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use url::Url;

    use super::*;

    fn check(body: serde_json::Value) -> Result<Checked, ApiError> {
        let fields: Fields = serde_json::from_value(body).unwrap();
        fields.check(&Destinations::new(Url::parse("https://go.example").unwrap()))
    }

    #[test]
    fn every_fault_is_reported_at_once() {
        let error = check(json!({
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
    fn limits_are_exact_and_messages_state_them() {
        let long = |count: usize| "é".repeat(count);
        assert!(check(json!({"name": long(200), "external_id": long(200), "tags": [long(50)]})).is_ok());
        for (field, value, limit) in [
            ("name", json!(long(201)), "200"),
            ("external_id", json!(long(201)), "200"),
            ("tags", json!([long(51)]), "50"),
            ("tags", json!((0..11).map(|n| n.to_string()).collect::<Vec<_>>()), "10"),
        ] {
            let body = check(json!({ field: value })).unwrap_err().body();
            assert_eq!(body["details"][0]["field"], field);
            let message = body["details"][0]["message"].as_str().unwrap().to_owned();
            assert!(message.contains(limit), "{message}");
        }
    }

    #[test]
    fn null_is_rejected_where_it_has_no_meaning() {
        for field in [
            "name",
            "destination",
            "slug",
            "is_active",
            "tags",
            "redirect_status",
            "forward_query",
            "append_click_id",
        ] {
            let refused = service::http::parse_json::<Fields>(format!("{{\"{field}\":null}}").as_bytes());
            assert_eq!(refused.unwrap_err().body()["details"][0]["field"], field);
        }
    }

    #[test]
    fn a_new_link_needs_a_name_and_a_destination() {
        let fields: Fields = serde_json::from_value(json!({"slug": "a b"})).unwrap();
        let body = fields
            .check_new(&Destinations::new(Url::parse("https://go.example").unwrap()))
            .unwrap_err()
            .body();
        assert_eq!(body["details"].as_array().unwrap().len(), 3, "with every other fault: {body}");
    }

    #[test]
    fn a_time_out_of_range_is_rejected() {
        for bad in
            ["9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00Z", "2027-02-30T00:00:00Z", "2027-01-31", ""]
        {
            assert!(check(json!({"expires_at": bad})).is_err(), "{bad}");
        }
    }

    #[test]
    fn null_differs_from_absent() {
        let cleared = check(json!({"expires_at": null, "external_id": null})).unwrap();
        assert_eq!(cleared.expires_at, Some(None));
        assert_eq!(cleared.external_id, Some(None));
        let untouched = check(json!({})).unwrap();
        assert_eq!(untouched.expires_at, None);
        assert_eq!(untouched.external_id, None);
    }

    #[test]
    fn a_name_is_trimmed_and_a_time_keeps_its_instant() {
        let checked = check(json!({"name": " Spring ", "expires_at": "2027-01-01T01:00:00+01:00"})).unwrap();
        assert_eq!(checked.name.as_deref(), Some("Spring"));
        assert_eq!(checked.expires_at.unwrap().unwrap().to_rfc3339(), "2027-01-01T00:00:00+00:00");
    }
}
