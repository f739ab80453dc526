//! The fields of a link that callers set, and their rules.

use chrono::{DateTime, Utc};
use schemas::message::ForwardQuery;
use schemas::time::InvalidTime;
use serde::{Deserialize, Deserializer, Serialize};
use service::http::ApiError;

use super::destination;
use super::destination::Destinations;
use super::slug::{SlugFault, check_slug};
use crate::web::dates::{InvalidInstant, parse_instant};
use crate::web::faults::{Faults, MAX_NAME, check_text};
use crate::web::text::{check_exact, check_readable};

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
    /// Of a type with more numbers than are statuses, so that the rule rejects the others.
    #[serde(deserialize_with = "present")]
    pub(crate) redirect_status: Option<i64>,
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

/// Fields that passed the rules, but for `faults_if_changed`; `None` is absent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checked {
    pub(crate) name: Option<String>,
    pub(crate) destination: Option<String>,
    pub(crate) slug: Option<String>,
    pub(crate) is_active: Option<bool>,
    pub(crate) external_id: Option<Option<String>>,
    /// As sent, to be compared with stored ones; [`trimmed`] before they are stored.
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) redirect_status: Option<i16>,
    pub(crate) forward_query: Option<ForwardQuery>,
    pub(crate) append_click_id: Option<bool>,
    pub(crate) expires_at: Option<Option<DateTime<Utc>>>,
    /// Faults by rules that are younger than some links. They count for fields that differ from the stored ones.
    pub(crate) faults_if_changed: Faults,
}

impl Checked {
    /// Returns the slug and the external id, if given.
    pub(crate) fn names(&self) -> (Option<&str>, Option<&str>) {
        (self.slug.as_deref(), self.external_id.as_ref().and_then(Option::as_deref))
    }
}

impl Fields {
    /// Checks the fields of a change. The error names only what is a fault in any case: of the others, the fields may
    /// have their stored values.
    pub(crate) fn check(self, destinations: &Destinations) -> Result<Checked, ApiError> {
        let (checked, faults) = self.read(destinations);
        faults.into_result().map(|()| checked)
    }

    /// Checks the fields of a new link, including that the required ones are present. The error names every fault.
    pub(crate) fn check_new(self, destinations: &Destinations) -> Result<Checked, ApiError> {
        self.check_new_with(Faults::default(), destinations)
    }

    /// Does what [`Self::check_new`] does, and names faults that were found before.
    pub(crate) fn check_new_with(
        self,
        mut found: Faults,
        destinations: &Destinations,
    ) -> Result<Checked, ApiError> {
        let (checked, faults) = self.read(destinations);
        found.append(&faults);
        found.append(&checked.faults_if_new());
        found.into_result().map(|()| checked)
    }

    /// Returns the fields, and the faults that they have in any case.
    fn read(self, destinations: &Destinations) -> (Checked, Faults) {
        let (mut faults, mut if_changed) = (Faults::default(), Faults::default());
        let name = self.name.map(|name| name.trim().to_owned());
        if let Some(name) = &name
            && faults.note("name", check_text(name, MAX_NAME))
        {
            if_changed.note("name", check_readable(name));
        }
        if let Some(destination) = &self.destination {
            if_changed.note("destination", destination::check(destination, destinations));
        }
        match self.slug.as_deref().map(check_slug) {
            // A stored slug may be older than a reserved word.
            Some(Err(fault @ SlugFault::Reserved)) => if_changed.add("slug", fault.message()),
            Some(Err(fault)) => faults.add("slug", fault.message()),
            Some(Ok(())) | None => {}
        }
        if let Some(Some(external_id)) = &self.external_id
            && faults.note("external_id", check_text(external_id, MAX_EXTERNAL_ID))
        {
            if_changed.note("external_id", check_exact(external_id));
        }
        if let Some(tags) = &self.tags {
            if_changed.note("tags", check_tags(tags));
        }
        let redirect_status = self.redirect_status.and_then(|status| {
            let known = i16::try_from(status).ok().filter(|status| matches!(status, 301 | 302 | 307 | 308));
            faults.note("redirect_status", known.map(drop).ok_or("must be 301, 302, 307 or 308"));
            known
        });
        let expires_at = self.expires_at.map(|text| {
            text.and_then(|text| {
                let parsed = parse_instant(&text);
                faults.note("expires_at", parsed.map(drop).map_err(or_null));
                parsed.ok()
            })
        });
        let checked = Checked {
            name,
            destination: self.destination,
            slug: self.slug,
            is_active: self.is_active,
            external_id: self.external_id,
            tags: self.tags,
            redirect_status,
            forward_query: self.forward_query,
            append_click_id: self.append_click_id,
            expires_at,
            faults_if_changed: if_changed,
        };
        (checked, faults)
    }
}

impl Checked {
    /// Checks what only a new link needs: the required fields, and the rules that stored ones may be older than.
    pub(crate) fn check_new(&self) -> Result<(), ApiError> {
        self.faults_if_new().into_result()
    }

    fn faults_if_new(&self) -> Faults {
        let mut faults = self.faults_if_changed.clone();
        faults.note("name", self.name.is_some().then_some(()).ok_or("is required"));
        faults.note("destination", self.destination.is_some().then_some(()).ok_or("is required"));
        faults
    }
}

/// Returns the fault of a time, which may also be null.
fn or_null(fault: InvalidInstant) -> String {
    match fault {
        InvalidInstant::Time(InvalidTime::Format) => format!("{fault}, or null"),
        fault => fault.to_string(),
    }
}

/// Checks a tag that links may have, also from before a rule: in a query, too.
pub(crate) fn check_tag(tag: &str) -> Result<(), String> {
    check_text(tag, MAX_TAG)
}

/// Removes white space around tags.
pub(crate) fn trimmed(tags: Vec<String>) -> Vec<String> {
    tags.into_iter().map(|tag| tag.trim().to_owned()).collect()
}

fn check_tags(tags: &[String]) -> Result<(), String> {
    if tags.len() > MAX_TAGS {
        return Err("must have at most 10 entries".to_owned());
    }
    let mut seen = std::collections::HashSet::new();
    for tag in tags.iter().map(|tag| tag.trim()) {
        check_tag(tag)
            .map_err(|_| "must have entries of 1 to 50 characters, without control characters".to_owned())?;
        check_readable(tag)?;
        if !seen.insert(tag) {
            return Err("must not have the same entry twice".to_owned());
        }
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

    /// Checks a change of a link that has other values.
    fn check_changed(body: serde_json::Value) -> Result<Checked, ApiError> {
        let checked = check(body)?;
        checked.faults_if_changed.clone().into_result().map(|()| checked)
    }

    fn check_new(body: serde_json::Value) -> Result<Checked, ApiError> {
        let fields: Fields = serde_json::from_value(body).unwrap();
        fields.check_new(&Destinations::new(Url::parse("https://go.example").unwrap()))
    }

    /// Returns the fields that an error names.
    fn fields_of(error: &ApiError) -> Vec<String> {
        let body = error.body();
        let details = body["details"].as_array().unwrap();
        details.iter().map(|detail| detail["field"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_fault_of_a_new_link_is_reported_at_once() {
        let body = json!({
            "name": "  ", "destination": "ftp://x", "slug": "a b", "redirect_status": 200, "expires_at": "2026-02-30",
            "tags": ["a", "a"], "external_id": "",
        });
        assert_eq!(
            fields_of(&check_new(body.clone()).unwrap_err()),
            ["name", "slug", "external_id", "redirect_status", "expires_at", "destination", "tags"]
        );
        // The others may be as stored.
        assert_eq!(
            fields_of(&check(body).unwrap_err()),
            ["name", "slug", "external_id", "redirect_status", "expires_at"]
        );
    }

    #[test]
    fn limits_are_exact_and_messages_state_them() {
        let long = |count: usize| "é".repeat(count);
        assert!(
            check_changed(json!({"name": long(200), "external_id": long(200), "tags": [long(50)]})).is_ok()
        );
        for (field, value, limit) in [
            ("name", json!(long(201)), "200"),
            ("external_id", json!(long(201)), "200"),
            ("tags", json!([long(51)]), "50"),
            ("tags", json!((0..11).map(|n| n.to_string()).collect::<Vec<_>>()), "10"),
        ] {
            let body = check_changed(json!({ field: value })).unwrap_err().body();
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
        let error = check_new(json!({"slug": "a b"})).unwrap_err();
        assert_eq!(fields_of(&error), ["slug", "name", "destination"], "with every other fault");
    }

    #[test]
    fn a_stored_text_may_be_older_than_a_rule() {
        for (field, value) in [
            ("name", json!("so\u{ad}ft")),
            ("destination", json!("https://example.com/\u{200b}")),
            ("destination", json!("https:\\\\example.com")),
            ("external_id", json!("می\u{200c}خواهم")),
            ("slug", json!("API")),
            ("tags", json!(["a", "\u{202e}b"])),
            ("tags", json!(["a", " "])),
            ("tags", json!(["a", " a "])),
        ] {
            let checked = check(json!({ field: value })).unwrap();
            assert!(checked.faults_if_changed.of(&["is_active"]).is_empty(), "{value}");
            let error = checked.faults_if_changed.of(&[field]).into_result().unwrap_err();
            assert_eq!(fields_of(&error), [field], "{value}");

            let mut new = json!({"name": "a", "destination": "https://example.com"});
            new[field] = value.clone();
            assert_eq!(fields_of(&check_new(new).unwrap_err()), [field], "{value}");
        }
        let control = check(json!({"name": "a\u{0}", "external_id": "a\u{0}"})).unwrap_err().body();
        assert_eq!(control["details"].as_array().unwrap().len(), 2, "no stored text has one: {control}");
    }

    #[test]
    fn texts_have_what_scripts_and_emoji_need() {
        for text in ["می\u{200c}خواهم", "👩\u{200d}💻", "❤\u{fe0f}"] {
            assert!(check_changed(json!({"name": text, "tags": [text]})).is_ok(), "{text}");
        }
    }

    #[test]
    fn tags_are_trimmed_and_differ_then() {
        let tags = check_changed(json!({"tags": [" a", "b c\u{a0}"]})).unwrap().tags;
        assert_eq!(trimmed(tags.unwrap()), ["a", "b c"]);
        assert!(check_changed(json!({"tags": [format!(" {} ", "é".repeat(50))]})).is_ok());
        for bad in [json!(["", "a"]), json!([" \t"]), json!(["a", "a "])] {
            assert!(check_changed(json!({"tags": bad})).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_fault_of_a_time_is_its_reason() {
        for (bad, fault) in [
            ("9999-12-31T23:59:59-01:00", "must be in the years 0001 to 9999"),
            ("10000-01-01T00:00:00Z", "must be in the years 0001 to 9999"),
            ("0000-01-01T00:00:00Z", "must be in the years 0001 to 9999"),
            ("2027-02-30T00:00:00Z", "must be on a day of the calendar, such as 2027-01-31"),
            ("2026-11-28T14:53:60Z", "must have a time of day from 00:00:00 to 23:59:59"),
            ("2026-11-28T14:53:00+24:00", "must have an offset from -23:59 to +23:59"),
            ("2027-01-31", "must be a time such as 2027-01-31T12:00:00Z, or null"),
            ("next week", "must be a time such as 2027-01-31T12:00:00Z, or null"),
            ("", "must be a time such as 2027-01-31T12:00:00Z, or null"),
        ] {
            let error = check(json!({"expires_at": bad})).unwrap_err();
            assert_eq!(error.message(), format!("Expires at {fault}."), "{bad}");
        }
        let leap = check(json!({"expires_at": "2026-12-31T23:59:60Z"})).unwrap().expires_at.unwrap().unwrap();
        assert_eq!(schemas::time::text(leap), "2026-12-31T23:59:59.999Z");
    }

    #[test]
    fn a_value_of_another_kind_is_told_what_it_must_be() {
        for (body, fault) in [
            (r#"{"forward_query":true}"#, "Forward query must be off or append."),
            (r#"{"forward_query":"Off"}"#, "Forward query must be off or append."),
            (r#"{"redirect_status":301.0}"#, "Redirect status must be a whole number."),
            (r#"{"redirect_status":"301"}"#, "Redirect status must be a whole number."),
            (r#"{"expires_at":1795000000}"#, "Expires at must be a string."),
        ] {
            let error = service::http::parse_json::<Fields>(body.as_bytes()).unwrap_err();
            assert_eq!(error.message(), fault, "{body}");
        }
        for status in [0_i64, -1, 200, 70_000, i64::MAX] {
            let error = check(json!({ "redirect_status": status })).unwrap_err();
            assert_eq!(error.message(), "Redirect status must be 301, 302, 307 or 308.", "{status}");
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
