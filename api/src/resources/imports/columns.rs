//! Maps the columns of a file to the fields of a link.

use super::tags;
use crate::resources::links::destination::completed;
use crate::resources::links::export;
use crate::resources::links::fields::Fields;
use crate::web::csv::without_apostrophe;
use crate::web::dates::parse_instant;
use crate::web::faults::{Faults, MAX_NAME};

/// A field and its column names: first that of our exports, then those of other services.
const NAMES: [(&str, &[&str]); 10] = [
    ("name", &["name", "title"]),
    ("destination", &["destination", "url", "long_url", "destination_url", "target_url"]),
    ("slug", &["slug", "key", "back_half", "short_code"]),
    ("tags", &["tags"]),
    ("external_id", &["external_id"]),
    ("is_active", &["is_active"]),
    ("expires_at", &["expires_at"]),
    ("redirect_status", &["redirect_status"]),
    ("forward_query", &["forward_query"]),
    ("append_click_id", &["append_click_id"]),
];

/// The columns of the fields. Other columns are ignored.
#[derive(Debug)]
pub(super) struct Columns {
    places: [Option<usize>; NAMES.len()],
    /// Whether the file is an export of Hopline, whose cells are read exactly. Cells of other files are trimmed.
    is_export: bool,
}

impl Columns {
    /// Parses a header.
    pub(super) fn of(header: &[String]) -> Result<Self, &'static str> {
        let is_export = header == export::HEADER;
        let plain = |name: &String| name.trim().to_lowercase().replace([' ', '-'], "_");
        let header: Vec<String> = header.iter().map(plain).collect();
        let place =
            |names: &[&str]| names.iter().find_map(|name| header.iter().position(|cell| cell == name));
        let places = NAMES.map(|(_, names)| place(names));
        if places[1].is_none() {
            return Err("must have a column \"destination\"");
        }
        Ok(Self { places, is_export })
    }

    /// Returns the fields of a row, and the faults of cells that are none of them. An empty cell is an absent field.
    pub(super) fn fields(&self, row: &[String]) -> (Fields, Faults) {
        let cell = |field: &str| {
            let place = NAMES.iter().position(|(name, _)| *name == field)?;
            let text = row.get(self.places[place]?)?.as_str();
            let text = without_apostrophe(if self.is_export { text } else { text.trim() });
            (!text.is_empty()).then_some(text)
        };
        let owned = |field: &str| cell(field).map(str::to_owned);
        let mut faults = Faults::default();
        let mut flag = |field: &'static str| match cell(field).map(str::to_lowercase).as_deref() {
            None => None,
            Some("true" | "yes" | "1") => Some(true),
            Some("false" | "no" | "0") => Some(false),
            Some(_) => {
                faults.add(field, "must be true or false");
                None
            }
        };
        let (is_active, append_click_id) = (flag("is_active"), flag("append_click_id"));
        // Zero, for a text that is not a number, is rejected like every other number that is not a status.
        let redirect_status = cell("redirect_status").map(|text| text.parse().unwrap_or_default());
        let forward_query = match cell("forward_query").map(|text| serde_json::from_value(text.into())) {
            None => None,
            Some(Ok(mode)) => Some(mode),
            Some(Err(_)) => {
                faults.add("forward_query", "must be off or append");
                None
            }
        };
        // Here, because a body may have null instead of a time, but a cell may not.
        let expires_at = cell("expires_at").filter(|text| match parse_instant(text) {
            Ok(_) => true,
            Err(fault) => {
                faults.add("expires_at", fault.to_string());
                false
            }
        });
        let destination = cell("destination").map(|text| completed(text).into_owned());
        let name = owned("name").or_else(|| destination.as_deref().map(shortened));
        let tags = cell("tags").map(tags::split);
        let fields = Fields {
            name,
            destination,
            slug: owned("slug"),
            is_active,
            external_id: owned("external_id").map(Some),
            tags,
            redirect_status,
            forward_query,
            append_click_id,
            expires_at: expires_at.map(|text| Some(text.to_owned())),
        };
        (fields, faults)
    }
}

/// Derives a name from a destination.
fn shortened(destination: &str) -> String {
    destination.chars().take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(header: &str, row: &str) -> (Fields, Faults) {
        let cells = |line: &str| line.split('|').map(str::to_owned).collect::<Vec<String>>();
        Columns::of(&cells(header)).unwrap().fields(&cells(row))
    }

    fn fields(header: &str, row: &str) -> Fields {
        let (fields, faults) = read(header, row);
        assert!(faults.is_empty(), "{faults:?}");
        fields
    }

    #[test]
    fn cells_become_fields_and_empty_ones_are_absent() {
        let link = fields(
            "Slug|more|Destination|tags|is_active|expires_at|forward_query|redirect_status",
            "a|x|https://example.com|b, c,,|No|2030-01-01T00:00:00Z|off|301",
        );
        assert_eq!((link.slug.as_deref(), link.name.as_deref()), (Some("a"), Some("https://example.com")));
        assert_eq!((link.tags, link.is_active), (Some(vec!["b".to_owned(), "c".to_owned()]), Some(false)));
        assert_eq!((link.redirect_status, link.append_click_id), (Some(301), None));
        assert_eq!(link.expires_at, Some(Some("2030-01-01T00:00:00Z".to_owned())));
        let short = fields("destination|slug|name", "https://example.com");
        assert_eq!((short.slug, short.is_active), (None, None));
        let empty = fields("destination|slug|name", "https://example.com||");
        assert_eq!((empty.slug, empty.external_id), (None, None));
    }

    #[test]
    fn columns_of_other_services_are_recognized() {
        let link = fields("Title|Long URL|back-half", "a|https://example.com|b");
        assert_eq!((link.name.as_deref(), link.slug.as_deref()), (Some("a"), Some("b")));
        assert!(Columns::of(&["name".to_owned()]).is_err());
    }

    #[test]
    fn the_apostrophe_of_an_export_is_removed() {
        let name = |cell: &str| fields("destination|name", &format!("https://example.com|{cell}")).name;
        assert_eq!(name(" '=1+1 ").as_deref(), Some("=1+1"));
        assert_eq!(name("''=1+1").as_deref(), Some("'=1+1"));
        assert_eq!(name("'tis").as_deref(), Some("'tis"));
    }

    #[test]
    fn an_invalid_cell_is_named_with_its_reason() {
        for (field, cell, fault) in [
            ("is_active", "perhaps", "Is active must be true or false."),
            ("forward_query", "maybe", "Forward query must be off or append."),
            ("expires_at", "tomorrow", "Expires at must be a time such as 2027-01-31T12:00:00Z."),
            ("expires_at", "null", "Expires at must be a time such as 2027-01-31T12:00:00Z."),
            (
                "expires_at",
                "2026-02-30T00:00:00Z",
                "Expires at must be on a day of the calendar, such as 2027-01-31.",
            ),
            (
                "expires_at",
                "2026-11-28T14:53:60Z",
                "Expires at must have a time of day from 00:00:00 to 23:59:59.",
            ),
            ("expires_at", "10000-01-01T00:00:00Z", "Expires at must be in the years 0001 to 9999."),
        ] {
            let (_, faults) = read(&format!("destination|{field}"), &format!("https://example.com|{cell}"));
            let body = faults.into_result().unwrap_err().body();
            assert_eq!((&body["details"][0]["field"], &body["message"]), (&field.into(), &fault.into()));
        }
    }
}
