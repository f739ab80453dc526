//! Where a visitor is sent: the link's destination, the visited query and the click id, put together as text.
//!
//! Text and not a parsed URL, because a parser would rewrite percent-encoding, empty parameters and paths that
//! the link's owner meant as written.

use std::borrow::Cow;

use schemas::message::ForwardQuery;
use url::form_urlencoded;

/// The parameter that carries our click id to the page where the visitor lands.
pub const CLICK_ID: &str = "click_id";

/// The name under which a `click_id` that arrived on the short URL is passed on: it is the caller's, not ours.
pub const EXTERNAL_CLICK_ID: &str = "external_click_id";

/// Builds the `Location` of a redirect.
///
/// `destination` is the link's, `visited` the raw query of the short URL, `click_id` the id to append, if the link
/// wants one. The destination's own parameters win over the visited ones; an own `click_id` gives way to ours only
/// when one is appended. Fragment and percent-encoding stay as they are.
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

    match own {
        // Kept byte by byte, empty parameters included.
        Some(own) if click_id.is_none() || !has(own, CLICK_ID) => {
            query.text.push('?');
            query.text.push_str(own);
        }
        Some(own) => pairs(own).filter(|pair| name(pair) != CLICK_ID).for_each(|pair| query.push(pair)),
        None => {}
    }
    if let (ForwardQuery::Append, Some(visited)) = (forward, visited) {
        forward_into(&mut query, own.unwrap_or_default(), visited);
    }
    if let Some(click_id) = click_id {
        // Click ids are made of characters that need no encoding.
        query.push_parts(CLICK_ID, Some(click_id));
    }

    let mut text = query.text;
    if let Some(fragment) = fragment {
        text.push('#');
        text.push_str(fragment);
    }
    text
}

/// Returns the value of the first parameter of that name, decoded; an empty one counts as missing.
pub fn parameter<'a>(query: &'a str, wanted: &str) -> Option<Cow<'a, str>> {
    form_urlencoded::parse(query.as_bytes())
        .find(|(name, _)| name == wanted)
        .map(|(_, value)| value)
        .filter(|value| !value.is_empty())
}

/// Returns the query of a destination, without `?` and fragment.
pub fn query(destination: &str) -> Option<&str> {
    split(split(destination, '#').0, '?').1
}

/// Adds the visited parameters that the destination does not set itself.
fn forward_into(query: &mut Query, own: &str, visited: &str) {
    let renamed = has(visited, CLICK_ID);
    let mut external_sent = false;
    for pair in pairs(visited) {
        let (sent_as, value) = match &*name(pair) {
            CLICK_ID if external_sent => continue,
            CLICK_ID => {
                external_sent = true;
                (Some(EXTERNAL_CLICK_ID), split(pair, '=').1)
            }
            // One meaning per name: the caller's click id is the one that arrived as `click_id`.
            EXTERNAL_CLICK_ID if renamed => continue,
            _ => (None, None),
        };
        match sent_as {
            Some(sent_as) if !has(own, sent_as) => query.push_parts(sent_as, value),
            None if !has(own, &name(pair)) => query.push(pair),
            _ => {}
        }
    }
}

/// A URL's text up to its fragment, growing by parameters.
struct Query {
    text: String,
    /// Where the part before `?` ends.
    pairs: usize,
}

impl Query {
    fn push(&mut self, pair: &str) {
        let (name, value) = split(pair, '=');
        self.push_parts(name, value);
    }

    fn push_parts(&mut self, name: &str, value: Option<&str>) {
        if self.text.len() == self.pairs {
            self.text.push('?');
        } else if !self.text.ends_with(['?', '&']) {
            self.text.push('&');
        }
        push_safe(&mut self.text, name);
        if let Some(value) = value {
            self.text.push('=');
            push_safe(&mut self.text, value);
        }
    }
}

/// Appends what is already encoded, and encodes what may not stand in a header.
fn push_safe(text: &mut String, encoded: &str) {
    use std::fmt::Write as _;
    for byte in encoded.bytes() {
        if byte.is_ascii_graphic() {
            text.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
}

fn pairs(query: &str) -> impl Iterator<Item = &str> {
    query.split('&').filter(|pair| !pair.is_empty())
}

/// Returns a pair's decoded name.
fn name(pair: &str) -> Cow<'_, str> {
    form_urlencoded::parse(pair.as_bytes()).next().map_or(Cow::Borrowed(""), |(name, _)| name)
}

fn has(query: &str, wanted: &str) -> bool {
    form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == wanted)
}

fn split(text: &str, at: char) -> (&str, Option<&str>) {
    match text.split_once(at) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use url::Url;

    use super::*;

    #[test]
    fn destinations_are_built_as_the_table_says() {
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
            // Written by the owner in this way, so sent in this way.
            ("https://a.example/%7e/%2F?&a=%zz&&b", Off, None, None, "https://a.example/%7e/%2F?&a=%zz&&b"),
            ("https://a.example/?", Append, None, Some("I"), "https://a.example/?click_id=I"),
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
            // Ours replaces the destination's; without ours it stays.
            (
                "https://a.example/?click_id=o&x=1",
                Append,
                None,
                Some("I"),
                "https://a.example/?x=1&click_id=I",
            ),
            ("https://a.example/?click%5Fid=o", Append, None, Some("I"), "https://a.example/?click_id=I"),
            ("https://a.example/?click_id=o", Append, None, None, "https://a.example/?click_id=o"),
            // The caller's gets another name, once.
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
    fn a_parameter_is_decoded_and_an_empty_one_is_missing() {
        assert_eq!(parameter("utm_source=a%20b+c&utm_source=d", "utm_source").as_deref(), Some("a b c"));
        assert_eq!(parameter("utm_source=&x", "utm_source"), None);
        assert_eq!(parameter("", "utm_source"), None);
        assert_eq!(query("https://a.example/?x=1#?y"), Some("x=1"));
        assert_eq!(query("https://a.example/#?y"), None);
    }

    /// Names from a small alphabet, so that collisions happen.
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
        fn a_browser_ends_at_the_destination_plus_the_parameters(
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

            let given = Url::parse(&destination).unwrap();
            let ended = Url::parse(&built).unwrap();
            prop_assert_eq!(ended.origin(), given.origin());
            prop_assert_eq!(ended.path(), given.path());
            prop_assert_eq!(ended.fragment(), given.fragment());
            prop_assert!(built.bytes().all(|byte| byte.is_ascii_graphic()));
            let pairs: Vec<(String, String)> = ended.query_pairs().into_owned().collect();
            prop_assert_eq!(pairs, expected);
        }
    }
}
