//! Builds the `Location` of a redirect from the link's destination, the visited query and the click id.
//!
//! Works on text, because a URL parser would rewrite percent-encoding, empty parameters and paths that the link's owner
//! wrote.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use schemas::message::ForwardQuery;

/// The parameter with the click id that a redirect appends to the destination.
pub const CLICK_ID: &str = "click_id";

/// The parameter that forwards a `click_id` of the short URL, which is another system's id.
pub const EXTERNAL_CLICK_ID: &str = "external_click_id";

/// Builds the `Location` of a redirect.
///
/// `destination` is the link's, `visited` the raw query of the short URL, `click_id` the id to append, if any. The
/// destination's parameters win over the visited ones. The appended click id replaces a `click_id` of the destination.
/// Fragment and percent-encoding are unchanged.
pub fn location(
    destination: &str,
    forward: ForwardQuery,
    visited: Option<&str>,
    click_id: Option<&str>,
) -> String {
    let (rest, fragment) = split(destination, '#');
    let (base, own) = split(rest, '?');
    let mut query = Query { text: String::with_capacity(destination.len() + 80), pairs: base.len() };
    query.text.push_str(base);

    if let Some(own) = own {
        if click_id.is_some() && has(own, CLICK_ID) {
            query.push_without(own, CLICK_ID);
        } else {
            query.text.push('?');
            query.text.push_str(own);
        }
    }
    if let (ForwardQuery::Append, Some(visited)) = (forward, visited) {
        forward_into(&mut query, own.unwrap_or_default(), visited);
    }
    if let Some(click_id) = click_id {
        // A click id consists of characters that need no encoding.
        query.push_parts(CLICK_ID, Some(click_id));
    }

    let mut text = query.text;
    if let Some(fragment) = fragment {
        text.push('#');
        text.push_str(fragment);
    }
    text
}

/// Returns the query of a destination, without `?` and fragment.
pub fn query(destination: &str) -> Option<&str> {
    split(split(destination, '#').0, '?').1
}

/// Adds the visited parameters that the destination does not have.
fn forward_into(query: &mut Query, own: &str, visited: &str) {
    // Sorted, because both sides can have thousands of parameters.
    let mut own: Vec<Cow<'_, str>> = pairs(own).map(name).collect();
    own.sort_unstable();
    let is_own = |name: &str| own.binary_search_by(|own| (**own).cmp(name)).is_ok();
    let has_click_id = has(visited, CLICK_ID);
    let mut is_forwarded = false;
    for pair in pairs(visited) {
        let (new_name, value) = match &*name(pair) {
            CLICK_ID if is_forwarded => continue,
            CLICK_ID => {
                is_forwarded = true;
                (Some(EXTERNAL_CLICK_ID), split(pair, '=').1)
            }
            // The visited `click_id` is forwarded under this name.
            EXTERNAL_CLICK_ID if has_click_id => continue,
            _ => (None, None),
        };
        match new_name {
            Some(new_name) if !is_own(new_name) => query.push_parts(new_name, value),
            None if !is_own(&name(pair)) => query.push(pair),
            _ => {}
        }
    }
}

/// A URL without its fragment, to which parameters are added.
struct Query {
    text: String,
    /// The length of the URL before the `?`.
    pairs: usize,
}

impl Query {
    /// Adds the destination's query without the parameters called `unwanted`. The others are unchanged byte by byte.
    fn push_without(&mut self, own: &str, unwanted: &str) {
        for pair in own.split('&').filter(|pair| name(pair) != unwanted) {
            self.text.push(if self.text.len() == self.pairs { '?' } else { '&' });
            self.text.push_str(pair);
        }
    }

    fn push(&mut self, pair: &str) {
        let (name, value) = split(pair, '=');
        self.push_parts(name, value);
    }

    fn push_parts(&mut self, name: &str, value: Option<&str>) {
        if self.text.len() == self.pairs {
            self.text.push('?');
        } else if self.text.len() > self.pairs + 1 && !self.text.ends_with('&') {
            self.text.push('&');
        }
        push_safe(&mut self.text, name);
        if let Some(value) = value {
            self.text.push('=');
            push_safe(&mut self.text, value);
        }
    }
}

/// Appends encoded text and encodes characters that a header may not contain.
pub(crate) fn push_safe(text: &mut String, encoded: &str) {
    use std::fmt::Write as _;
    for part in encoded.split_inclusive(|c: char| !c.is_ascii_graphic()) {
        let safe = part.trim_end_matches(|c: char| !c.is_ascii_graphic());
        text.push_str(safe);
        for byte in &part.as_bytes()[safe.len()..] {
            // Writing to a String does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
}

/// Returns the parameters of a query, with decoded names and encoded values.
pub fn parameters(query: &str) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
    pairs(query).map(|pair| (name(pair), split(pair, '=').1.unwrap_or_default()))
}

/// Decodes a name or value of a query.
pub fn decode(encoded: &str) -> Cow<'_, str> {
    // Most need no decoding.
    if encoded.bytes().any(|byte| matches!(byte, b'+' | b'%')) {
        let pluses = encoded.replace('+', " ");
        Cow::Owned(percent_decode_str(&pluses).decode_utf8_lossy().into_owned())
    } else {
        Cow::Borrowed(encoded)
    }
}

fn pairs(query: &str) -> impl Iterator<Item = &str> {
    query.split('&').filter(|pair| !pair.is_empty())
}

/// Returns a pair's decoded name.
fn name(pair: &str) -> Cow<'_, str> {
    decode(split(pair, '=').0)
}

fn has(query: &str, wanted: &str) -> bool {
    pairs(query).any(|pair| name(pair) == wanted)
}

/// Splits at the first `at`.
fn split(text: &str, at: char) -> (&str, Option<&str>) {
    match text.split_once(at) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use url::{Url, form_urlencoded};

    use super::*;

    #[test]
    fn locations_are_built_from_destination_query_and_click_id() {
        use ForwardQuery::{Append, Off};
        for (destination, forward, visited, click_id, expected) in [
            ("https://a.example/p", Append, None, None, "https://a.example/p"),
            ("https://a.example/p", Append, None, Some("I"), "https://a.example/p?click_id=I"),
            ("https://a.example", Append, Some("x=1"), Some("I"), "https://a.example?x=1&click_id=I"),
            (
                "https://a.example/p#f?x",
                Append,
                Some("y=1"),
                Some("I"),
                "https://a.example/p?y=1&click_id=I#f?x",
            ),
            ("https://a.example/p?x=1#", Append, Some("x=2&z"), None, "https://a.example/p?x=1&z#"),
            (
                "https://a.example/p?x=1",
                Off,
                Some("y=2&click_id=c"),
                Some("I"),
                "https://a.example/p?x=1&click_id=I",
            ),
            // The owner's text is unchanged.
            ("https://a.example/%7e/%2F?&a=%zz&&b", Off, None, None, "https://a.example/%7e/%2F?&a=%zz&&b"),
            ("https://a.example/?", Append, None, Some("I"), "https://a.example/?click_id=I"),
            ("https://a.example/??", Append, None, Some("I"), "https://a.example/??&click_id=I"),
            ("https://a.example/?&", Append, None, Some("I"), "https://a.example/?&click_id=I"),
            ("https://a.example/?a&", Append, None, Some("I"), "https://a.example/?a&click_id=I"),
            // Names are compared decoded.
            ("https://a.example/?%78=1", Append, Some("x=2&X=3"), None, "https://a.example/?%78=1&X=3"),
            (
                "https://a.example/",
                Append,
                Some("q=a+b%20c&e=&é=1"),
                None,
                "https://a.example/?q=a+b%20c&e=&%C3%A9=1",
            ),
            // An appended click id replaces the destination's.
            (
                "https://a.example/?click_id=o&x=1",
                Append,
                None,
                Some("I"),
                "https://a.example/?x=1&click_id=I",
            ),
            (
                "https://a.example/?&%61=%zz&click_id=o&&b&click_id#f",
                Append,
                None,
                Some("I"),
                "https://a.example/?&%61=%zz&&b&click_id=I#f",
            ),
            ("https://a.example/?click%5Fid=o", Append, None, Some("I"), "https://a.example/?click_id=I"),
            ("https://a.example/?click_id=o", Append, None, None, "https://a.example/?click_id=o"),
            // A visited click id is renamed and forwarded once.
            (
                "https://a.example/",
                Append,
                Some("click_id=c"),
                Some("I"),
                "https://a.example/?external_click_id=c&click_id=I",
            ),
            (
                "https://a.example/",
                Append,
                Some("click_id=c&click_id=d"),
                None,
                "https://a.example/?external_click_id=c",
            ),
            (
                "https://a.example/",
                Append,
                Some("external_click_id=d&click_id=c"),
                None,
                "https://a.example/?external_click_id=c",
            ),
            (
                "https://a.example/",
                Append,
                Some("external_click_id=d"),
                None,
                "https://a.example/?external_click_id=d",
            ),
            (
                "https://a.example/?external_click_id=o",
                Append,
                Some("click_id=c"),
                None,
                "https://a.example/?external_click_id=o",
            ),
            // A value may hold `=` and `?`.
            (
                "https://a.example/",
                Append,
                Some("u=https://b/?x=1"),
                None,
                "https://a.example/?u=https://b/?x=1",
            ),
        ] {
            assert_eq!(
                location(destination, forward, visited, click_id),
                expected,
                "{destination} {forward:?} {visited:?} {click_id:?}"
            );
        }
    }

    #[test]
    fn the_query_ends_at_the_fragment() {
        assert_eq!(query("https://a.example/?x=1#?y"), Some("x=1"));
        assert_eq!(query("https://a.example/?x=1?y"), Some("x=1?y"));
        assert_eq!(query("https://a.example/#?y"), None);
    }

    #[test]
    fn thousands_of_parameters_on_both_sides_are_joined() {
        let own = (0..300).map(|n| format!("o{n}=1")).collect::<Vec<_>>().join("&");
        let visited = (0..20_000).map(|n| format!("v{}", n % 10)).collect::<Vec<_>>().join("&");
        let destination = format!("https://a.example/?{own}");
        let built = location(&destination, ForwardQuery::Append, Some(&visited), Some("I"));
        assert_eq!(built, format!("{destination}&{visited}&click_id=I"));
    }

    #[test]
    fn parameters_have_decoded_names_and_encoded_values() {
        let all: Vec<_> = parameters("a%20b=c+d%3D&&x&=y&q==%zz").collect();
        let names: Vec<_> = all.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["a b", "x", "", "q"]);
        let values: Vec<_> = all.iter().map(|(_, value)| decode(value)).collect();
        assert_eq!(values, ["c d=", "", "y", "=%zz"]);
    }

    /// Uses a small alphabet for names, so that some are equal.
    fn pair() -> impl Strategy<Value = (String, String)> {
        let name = prop_oneof![
            "[a-c]",
            Just(CLICK_ID.to_owned()),
            Just(EXTERNAL_CLICK_ID.to_owned()),
            "[ &=%é+#]{1,2}"
        ];
        (name, "[ -~é]{0,6}")
    }

    fn encode(pairs: &[(String, String)]) -> String {
        form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
    }

    proptest! {
        #[test]
        fn the_location_is_the_destination_plus_the_parameters(
            path in "(/[a-z%]{0,4}){0,3}",
            fragment in proptest::option::of("[a-z?&=%]{0,6}"),
            own in proptest::collection::vec(pair(), 0..4),
            visited in proptest::collection::vec(pair(), 0..4),
            append in any::<bool>(),
            forward in prop_oneof![Just(ForwardQuery::Off), Just(ForwardQuery::Append)],
        ) {
            let mut destination = format!("https://a.example{path}");
            if !own.is_empty() {
                destination = format!("{destination}?{}", encode(&own));
            }
            if let Some(fragment) = &fragment {
                destination = format!("{destination}#{fragment}");
            }
            let built = location(&destination, forward, Some(&encode(&visited)), append.then_some("I"));

            let mut expected: Vec<(String, String)> =
                own.iter().filter(|(name, _)| !(append && name == CLICK_ID)).cloned().collect();
            if forward == ForwardQuery::Append {
                let mut external = visited.iter().find(|(name, _)| name == CLICK_ID).is_none();
                for (name, value) in &visited {
                    let renamed = visited.iter().any(|(name, _)| name == CLICK_ID);
                    let name = match name.as_str() {
                        CLICK_ID if external => continue,
                        CLICK_ID => { external = true; EXTERNAL_CLICK_ID }
                        EXTERNAL_CLICK_ID if renamed => continue,
                        other => other,
                    };
                    if !own.iter().any(|(own, _)| own == name) {
                        expected.push((name.to_owned(), value.clone()));
                    }
                }
            }
            if append {
                expected.push((CLICK_ID.to_owned(), "I".to_owned()));
            }

            let destination = Url::parse(&destination).unwrap();
            let location = Url::parse(&built).unwrap();
            prop_assert_eq!(location.origin(), destination.origin());
            prop_assert_eq!(location.path(), destination.path());
            prop_assert_eq!(location.fragment(), destination.fragment());
            prop_assert!(built.bytes().all(|byte| byte.is_ascii_graphic()));
            let pairs: Vec<(String, String)> = location.query_pairs().into_owned().collect();
            prop_assert_eq!(pairs, expected);
        }

        #[test]
        fn the_owners_text_is_unchanged_byte_by_byte(
            path in "(/[!-~&&[^?#]]{0,8}){0,3}",
            own in proptest::option::of("[!-~&&[^#]]{0,20}"),
            fragment in proptest::option::of("[!-~]{0,8}"),
            visited in "[!-~é&&[^#]]{0,20}",
        ) {
            let query = own.as_ref().map_or_else(String::new, |own| format!("?{own}"));
            let before = format!("https://a.example{path}{query}");
            let after = fragment.map_or_else(String::new, |fragment| format!("#{fragment}"));
            let destination = format!("{before}{after}");
            prop_assert_eq!(location(&destination, ForwardQuery::Off, Some(&visited), None), &*destination);
            let own = own.unwrap_or_default();
            for (forward, click_id) in [(ForwardQuery::Off, Some("I")), (ForwardQuery::Append, None)] {
                let built = location(&destination, forward, Some(&visited), click_id);
                prop_assert!(click_id.is_some() && has(&own, CLICK_ID) || built.starts_with(&before), "{}", built);
                prop_assert!(built.ends_with(&after), "{}", built);
            }
        }

        #[test]
        fn unusual_encodings_keep_their_meaning(
            own in "[!-~&&[^#]]{0,12}",
            visited in "([!-~é&&[^#]]|%[0-9a-zA-Z]{1,2}){0,12}",
        ) {
            let destination = Url::parse(&format!("https://a.example/?{own}")).unwrap();
            let short_url = Url::parse(&format!("https://short.example/s?{visited}")).unwrap();
            let built = location(&format!("https://a.example/?{own}"), ForwardQuery::Append, Some(&visited), Some("I"));
            let own: Vec<_> = destination.query_pairs().filter(|(name, _)| name != CLICK_ID).collect();
            let forwarded = short_url.query_pairs().filter(|(name, _)| {
                name != CLICK_ID && name != EXTERNAL_CLICK_ID && !own.iter().any(|(own, _)| own == name)
            });
            let appended = [(CLICK_ID.into(), "I".into())];
            let expected: Vec<_> = own.iter().cloned().chain(forwarded).chain(appended).collect();
            let location = Url::parse(&built).unwrap();
            let pairs: Vec<_> = location.query_pairs().filter(|(name, _)| name != EXTERNAL_CLICK_ID).collect();
            prop_assert_eq!(pairs, expected, "{}", built);
        }

        #[test]
        fn parameters_are_parsed_like_forms(query in "([!-~é]|%[0-9a-fA-F]{2}|[&=+%]){0,30}") {
            let read = parameters(&query).map(|(name, value)| (name, decode(value)));
            prop_assert!(read.eq(form_urlencoded::parse(query.as_bytes())), "{}", query);
        }
    }
}
