//! The tags of a link in one cell.
//!
//! Tags are separated by commas, as in exports of other services. A tag with a comma or surrounding spaces is quoted,
//! with inner quotes doubled: CSV within the cell.

/// Formats tags as a cell.
pub(crate) fn join(tags: &[String]) -> String {
    let written = tags.iter().map(|tag| {
        let must_be_quoted = tag.contains(',') || tag.starts_with('"') || tag.trim() != tag;
        if must_be_quoted { format!("\"{}\"", tag.replace('"', "\"\"")) } else { tag.clone() }
    });
    written.collect::<Vec<_>>().join(",")
}

/// Parses the tags of a cell, without empty ones.
pub(super) fn split(cell: &str) -> Vec<String> {
    let mut tags = Vec::new();
    let mut rest = Some(cell);
    while let Some(text) = rest {
        let text = text.trim_start();
        let (tag, after) = quoted(text).unwrap_or_else(|| match text.split_once(',') {
            Some((tag, after)) => (tag.trim_end().to_owned(), Some(after)),
            None => (text.trim_end().to_owned(), None),
        });
        rest = after;
        if !tag.is_empty() {
            tags.push(tag);
        }
    }
    tags
}

/// Parses a quoted tag at the beginning. Returns it and the text after the following comma; `None` if there is no
/// quoted tag.
fn quoted(text: &str) -> Option<(String, Option<&str>)> {
    let mut rest = text.strip_prefix('"')?;
    let mut tag = String::new();
    loop {
        let (part, after) = rest.split_once('"')?;
        tag.push_str(part);
        let Some(more) = after.strip_prefix('"') else {
            let after = after.trim_start();
            return match after.strip_prefix(',') {
                Some(after) => Some((tag, Some(after))),
                None => after.is_empty().then_some((tag, None)),
            };
        };
        tag.push('"');
        rest = more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_parsed_in_all_common_forms() {
        for (cell, tags) in [
            ("", &[][..]),
            (" , ,", &[]),
            ("sale", &["sale"]),
            ("sale, newsletter ,,x", &["sale", "newsletter", "x"]),
            ("\"sale\" , \"news, letters\"", &["sale", "news, letters"]),
            ("5\" pipe,a\"\"b", &["5\" pipe", "a\"\"b"]),
            ("\"never closed, b", &["\"never closed", "b"]),
            ("\"a\"b,c", &["\"a\"b", "c"]),
            ("\"say \"\"hi\"\"\"", &["say \"hi\""]),
            ("\" a \",\"\"", &[" a "]),
        ] {
            assert_eq!(split(cell), tags, "{cell}");
        }
    }

    #[test]
    fn tags_are_quoted_only_where_necessary() {
        let tags = ["sale", "5\" pipe", "a,b", " a", "\"b\""].map(str::to_owned);
        assert_eq!(join(&tags), "sale,5\" pipe,\"a,b\",\" a\",\"\"\"b\"\"\"");
        assert_eq!(split(&join(&tags)), tags);
    }
}
