//! One item of a request: a visit that an external edge answered.

use std::net::IpAddr;

use chrono::{DateTime, Duration, Utc};
use schemas::id::LinkId;
use serde_json::{Map, Value};
use service::http::{ApiError, Code};

use crate::redirect;

/// The maximum age of a visit.
const MAX_AGE: Duration = Duration::days(10);

/// How far a visit may be in the future, for clocks that are ahead.
const MAX_AHEAD: Duration = Duration::minutes(5);

/// The maximum length of an event id, in bytes.
const EVENT_ID_LEN: usize = 128;

/// A visit. It has no `Debug`, so that its address is never logged.
pub(super) struct Item {
    pub(super) link: LinkRef,
    /// Truncated to milliseconds, as in click ids and messages.
    pub(super) occurred_at: DateTime<Utc>,
    pub(super) address: IpAddr,
    pub(super) user_agent: String,
    /// Empty if there was none.
    pub(super) referrer: String,
    /// The visited URL's query.
    pub(super) query: Option<String>,
    /// The external edge's id of the visit.
    pub(super) event_id: String,
}

/// The reference of an item to its link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LinkRef {
    Slug(String),
    Id(LinkId),
}

impl Item {
    /// Parses an item at the time `now`.
    ///
    /// # Errors
    /// When the item is invalid. The message contains names of fields, but no values.
    pub(super) fn read(item: Value, now: DateTime<Utc>) -> Result<Self, ApiError> {
        let Value::Object(mut fields) = item else {
            return Err(ApiError::bad_request("An item must be a JSON object."));
        };
        let (slug, link_id) = (optional(&mut fields, "slug")?, optional(&mut fields, "link_id")?);
        let link = match (slug, link_id) {
            (Some(path), None) => LinkRef::Slug(redirect::slug(&path).into_owned()),
            (None, Some(id)) => LinkRef::Id(
                id.parse().map_err(|_| ApiError::invalid_field("link_id", "must be the ID of a link"))?,
            ),
            (None, None) => return Err(ApiError::bad_request("Either slug or link_id is required.")),
            (Some(_), Some(_)) => {
                return Err(ApiError::bad_request("Only one of slug and link_id may be given."));
            }
        };
        let occurred_at = occurred_at(&required(&mut fields, "occurred_at")?, now)?;
        let address = required(&mut fields, "ip")?;
        let address =
            address.parse().map_err(|_| ApiError::invalid_field("ip", "must be an IPv4 or IPv6 address"))?;
        let user_agent = header("user_agent", required(&mut fields, "user_agent")?)?;
        let referrer = header("referrer", optional(&mut fields, "referrer")?.unwrap_or_default())?;
        let query = optional(&mut fields, "url")?.and_then(|url| query(&url).map(str::to_owned));
        let event_id = required(&mut fields, "event_id")?;
        if event_id.is_empty() || event_id.len() > EVENT_ID_LEN {
            return Err(ApiError::invalid_field("event_id", format!("must have 1 to {EVENT_ID_LEN} bytes")));
        }
        if !fields.is_empty() {
            return Err(ApiError::bad_request(unknown(&fields)));
        }
        Ok(Self { link, occurred_at, address, user_agent, referrer, query, event_id })
    }
}

/// Removes and returns a required field.
fn required(fields: &mut Map<String, Value>, name: &str) -> Result<String, ApiError> {
    optional(fields, name)?.ok_or_else(|| ApiError::invalid_field(name, "is required"))
}

/// Removes and returns a field. Null counts as absent.
fn optional(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, ApiError> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(ApiError::invalid_field(name, "must be a string")),
    }
}

/// Returns a message about an unknown field. It contains only a name that looks like a field's name, because anything
/// else may be data.
fn unknown(fields: &Map<String, Value>) -> String {
    let is_name = |name: &str| {
        name.len() <= 32
            && name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_' || byte == b'-')
    };
    match fields.keys().find(|name| is_name(name)) {
        Some(name) => format!("Unknown field {name}."),
        None => "Unknown field.".to_owned(),
    }
}

fn occurred_at(text: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, ApiError> {
    let invalid = |problem: &str| {
        ApiError::invalid_fields(Code::InvalidDate, [("occurred_at".to_owned(), problem.to_owned())])
    };
    let time = schemas::time::parse(text).map_err(|fault| invalid(&fault.to_string()))?;
    let time = schemas::time::to_millis(time);
    if time > now + MAX_AHEAD {
        return Err(invalid("must not be more than 5 minutes ahead"));
    }
    if time < now - MAX_AGE {
        return Err(invalid("must not be more than 10 days ago"));
    }
    Ok(time)
}

/// Rejects text with control characters, which no request header contains.
fn header(field: &str, text: String) -> Result<String, ApiError> {
    if text.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
        return Err(ApiError::invalid_field(field, "must not contain control characters"));
    }
    Ok(text)
}

/// Returns the query of a URL, which may be relative.
fn query(url: &str) -> Option<&str> {
    let url = url.split_once('#').map_or(url, |(before, _)| before);
    Some(url.split_once('?')?.1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp_millis(1_790_000_000_000).unwrap()
    }

    fn item() -> Value {
        json!({
            "slug": "spring",
            "occurred_at": "2026-09-21T13:33:20.123456Z",
            "ip": "192.0.2.7",
            "user_agent": "Mozilla/5.0",
            "event_id": "e-1",
        })
    }

    fn with(field: &str, value: Value) -> Value {
        let mut item = item();
        item[field] = value;
        item
    }

    fn rejected(item: Value) -> ApiError {
        Item::read(item, now()).err().unwrap()
    }

    #[test]
    fn an_item_has_the_fields_of_the_visit() {
        let mut sent = with("url", json!("https://s.example/spring?utm_source=mail&click_id=x#top?a=b"));
        sent["referrer"] = json!("https://news.example/ü");
        let item = Item::read(sent, now()).unwrap();
        assert_eq!(item.link, LinkRef::Slug("spring".to_owned()));
        assert_eq!(schemas::time::text(item.occurred_at), "2026-09-21T13:33:20.123Z");
        assert_eq!(item.address, IpAddr::from([192, 0, 2, 7]));
        assert_eq!(
            (item.user_agent.as_str(), item.referrer.as_str()),
            ("Mozilla/5.0", "https://news.example/ü")
        );
        assert_eq!(item.query.as_deref(), Some("utm_source=mail&click_id=x"));
    }

    #[test]
    fn a_link_is_referenced_by_slug_or_id() {
        let id = "lnk_01j9qkwz0vfdz9mm9f3my4ppk9";
        let mut by_id = with("link_id", json!(id));
        assert_eq!(rejected(by_id.clone()).message(), "Only one of slug and link_id may be given.");
        by_id["slug"] = Value::Null;
        for path in ["spring/", "/spring", "%73pring"] {
            let item = Item::read(with("slug", json!(path)), now()).unwrap();
            assert_eq!(item.link, LinkRef::Slug("spring".to_owned()), "{path}");
        }
        assert!(Item::read(by_id, now()).is_ok_and(|item| item.link == LinkRef::Id(id.parse().unwrap())));
        assert_eq!(rejected(with("slug", Value::Null)).message(), "Either slug or link_id is required.");
    }

    #[test]
    fn only_times_of_the_last_ten_days_are_accepted() {
        for (offset, accepted) in [
            (Duration::minutes(5), true),
            (Duration::minutes(5) + Duration::milliseconds(1), false),
            (-Duration::days(10), true),
            (-Duration::days(10) - Duration::milliseconds(1), false),
        ] {
            let sent = with("occurred_at", json!(schemas::time::text(now() + offset)));
            assert_eq!(Item::read(sent, now()).is_ok(), accepted, "{offset}");
        }
        for text in ["", "yesterday", "2026-09-21", "2026-09-21T13:33:20", "1790000000"] {
            assert_eq!(rejected(with("occurred_at", json!(text))).code(), Code::InvalidDate, "{text}");
        }
    }

    #[test]
    fn the_fault_of_a_time_is_its_reason() {
        for (text, fault) in [
            ("yesterday", "must be a time such as 2027-01-31T12:00:00Z"),
            ("2026-09-31T13:33:20Z", "must be on a day of the calendar, such as 2027-01-31"),
            ("2026-09-21T13:33:60Z", "must have a time of day from 00:00:00 to 23:59:59"),
            ("2026-09-21T13:33:20+24:00", "must have an offset from -23:59 to +23:59"),
            ("12026-09-21T13:33:20Z", "must be in the years 0001 to 9999"),
            ("2026-09-22T13:33:20Z", "must not be more than 5 minutes ahead"),
            ("2026-09-01T13:33:20Z", "must not be more than 10 days ago"),
        ] {
            let error = rejected(with("occurred_at", json!(text)));
            assert_eq!(
                (error.code(), error.message()),
                (Code::InvalidDate, &*format!("Occurred at {fault}."))
            );
        }
    }

    #[test]
    fn a_leap_second_is_the_last_millisecond_before_it() {
        let now = DateTime::from_timestamp(1_483_228_805, 0).unwrap();
        let read =
            |text: &str| Item::read(with("occurred_at", json!(text)), now).map(|item| item.occurred_at);
        let leap = read("2016-12-31T23:59:60.250Z").unwrap();
        assert_eq!(schemas::time::text(leap), "2016-12-31T23:59:59.999Z");
        assert_eq!(read("2017-01-01T00:59:60+01:00").unwrap(), leap);
        assert!(read("2016-12-31T23:58:60Z").is_err());
    }

    #[test]
    fn an_error_names_the_field_and_contains_no_values() {
        let address = "203.0.113.254";
        for (field, value) in [
            ("ip", json!(format!("{address}.1"))),
            ("ip", json!([address])),
            ("ip", json!(3_405_803_774_u32)),
            ("user_agent", json!(format!("{address}\n"))),
            ("referrer", json!({ address: 1 })),
            ("event_id", json!("")),
            ("event_id", json!(address.repeat(20))),
            ("occurred_at", json!(address)),
            ("link_id", json!(address)),
            ("url", json!(1)),
        ] {
            let mut sent = with(field, value);
            if field == "link_id" {
                sent["slug"] = Value::Null;
            }
            let error = rejected(sent);
            let message = error.message();
            assert_eq!(error.body()["details"][0]["field"], field, "{message}");
            assert!(!message.contains(address) && !message.contains("3405803774"), "{message}");
        }
        for (sent, message) in [
            (with("occurred_at", Value::Null), "Occurred at is required."),
            (with("ip", Value::Null), "IP is required."),
            (with("user_agent", Value::Null), "User agent is required."),
            (with("event_id", Value::Null), "Event ID is required."),
            (with("colour", json!(1)), "Unknown field colour."),
            (with("click_id", json!("theirs")), "Unknown field click_id."),
            (with(address, json!(1)), "Unknown field."),
            (json!([address]), "An item must be a JSON object."),
        ] {
            assert_eq!(rejected(sent).message(), message);
        }
    }
}
