//! Cursors: where a list of links goes on, as an opaque text.
//!
//! A cursor has the order of its list, and for an order by clicks their class: one of another list is rejected instead
//! of leading somewhere.

use chrono::{DateTime, Datelike as _, Utc};
use serde::{Deserialize, Serialize};
use service::http::ApiError;
use uuid::Uuid;

use crate::store::clicks::Classes;
use crate::web::page::{decode_cursor, encode_cursor, invalid_cursor};

/// Years in which links and clicks are made.
const YEARS: std::ops::Range<i32> = 1970..2200;

/// The order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    NewestFirst,
    OldestFirst,
    MostClicksFirst,
    ByName,
}

impl Sort {
    /// The orders by the names that callers give them; `-` is descending.
    const NAMED: [(&str, Self); 4] = [
        ("-created_at", Self::NewestFirst),
        ("created_at", Self::OldestFirst),
        ("-total_clicks", Self::MostClicksFirst),
        ("name", Self::ByName),
    ];

    /// Reads a name; newest first when none is given.
    pub(super) fn parse(text: Option<&str>) -> Result<Self, ApiError> {
        let Some(text) = text else { return Ok(Self::NewestFirst) };
        Self::NAMED.into_iter().find(|(name, _)| *name == text).map(|(_, sort)| sort).ok_or_else(|| {
            ApiError::invalid_field("sort", "must be -created_at, created_at, -total_clicks or name")
        })
    }
}

/// The place of the last link of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Cursor {
    /// In either order of creation.
    #[serde(rename = "n")]
    Newest(Created),
    #[serde(rename = "o")]
    Oldest(Created),
    #[serde(rename = "t")]
    Clicks(Clicks),
    #[serde(rename = "a")]
    Name(Named),
}

/// When the link was created, in microseconds as Postgres keeps it, and its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Created(
    #[serde(with = "chrono::serde::ts_microseconds")] pub(super) DateTime<Utc>,
    pub(super) Uuid,
);

/// The instant and the class of which the totals are, the link's total, and its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Clicks(
    #[serde(with = "chrono::serde::ts_milliseconds")] pub(super) DateTime<Utc>,
    pub(super) Classes,
    pub(super) i64,
    pub(super) Uuid,
);

/// The link's name, in the case of the order, and its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Named(pub(super) String, pub(super) Uuid);

impl Cursor {
    /// The text for the caller.
    pub(super) fn encode(&self) -> String {
        encode_cursor(self)
    }

    /// Reads what a list in this order, by clicks of this class, gave.
    pub(super) fn parse(text: &str, sort: Sort, classes: Classes) -> Result<Self, ApiError> {
        Self::decode(text)
            .filter(|cursor| cursor.sort() == sort && cursor.classes().is_none_or(|own| own == classes))
            .ok_or_else(|| invalid_cursor("links in this order"))
    }

    fn decode(text: &str) -> Option<Self> {
        let cursor: Self = decode_cursor(text)?;
        cursor.is_possible().then_some(cursor)
    }

    /// Whether a list could have given it: a checksum can be made by anyone, and what follows goes to Postgres.
    fn is_possible(&self) -> bool {
        match self {
            Self::Newest(Created(at, _)) | Self::Oldest(Created(at, _)) => YEARS.contains(&at.year()),
            Self::Clicks(Clicks(at, _, total, _)) => YEARS.contains(&at.year()) && *total >= 0,
            Self::Name(Named(name, _)) => !name.chars().any(char::is_control),
        }
    }

    const fn sort(&self) -> Sort {
        match self {
            Self::Newest(_) => Sort::NewestFirst,
            Self::Oldest(_) => Sort::OldestFirst,
            Self::Clicks(_) => Sort::MostClicksFirst,
            Self::Name(_) => Sort::ByName,
        }
    }

    /// The class that the order is by, if it is by clicks.
    const fn classes(&self) -> Option<Classes> {
        match self {
            Self::Clicks(Clicks(_, classes, ..)) => Some(*classes),
            Self::Newest(_) | Self::Oldest(_) | Self::Name(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use proptest::prelude::*;

    use super::*;
    use crate::web::page::checksum;

    fn any_classes() -> impl Strategy<Value = Classes> {
        proptest::sample::select(&["human", "bot", "preview", "all"][..])
            .prop_map(|name| Classes::parse(name).unwrap())
    }

    fn any_cursor() -> impl Strategy<Value = Cursor> {
        // 1970 to 2199.
        let micros = 0_i64..7_258_118_400_000_000;
        let id = any::<u128>().prop_map(Uuid::from_u128);
        let at = micros.prop_map(|micros| DateTime::from_timestamp_micros(micros).unwrap());
        prop_oneof![
            (at.clone(), id.clone()).prop_map(|(at, id)| Cursor::Newest(Created(at, id))),
            (at.clone(), id.clone()).prop_map(|(at, id)| Cursor::Oldest(Created(at, id))),
            (at, any_classes(), 0..i64::MAX, id.clone()).prop_map(|(at, classes, total, id)| Cursor::Clicks(
                Clicks(schemas::time::to_millis(at), classes, total, id)
            )),
            ("\\PC{1,200}", id).prop_map(|(name, id)| Cursor::Name(Named(name, id))),
        ]
    }

    proptest! {
        #[test]
        fn a_cursor_belongs_to_one_order_and_class(
            cursor in any_cursor(), classes in any_classes(),
        ) {
            let text = cursor.encode();
            for (_, sort) in Sort::NAMED {
                let is_own = sort == cursor.sort() && cursor.classes().is_none_or(|own| own == classes);
                prop_assert_eq!(Cursor::parse(&text, sort, classes).ok(), is_own.then(|| cursor.clone()));
            }
        }

        #[test]
        fn a_cursor_with_a_changed_character_is_rejected(
            cursor in any_cursor(),
            place in any::<proptest::sample::Index>(),
            other in "[A-Za-z0-9_-]",
        ) {
            let text = cursor.encode();
            let place = place.index(text.len());
            let mut mangled = text.clone();
            mangled.replace_range(place..=place, &other);
            prop_assume!(mangled != text);
            prop_assert!(Cursor::decode(&mangled).is_none());
        }

        #[test]
        fn parsing_never_panics(text in "\\PC*") {
            prop_assert!(Cursor::decode(&text).is_none());
        }
    }

    #[test]
    fn a_forged_cursor_is_rejected() {
        for json in [
            "",
            "{}",
            "[]",
            r#"{"n":[9000000000000000000,"00000000-0000-0000-0000-000000000000"]}"#,
            r#"{"n":[-9000000000000000000,"00000000-0000-0000-0000-000000000000"]}"#,
            r#"{"t":[0,"all",-1,"00000000-0000-0000-0000-000000000000"]}"#,
            r#"{"t":[0,1,"00000000-0000-0000-0000-000000000000"]}"#,
            r#"{"a":["a\u0000b","00000000-0000-0000-0000-000000000000"]}"#,
        ] {
            let bytes = [json.as_bytes(), &checksum(json.as_bytes())].concat();
            assert_eq!(Cursor::decode(&URL_SAFE_NO_PAD.encode(bytes)), None, "{json}");
        }
        assert_eq!(Cursor::decode(&"A".repeat(100_000)), None);
    }
}
