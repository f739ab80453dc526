//! Families of browsers and operating systems by the rules of uap-core.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use regex_syntax::hir::{Class, Hir, HirKind};
use serde::Deserialize;
use ua_parser::{os, user_agent};

/// What the rules say when they know nothing.
const UNKNOWN: &str = "Other";

/// How many names one rule may have for a family before it counts as open.
const NAMES: u64 = 64;

/// Other names for browsers, where uap-core tells apart what the kind of device tells already, or writes a name
/// otherwise than the built-in table does.
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

/// The same for operating systems.
const SYSTEMS: [(&str, &str); 3] = [("Mac OS X", "macOS"), ("Mac OS", "macOS"), ("Chrome OS", "ChromeOS")];

/// The rules, as `uap-core.json` has them; those of devices tell makers and models, which nobody asks for.
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
    /// Compiles the rules; the error names the pattern that is none.
    pub(super) fn new(rules: Rules) -> Result<Self, String> {
        let count = rules.user_agent_parsers.len() + rules.os_parsers.len();
        let mut browsers = user_agent::Builder::new();
        for mut parser in rules.user_agent_parsers {
            if is_open(&parser.regex, parser.family_replacement.as_deref()) {
                parser.family_replacement = Some(UNKNOWN.into());
            }
            let regex = parser.regex.clone();
            browsers = browsers.push(parser).map_err(|error| format!("{regex}: {error}"))?;
        }
        let mut systems = os::Builder::new();
        for mut parser in rules.os_parsers {
            if is_open(&parser.regex, parser.os_replacement.as_deref()) {
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

/// Returns the name under which we know a family.
fn name(family: &str, names: &[(&str, &'static str)]) -> Option<Arc<str>> {
    let ours = names.iter().find(|(theirs, _)| *theirs == family).map(|(_, ours)| *ours);
    Some(ours.unwrap_or(family)).filter(|name| *name != UNKNOWN && !name.is_empty()).map(Arc::from)
}

/// Tells whether a rule takes the family's name from the text in such a way that a visitor could make names up.
///
/// Each name is a value of a column that statistics are grouped by, so their number must not be up to visitors.
fn is_open(regex: &str, replacement: Option<&str>) -> bool {
    let groups: HashSet<u32> = match replacement {
        // Without a replacement the family is the first group.
        None => HashSet::from([1]),
        Some(text) => text
            .match_indices('$')
            .filter_map(|(at, _)| text[at + 1..].chars().next()?.to_digit(10))
            .collect(),
    };
    // The rules mean ASCII digits. A pattern that cannot be read is refused with its reason when it is compiled.
    regex_syntax::parse(&regex.replace(r"\d", "[0-9]"))
        .is_ok_and(|hir| groups.iter().any(|group| group_is_open(&hir, *group)))
}

/// Tells whether a group of a pattern matches more than [`NAMES`] texts.
fn group_is_open(hir: &Hir, group: u32) -> bool {
    match hir.kind() {
        HirKind::Capture(capture) if capture.index == group => texts(&capture.sub) > NAMES,
        HirKind::Capture(capture) => group_is_open(&capture.sub, group),
        HirKind::Repetition(repetition) => group_is_open(&repetition.sub, group),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().any(|part| group_is_open(part, group))
        }
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => false,
    }
}

/// Counts the texts that a pattern matches, at least roughly and never too few.
fn texts(hir: &Hir) -> u64 {
    match hir.kind() {
        HirKind::Empty | HirKind::Literal(_) | HirKind::Look(_) => 1,
        HirKind::Class(Class::Unicode(class)) => {
            class.ranges().iter().map(|range| u64::from(range.end()) - u64::from(range.start()) + 1).sum()
        }
        HirKind::Class(Class::Bytes(class)) => {
            class.ranges().iter().map(|range| u64::from(range.end()) - u64::from(range.start()) + 1).sum()
        }
        HirKind::Capture(capture) => texts(&capture.sub),
        HirKind::Repetition(repetition) => match repetition.max {
            Some(0) => 1,
            Some(1) => texts(&repetition.sub).saturating_add(1),
            _ => u64::MAX,
        },
        HirKind::Concat(parts) => parts.iter().map(texts).fold(1, u64::saturating_mul),
        HirKind::Alternation(parts) => parts.iter().map(texts).fold(0, u64::saturating_add),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_by_which_visitors_could_make_up_names_is_open() {
        for (regex, replacement) in [
            (r"^(.{0,200})/(\d+) CFNetwork", None),
            (r"([A-z]+[Bb]ot)/(\d+)", None),
            (r"(\w+) Browser", None),
            (r"x(a+)", Some("Family $1")),
            (r"(Chrome)/(\d+)", Some("$1 $2")),
            (r"(Windows \d\d)", None),
            ("(?i)(a very long name of a browser)/1", None),
        ] {
            assert!(is_open(regex, replacement), "{regex} {replacement:?}");
        }
        for (regex, replacement) in [
            (r"(Chrome|Firefox|Edg(?:A|iOS)?)/(\d+)\.(\d+)", None),
            (r"([Bb]rave(?:\sChrome)?)/(\d+)", None),
            (r"^(.{0,200})/(\d+) CFNetwork", Some("CFNetwork")),
            (r"(Chrome)/(\d+)", Some("$1")),
            (r"(Windows [\d.])", None),
            ("(?i)(foo)/1", None),
        ] {
            assert!(!is_open(regex, replacement), "{regex} {replacement:?}");
        }
    }

    #[test]
    fn a_family_has_one_name_whatever_the_device() {
        assert_eq!(name("Chrome Mobile iOS", &BROWSERS).as_deref(), Some("Chrome"));
        assert_eq!(name("Android", &BROWSERS).as_deref(), Some("Android Browser"));
        assert_eq!(name("Android", &SYSTEMS).as_deref(), Some("Android"));
        assert_eq!(name("Mac OS X", &SYSTEMS).as_deref(), Some("macOS"));
        assert_eq!(name("Vivaldi", &BROWSERS).as_deref(), Some("Vivaldi"));
        assert_eq!(name("Other", &BROWSERS), None);
    }

    #[test]
    fn a_pattern_that_is_none_is_named() {
        let rules = r#"{"user_agent_parsers": [{"regex": "(a"}], "os_parsers": []}"#;
        let refused = Families::new(serde_json::from_str(rules).unwrap()).err().unwrap();
        assert!(refused.starts_with("(a: "), "{refused}");
    }
}
