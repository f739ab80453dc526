//! The list of crawlers, as a question of microseconds.

use std::fmt;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder};
use regex::bytes::{RegexSet, RegexSetBuilder};
use regex_syntax::hir::HirKind;
use serde::Deserialize;

use super::Class;

/// How the list marks those that fetch a page to show it to a person.
const PREVIEW_TAG: &str = "social-preview";

/// Marks those that collect pages for themselves, whatever else they do.
const COLLECTOR_TAGS: [&str; 2] = ["ai-crawler", "search-engine"];

/// Patterns that match people: a build of Android that millions of telephones have, and browsers inside programs.
const PEOPLE: [&str; 4] = [r"AP3A\.240617\.008", r"Code\/1\.", "MetaIAB Facebook", r"Trae\/"];

/// Names of apps that fetch previews, but also have a browser inside, whose text begins as every browser's does.
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
/// All but a few are plain words, which one pass over the text finds together. In one automaton with the others
/// they would cost ten times as much on a text that was not seen before.
pub(super) struct Crawlers {
    words: AhoCorasick,
    of_words: Vec<Known>,
    patterns: RegexSet,
    of_patterns: Vec<Known>,
}

/// What the list has of a pattern.
#[derive(Clone, Copy)]
struct Known {
    class: Class,
    is_app: bool,
}

impl Crawlers {
    /// Compiles the list; the error names the pattern that is none.
    pub(super) fn new(list: Vec<Crawler>) -> Result<Self, String> {
        let (mut words, mut of_words) = (Vec::new(), Vec::new());
        let (mut patterns, mut of_patterns) = (Vec::new(), Vec::new());
        for crawler in list {
            if PEOPLE.contains(&crawler.pattern.as_str()) {
                continue;
            }
            let known = Known { class: class(&crawler), is_app: APPS.contains(&crawler.pattern.as_str()) };
            let parsed = regex_syntax::parse(&crawler.pattern)
                .map_err(|error| format!("{}: {error}", crawler.pattern))?;
            if let HirKind::Literal(word) = parsed.kind() {
                words.push(word.0.clone());
                of_words.push(known);
            } else {
                patterns.push(crawler.pattern);
                of_patterns.push(known);
            }
        }
        Ok(Self {
            words: AhoCorasickBuilder::new().build(words).map_err(|error| error.to_string())?,
            of_words,
            // Bytes make a smaller automaton than characters do, and no pattern names a letter beyond ASCII.
            patterns: RegexSetBuilder::new(patterns)
                .unicode(false)
                .build()
                .map_err(|error| error.to_string())?,
            of_patterns,
        })
    }

    /// Returns the class of a text that the list knows.
    pub(super) fn class(&self, text: &str) -> Option<Class> {
        let words = self.words.find_overlapping_iter(text).map(|found| self.of_words[found.pattern()]);
        let patterns = self.patterns.matches(text.as_bytes());
        let patterns = patterns.iter().map(|index| self.of_patterns[index]);
        let is_browser = text.starts_with("Mozilla/");
        let known = words.chain(patterns).filter(|known| !(known.is_app && is_browser));
        // Fetchers of previews name each other, and most have the word bot in their names: one mark is enough.
        known.map(|known| known.class).reduce(|one, other| if one == Class::Preview { one } else { other })
    }
}

impl fmt::Display for Crawlers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a list of {} crawlers", self.of_words.len() + self.of_patterns.len())
    }
}

fn class(crawler: &Crawler) -> Class {
    let tagged = |tag: &str| crawler.tags.iter().any(|own| own == tag);
    if tagged(PREVIEW_TAG) && !COLLECTOR_TAGS.into_iter().any(tagged) { Class::Preview } else { Class::Bot }
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
            {"pattern": "MetaIAB Facebook", "tags": ["social-preview"]},
            {"pattern": "Tumblr\\/", "tags": ["social-preview"]}
        ]"#;
        Crawlers::new(serde_json::from_str(list).unwrap()).unwrap()
    }

    #[test]
    fn words_and_patterns_are_both_found() {
        let crawlers = crawlers();
        assert_eq!((crawlers.of_words.len(), crawlers.of_patterns.len()), (5, 3));
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
            ("Mozilla/5.0 (iPhone) MetaIAB Facebook", None),
            ("Tumblr/14.0", Some(Class::Preview)),
            ("Mozilla/5.0 (iPhone) Tumblr/14.0", None),
            ("", None),
        ] {
            assert_eq!(crawlers.class(text), class, "{text}");
        }
    }

    #[test]
    fn a_pattern_that_is_none_is_named() {
        let refused = Crawlers::new(vec![Crawler { pattern: "(a".to_owned(), tags: vec![] }]).err().unwrap();
        assert!(refused.starts_with("(a: "), "{refused}");
    }
}
