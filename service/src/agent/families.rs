//! Families of browsers and operating systems, by the rules of uap-core.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use regex_syntax::hir::{Class, Hir, HirKind};
use serde::Deserialize;
use ua_parser::{os, user_agent};

/// The rules' name for an unknown family.
const UNKNOWN: &str = "Other";

/// Maximum number of names that one rule may produce; see [`is_unbounded`].
const MAX_NAMES: u64 = 64;

/// Hopline's names for uap-core's browsers, without what the device type says already, and as in the built-in table.
const BROWSERS: [(&str, &str); 23] = [
    ("Chrome Mobile", "Chrome"),
    ("Chrome Mobile iOS", "Chrome"),
    ("Chrome Mobile WebView", "Android WebView"),
    ("Mobile Safari", "Safari"),
    ("Mobile Safari UI/WKWebView", "Safari WebView"),
    ("Firefox Mobile", "Firefox"),
    ("Firefox iOS", "Firefox"),
    ("Edge Mobile", "Edge"),
    ("Opera Mobile", "Opera"),
    ("Opera Touch", "Opera"),
    ("DuckDuckGo Mobile", "DuckDuckGo"),
    ("Ecosia iOS", "Ecosia"),
    ("Ecosia Android", "Ecosia"),
    ("IE", "Internet Explorer"),
    ("IE Mobile", "Internet Explorer"),
    ("QQ Browser Mobile", "QQ Browser"),
    ("UC Browser Mobile", "UC Browser"),
    ("Android", "Android Browser"),
    ("Brave Chrome", "Brave"),
    ("brave", "Brave"),
    ("MIUI Browser", "Mi Browser"),
    ("MiuiBrowser", "Mi Browser"),
    ("YandexSearch", "Yandex Browser"),
];

/// Hopline's names for uap-core's operating systems.
const SYSTEMS: [(&str, &str); 3] = [("Mac OS X", "macOS"), ("Mac OS", "macOS"), ("Chrome OS", "ChromeOS")];

/// The rules of `uap-core.json`, without those of devices, which are not used.
#[derive(Deserialize)]
pub(super) struct Rules {
    user_agent_parsers: Vec<user_agent::Parser<'static>>,
    os_parsers: Vec<os::Parser<'static>>,
}

/// The rules, compiled.
pub(super) struct Families {
    browsers: user_agent::Extractor<'static>,
    systems: os::Extractor<'static>,
    rules: usize,
}

impl Families {
    /// Compiles the rules; the error contains the invalid pattern.
    pub(super) fn new(rules: Rules) -> Result<Self, String> {
        let count = rules.user_agent_parsers.len() + rules.os_parsers.len();
        let mut browsers = user_agent::Builder::new();
        for mut parser in rules.user_agent_parsers {
            if is_unbounded(&parser.regex, parser.family_replacement.as_deref()) {
                parser.family_replacement = Some(UNKNOWN.into());
            }
            let regex = parser.regex.clone();
            browsers = browsers.push(parser).map_err(|error| format!("{regex}: {error}"))?;
        }
        let mut systems = os::Builder::new();
        for mut parser in rules.os_parsers {
            if is_unbounded(&parser.regex, parser.os_replacement.as_deref()) {
                parser.os_replacement = Some(UNKNOWN.into());
            }
            let regex = parser.regex.clone();
            systems = systems.push(parser).map_err(|error| format!("{regex}: {error}"))?;
        }
        Ok(Self {
            browsers: browsers.build().map_err(|error| error.to_string())?,
            systems: systems.build().map_err(|error| error.to_string())?,
            rules: count,
        })
    }

    pub(super) fn browser(&self, text: &str) -> Option<Arc<str>> {
        let found = self.browsers.extract(text)?;
        name(&found.family, &BROWSERS)
    }

    pub(super) fn os(&self, text: &str) -> Option<Arc<str>> {
        let found = self.systems.extract(text)?;
        name(&found.os, &SYSTEMS)
    }
}

impl fmt::Display for Families {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} rules of browsers and systems", self.rules)
    }
}

/// Returns Hopline's name for a family, or `None` for an unknown one.
fn name(family: &str, names: &[(&str, &'static str)]) -> Option<Arc<str>> {
    let ours = names.iter().find(|(theirs, _)| *theirs == family).map(|(_, ours)| *ours);
    Some(ours.unwrap_or(family)).filter(|name| *name != UNKNOWN && !name.is_empty()).map(Arc::from)
}

/// Returns whether a rule takes the family's name from the text without limiting the possible names.
///
/// Statistics are grouped by the name, so visitors must not be able to add names.
fn is_unbounded(regex: &str, replacement: Option<&str>) -> bool {
    let groups: HashSet<u32> = match replacement {
        // Without a replacement the family is the first group.
        None => HashSet::from([1]),
        Some(text) => text
            .match_indices('$')
            .filter_map(|(at, _)| text[at + 1..].chars().next()?.to_digit(10))
            .collect(),
    };
    // `\d` means ASCII digits in the rules. An invalid pattern is rejected when it is compiled.
    regex_syntax::parse(&regex.replace(r"\d", "[0-9]"))
        .is_ok_and(|hir| groups.iter().any(|group| group_is_unbounded(&hir, *group)))
}

/// Returns whether a group of a pattern matches more than [`MAX_NAMES`] texts.
fn group_is_unbounded(hir: &Hir, group: u32) -> bool {
    match hir.kind() {
        HirKind::Capture(capture) if capture.index == group => count_texts(&capture.sub) > MAX_NAMES,
        HirKind::Capture(capture) => group_is_unbounded(&capture.sub, group),
        HirKind::Repetition(repetition) => group_is_unbounded(&repetition.sub, group),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().any(|part| group_is_unbounded(part, group))
        }
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => false,
    }
}

/// Returns an upper bound of the number of texts that a pattern matches.
fn count_texts(hir: &Hir) -> u64 {
    match hir.kind() {
        HirKind::Empty | HirKind::Literal(_) | HirKind::Look(_) => 1,
        HirKind::Class(Class::Unicode(class)) => {
            class.ranges().iter().map(|range| u64::from(range.end()) - u64::from(range.start()) + 1).sum()
        }
        HirKind::Class(Class::Bytes(class)) => {
            class.ranges().iter().map(|range| u64::from(range.end()) - u64::from(range.start()) + 1).sum()
        }
        HirKind::Capture(capture) => count_texts(&capture.sub),
        HirKind::Repetition(repetition) => match repetition.max {
            Some(0) => 1,
            Some(1) => count_texts(&repetition.sub).saturating_add(1),
            _ => u64::MAX,
        },
        HirKind::Concat(parts) => parts.iter().map(count_texts).fold(1, u64::saturating_mul),
        HirKind::Alternation(parts) => parts.iter().map(count_texts).fold(0, u64::saturating_add),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_with_an_unlimited_number_of_names_are_detected() {
        for (regex, replacement) in [
            (r"^(.{0,200})/(\d+) CFNetwork", None),
            (r"([A-z]+[Bb]ot)/(\d+)", None),
            (r"(\w+) Browser", None),
            (r"x(a+)", Some("Family $1")),
            (r"(Chrome)/(\d+)", Some("$1 $2")),
            (r"(Windows \d\d)", None),
            ("(?i)(a very long name of a browser)/1", None),
        ] {
            assert!(is_unbounded(regex, replacement), "{regex} {replacement:?}");
        }
        for (regex, replacement) in [
            (r"(Chrome|Firefox|Edg(?:A|iOS)?)/(\d+)\.(\d+)", None),
            (r"([Bb]rave(?:\sChrome)?)/(\d+)", None),
            (r"^(.{0,200})/(\d+) CFNetwork", Some("CFNetwork")),
            (r"(Chrome)/(\d+)", Some("$1")),
            (r"(Windows [\d.])", None),
            ("(?i)(foo)/1", None),
        ] {
            assert!(!is_unbounded(regex, replacement), "{regex} {replacement:?}");
        }
    }

    #[test]
    fn a_family_has_the_same_name_on_every_device() {
        assert_eq!(name("Chrome Mobile iOS", &BROWSERS).as_deref(), Some("Chrome"));
        assert_eq!(name("Android", &BROWSERS).as_deref(), Some("Android Browser"));
        assert_eq!(name("Android", &SYSTEMS).as_deref(), Some("Android"));
        assert_eq!(name("Mac OS X", &SYSTEMS).as_deref(), Some("macOS"));
        assert_eq!(name("Vivaldi", &BROWSERS).as_deref(), Some("Vivaldi"));
        assert_eq!(name("Other", &BROWSERS), None);
    }

    #[test]
    fn the_error_contains_the_invalid_pattern() {
        let rules = r#"{"user_agent_parsers": [{"regex": "(a"}], "os_parsers": []}"#;
        let error = Families::new(serde_json::from_str(rules).unwrap()).err().unwrap();
        assert!(error.starts_with("(a: "), "{error}");
    }
}
