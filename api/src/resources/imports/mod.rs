//! Imports of links from CSV files, only for members.
//!
//! The file is first stored in the database. Any instance then imports it in batches, taking turns with other imports.
//! A batch inserts its links and records its rows as done in one transaction, so each row is imported once, whatever is
//! killed. A dry run does the same and rolls the links back.

pub(crate) mod columns;
pub(crate) mod receive;
pub(crate) mod report;
pub(crate) mod rows;
pub(crate) mod schedule;
pub(crate) mod tags;
pub(crate) mod work;

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use proptest::prelude::*;
    use url::Url;
    use uuid::Uuid;

    use super::columns::Columns;
    use super::rows::{Next, Rows};
    use crate::resources::links::destination::Destinations;
    use crate::resources::links::export::{HEADER, cells};
    use crate::resources::links::fields::Checked;
    use crate::store::links::LinkRow;
    use crate::web::csv::write_row;

    /// Characters that some CSV reader treats specially, and ordinary ones.
    const CHARACTERS: &[char] = &[
        'a', '7', ' ', ',', ';', '"', '\'', '=', '+', '-', '@', '＝', '|', '\\', '/', '\u{a0}', '\u{3000}',
        'ß', 'é', '\u{301}', '中', '🚲',
    ];

    fn text(most: usize) -> impl Strategy<Value = String> {
        proptest::collection::vec(proptest::sample::select(CHARACTERS), 1..=most)
            .prop_map(|characters| characters.into_iter().collect())
    }

    fn trimmed(most: usize) -> impl Strategy<Value = String> {
        text(most).prop_map(|text| text.trim().to_owned()).prop_filter("blank", |text| !text.is_empty())
    }

    prop_compose! {
        /// A link as the API creates it.
        fn link()(
            name in trimmed(30),
            path in "[a-z,=+;'\"@-]{0,20}",
            slug in "[A-Za-z0-9_-]{5,12}",
            tags in proptest::collection::btree_set(trimmed(8), 0..=10),
            external_id in proptest::option::of(text(12)),
            (is_active, append_click_id, is_off) in any::<(bool, bool, bool)>(),
            expires_at in proptest::option::of(-62_000_000_000_000_i64..250_000_000_000_000),
            redirect_status in proptest::sample::select(&[301, 302, 307, 308]),
        ) -> LinkRow {
            LinkRow {
                id: Uuid::nil(),
                workspace_id: Uuid::nil(),
                user_id: Uuid::nil(),
                slug,
                name,
                destination: format!("https://example.com/{path}"),
                is_active,
                is_locked: false,
                is_blocked: false,
                blocked_reason: None,
                blocked_host: None,
                redirect_status,
                forward_query: if is_off { "off" } else { "append" }.to_owned(),
                append_click_id,
                expires_at: expires_at.and_then(DateTime::from_timestamp_millis),
                external_id,
                tags: tags.into_iter().collect(),
                revision: 1,
                created_at: DateTime::UNIX_EPOCH,
                updated_at: DateTime::UNIX_EPOCH,
            }
        }
    }

    /// Imports a file.
    fn read(file: &[u8]) -> Vec<Checked> {
        let mut rows = Rows::new();
        rows.push(file);
        rows.end();
        let mut next = || match rows.next() {
            Next::Row(row) => Some(row.cells.unwrap()),
            Next::End => None,
            other => panic!("{other:?}"),
        };
        let columns = Columns::of(&next().unwrap()).unwrap();
        let destinations = Destinations::new(Url::parse("https://go.example").unwrap());
        let check = |row: Vec<String>| {
            let (fields, faults) = columns.fields(&row);
            fields.check_new_with(faults, &destinations).unwrap()
        };
        std::iter::from_fn(next).map(check).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn an_export_is_imported_unchanged(links in proptest::collection::vec(link(), 1..5)) {
            let mut file = Vec::new();
            write_row(&mut file, &HEADER);
            for link in &links {
                write_row(&mut file, &cells(link, format!("https://go.example/{}", link.slug)));
            }
            let read = read(&file);
            prop_assert_eq!(read.len(), links.len());
            for (read, link) in read.into_iter().zip(links) {
                prop_assert_eq!(read.name, Some(link.name));
                prop_assert_eq!(read.destination, Some(link.destination));
                prop_assert_eq!(read.slug, Some(link.slug));
                prop_assert_eq!(read.tags.unwrap_or_default(), link.tags);
                prop_assert_eq!(read.external_id.flatten(), link.external_id);
                prop_assert_eq!(read.is_active, Some(link.is_active));
                prop_assert_eq!(read.expires_at.flatten(), link.expires_at);
                prop_assert_eq!(read.redirect_status, Some(link.redirect_status));
                prop_assert_eq!(read.forward_query.map(|mode| mode.as_str().to_owned()), Some(link.forward_query));
                prop_assert_eq!(read.append_click_id, Some(link.append_click_id));
            }
        }
    }
}
