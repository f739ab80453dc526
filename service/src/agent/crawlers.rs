//! The list of crawlers, compiled for matching within microseconds.

use std::fmt;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder};
use regex::bytes::{RegexSet, RegexSetBuilder};
use regex_syntax::hir::HirKind;
use serde::Deserialize;

use super::classification::Class;

/// The list's tag of apps that show a preview of a page.
const PREVIEW_TAG: &str = "social-preview";

/// An assistant that fetches pages for people, with [`PREVIEW_TAG`] although it shows them no preview.
const ASSISTANT: &str = r"meta-externalfetcher\/";

/// Tags of crawlers that collect pages, which takes precedence over [`PREVIEW_TAG`].
const COLLECTOR_TAGS: [&str; 2] = ["ai-crawler", "search-engine"];

/// Patterns that match people: a common build of Android, and browsers embedded in programs.
const PEOPLE: [&str; 4] = [r"AP3A\.240617\.008", r"Code\/1\.", "MetaIAB Facebook", r"Trae\/"];

/// Apps that fetch previews but also embed a browser, whose User-Agent begins like any browser's.
const APPS: [&str; 5] = [r"Bluesky\/", "Mastodon", r"Notion\/", r"Tumblr\/", "Viber"];

/// An entry of `crawler-user-agents.json`.
#[derive(Deserialize)]
pub(super) struct Crawler {
    pattern: String,
    #[serde(default)]
    tags: Vec<String>,
}

/// The patterns of the list.
///
/// Most are plain words, which one pass over the text finds. In one automaton with the other patterns, matching would
/// take ten times as long.
pub(super) struct Crawlers {
    words: AhoCorasick,
    word_entries: Vec<Entry>,
    patterns: RegexSet,
    pattern_entries: Vec<Entry>,
}

/// The classification of a pattern.
#[derive(Clone, Copy)]
struct Entry {
    class: Class,
    is_app: bool,
}

impl Crawlers {
    /// Compiles the list; the error contains the invalid pattern.
    pub(super) fn new(list: Vec<Crawler>) -> Result<Self, String> {
        let (mut words, mut word_entries) = (Vec::new(), Vec::new());
        let (mut patterns, mut pattern_entries) = (Vec::new(), Vec::new());
        for crawler in list {
            if PEOPLE.contains(&crawler.pattern.as_str()) {
                continue;
            }
            let entry = Entry { class: class(&crawler), is_app: APPS.contains(&crawler.pattern.as_str()) };
            let parsed = regex_syntax::parse(&crawler.pattern)
                .map_err(|error| format!("{}: {error}", crawler.pattern))?;
            if let HirKind::Literal(word) = parsed.kind() {
                words.push(word.0.clone());
                word_entries.push(entry);
            } else {
                patterns.push(crawler.pattern);
                pattern_entries.push(entry);
            }
        }
        Ok(Self {
            words: AhoCorasickBuilder::new().build(words).map_err(|error| error.to_string())?,
            word_entries,
            // Patterns are ASCII only, and an automaton over bytes is smaller.
            patterns: RegexSetBuilder::new(patterns)
                .unicode(false)
                .build()
                .map_err(|error| error.to_string())?,
            pattern_entries,
        })
    }

    /// Returns the class of a text that matches a pattern.
    pub(super) fn class(&self, text: &str) -> Option<Class> {
        let words = self.words.find_overlapping_iter(text).map(|found| self.word_entries[found.pattern()]);
        let patterns = self.patterns.matches(text.as_bytes());
        let patterns = patterns.iter().map(|index| self.pattern_entries[index]);
        let is_browser = text.starts_with("Mozilla/");
        let matches = words.chain(patterns).filter(|entry| !(entry.is_app && is_browser));
        // Preview takes precedence, because most preview fetchers also match "bot".
        matches.map(|entry| entry.class).reduce(|one, other| if one == Class::Preview { one } else { other })
    }
}

impl fmt::Display for Crawlers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a list of {} crawlers", self.word_entries.len() + self.pattern_entries.len())
    }
}

fn class(crawler: &Crawler) -> Class {
    let tagged = |tag: &str| crawler.tags.iter().any(|other| other == tag);
    let is_preview =
        tagged(PREVIEW_TAG) && !COLLECTOR_TAGS.into_iter().any(tagged) && crawler.pattern != ASSISTANT;
    if is_preview { Class::Preview } else { Class::Bot }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crawlers() -> Crawlers {
        let list = r#"[
            {"pattern": "Googlebot\\/", "tags": ["search-engine"]},
            {"pattern": "bot", "tags": []},
            {"pattern": "[wW]get"},
            {"pattern": "^curl"},
            {"pattern": "Chatbot", "tags": ["social-preview"]},
            {"pattern": "[uU]nfurl", "tags": ["social-preview"]},
            {"pattern": "Gatherer", "tags": ["social-preview", "ai-crawler"]},
            {"pattern": "meta-externalfetcher\\/", "tags": ["social-preview"]},
            {"pattern": "MetaIAB Facebook", "tags": ["social-preview"]},
            {"pattern": "Tumblr\\/", "tags": ["social-preview"]}
        ]"#;
        Crawlers::new(serde_json::from_str(list).unwrap()).unwrap()
    }

    #[test]
    fn words_and_patterns_are_matched() {
        let crawlers = crawlers();
        assert_eq!((crawlers.word_entries.len(), crawlers.pattern_entries.len()), (6, 3));
        for (text, class) in [
            ("Mozilla/5.0 (compatible; Googlebot/2.1)", Some(Class::Bot)),
            ("Mozilla/5.0 (compatible; Googlebot-Image)", Some(Class::Bot)),
            ("wget 1", Some(Class::Bot)),
            ("curl 8", Some(Class::Bot)),
            ("Mozilla/5.0 curl", None),
            ("Chatbot, like wget", Some(Class::Preview)),
            ("curl for Unfurl", Some(Class::Preview)),
            ("unfurl bot", Some(Class::Preview)),
            ("Gatherer", Some(Class::Bot)),
            ("meta-externalfetcher/1.1", Some(Class::Bot)),
            ("Mozilla/5.0 (iPhone) MetaIAB Facebook", None),
            ("Tumblr/14.0", Some(Class::Preview)),
            ("Mozilla/5.0 (iPhone) Tumblr/14.0", None),
            ("", None),
        ] {
            assert_eq!(crawlers.class(text), class, "{text}");
        }
    }

    #[test]
    fn the_error_contains_the_invalid_pattern() {
        let error = Crawlers::new(vec![Crawler { pattern: "(a".to_owned(), tags: vec![] }]).err().unwrap();
        assert!(error.starts_with("(a: "), "{error}");
    }
}
