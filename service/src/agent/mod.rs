//! Classification of User-Agents: class, device type, browser and operating system.
//!
//! [`Agents`] uses third-party lists from a folder, or without them a small built-in table. The result depends only on
//! the User-Agent and the purpose, so a recount can classify stored clicks with newer lists.

mod built_in;
mod cache;
mod classification;
mod crawlers;
mod families;
mod lists;
mod model;

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use cache::Cache;
pub use classification::{Agent, Class};
use families::Families;
use lists::Lists;
pub use lists::LoadError;

/// Number of bytes of a User-Agent that are stored with a click. Everything comes from them; if they are a person's,
/// marks behind them count too.
pub const TEXT_BYTES: usize = 256;

/// Number of bytes of a User-Agent that are read. The limit bounds the work for a long text.
pub const READ_BYTES: usize = 2_048;

/// Number of bytes of the longest text whose class is cached: those of browsers within apps exceed [`TEXT_BYTES`].
const CACHED_BYTES: usize = 512;

/// A classifier of User-Agents, with a cache.
pub struct Agents {
    lists: Option<Lists>,
    cache: Cache,
}

impl fmt::Debug for Agents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Agents").field("source", &self.to_string()).finish_non_exhaustive()
    }
}

/// Names the lists in use.
impl fmt::Display for Agents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lists {
            Some(lists) => lists.fmt(formatter),
            None => formatter.write_str("the small built-in table of agents"),
        }
    }
}

impl Agents {
    /// Returns a classifier with the built-in table.
    #[must_use]
    pub fn built_in() -> Self {
        Self { lists: None, cache: Cache::new() }
    }

    /// Returns a classifier with the lists in a folder. Loading takes up to a second of CPU time.
    ///
    /// # Errors
    /// When a list is missing or damaged. Callers can fall back to [`Agents::built_in`].
    pub fn load(folder: &Path) -> Result<Self, LoadError> {
        Ok(Self { lists: Some(Lists::load(folder)?), cache: Cache::new() })
    }

    /// Classifies a User-Agent, given the request's `Sec-Purpose` or similar header.
    pub fn read(&self, user_agent: &str, purpose: Option<&str>) -> Agent {
        let text = if user_agent.len() > CACHED_BYTES { start(user_agent, TEXT_BYTES) } else { user_agent };
        let agent = self.cache.get_or_insert(text, || self.classify(text));
        let class = match purpose {
            Some(OVER_LIMIT | BOT) => Class::Bot,
            Some(purpose) if is_prefetch(purpose) => Class::Preview,
            _ if agent.class == Class::Human && user_agent.len() > text.len() => {
                self.class(start(user_agent, READ_BYTES))
            }
            _ => agent.class,
        };
        Agent { class, ..agent }
    }

    fn classify(&self, text: &str) -> Agent {
        let stored = start(text, TEXT_BYTES);
        let lower = stored.to_ascii_lowercase();
        let class = self.class(stored);
        let (browser, os) = match &self.lists {
            // By the class of the stored part, which is what a recount sees.
            Some(lists) => (browser(&lists.families, stored, class), lists.families.os(stored)),
            None => (built_in::browser(&lower).map(Arc::from), built_in::os(&lower).map(Arc::from)),
        };
        let class = match class {
            Class::Human if text.len() > stored.len() => self.class(text),
            class => class,
        };
        Agent { class, device_type: built_in::device_type(&lower), browser, os }
    }

    fn class(&self, text: &str) -> Class {
        let text = model::without_model(whole_words(text));
        let built_in = built_in::class(&text.to_ascii_lowercase());
        match &self.lists {
            // The built-in table also detects crawlers that are not on the list yet, and its previews take precedence.
            Some(lists) if built_in != Class::Preview => lists.crawlers.class(&text).unwrap_or(built_in),
            _ => built_in,
        }
    }
}

/// The purpose that the edge stores for a click above its client's limit, so that a recount keeps it a bot's.
pub const OVER_LIMIT: &str = "over-limit";

/// The purpose that the edge stores for a click with a bot's mark behind the stored part of the User-Agent.
pub const BOT: &str = "bot";

/// The purpose that the edge stores for a click with a preview's mark there.
pub const PREVIEW: &str = "preview";

/// Returns the family of the browser. The rules of crawlers come first and may match the model of a person's phone, but
/// give no family. Then the text without the model has it.
fn browser(families: &Families, text: &str, class: Class) -> Option<Arc<str>> {
    let found = families.browser(text);
    if found.is_some() || class != Class::Human {
        return found;
    }
    match model::without_model(text) {
        Cow::Owned(text) => families.browser(&text),
        Cow::Borrowed(_) => None,
    }
}

/// Returns the first bytes of a text.
fn start(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Returns a text without its last word if that may have been cut: `Abbott` must not become `Abbot`. A text that has by
/// chance the length of a cut one loses a whole word.
fn whole_words(text: &str) -> &str {
    // A cut between characters takes up to three bytes more.
    let is_cut = |limit: usize| (limit - 3..=limit).contains(&text.len());
    if is_cut(TEXT_BYTES) || is_cut(READ_BYTES) {
        return text.trim_end_matches(|c: char| c.is_ascii_alphanumeric());
    }
    text
}

/// Returns whether a request is a prefetch, whose result a person may never see.
fn is_prefetch(purpose: &str) -> bool {
    let purpose = purpose.to_ascii_lowercase();
    ["prefetch", "prerender", "preview"].iter().any(|word| purpose.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHROME: &str = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) \
        Chrome/140.0.0.0 Safari/537.36";

    #[test]
    fn the_model_of_a_phone_is_no_mark() {
        for (device, class) in [
            ("CUBOT_X18_Plus", Class::Human),
            ("M bot 60 Build/NRD90M; wv", Class::Human),
            ("Fetch X1", Class::Human),
            ("SM-Monitor Build/UP1A", Class::Human),
            ("K; Some-Monitor/1.0", Class::Bot),
            ("Somebot/1.0", Class::Bot),
        ] {
            let text = CHROME.replace("Windows NT 10.0; Win64; x64", &format!("Linux; Android 14; {device}"));
            assert_eq!(Agents::built_in().read(&text, None).class, class, "{text}");
        }
    }

    #[test]
    fn a_prefetch_is_a_preview() {
        let agents = Agents::built_in();
        for purpose in ["prefetch;prerender", "prefetch", "Preview"] {
            assert_eq!(agents.read(CHROME, Some(purpose)).class, Class::Preview, "{purpose}");
        }
        for (purpose, class) in [(OVER_LIMIT, Class::Bot), (BOT, Class::Bot), (PREVIEW, Class::Preview)] {
            assert_eq!(agents.read(CHROME, Some(purpose)).class, class, "{purpose}");
        }
        assert_eq!(agents.read(CHROME, Some("navigate")).class, Class::Human);
        assert_eq!(agents.read(CHROME, None).class, Class::Human);
    }

    #[test]
    fn marks_behind_the_stored_part_are_found() {
        let agents = Agents::built_in();
        let person = agents.read(CHROME, None);
        for (bytes, mark, class) in [
            (TEXT_BYTES, "somebot/1.0", Class::Bot),
            (TEXT_BYTES, "Slackbot/1.0", Class::Preview),
            (TEXT_BYTES, "Abbott/1.0", Class::Human),
            (CACHED_BYTES, "somebot/1.0", Class::Bot),
            (CACHED_BYTES, "Slackbot/1.0", Class::Preview),
            (READ_BYTES, "somebot/1.0", Class::Human),
        ] {
            let long = format!("{CHROME}{} {mark}", "é".repeat(bytes / 2));
            assert_eq!(agents.read(&long, None), Agent { class, ..person.clone() }, "{bytes} {mark}");
        }
    }

    #[test]
    fn a_device_that_is_cut_is_no_mark() {
        let device = "Android (30/11; 320dpi; 720x1440; X; M_bot_60; M_bot_60; mt1; en_US; 5)";
        let text =
            CHROME.replace("Windows NT 10.0; Win64; x64", "Linux; Android 11; M bot 60 Build/R1.1; wv");
        let text = format!("{text} {} {device}", "x".repeat(TEXT_BYTES - text.len() - 60));
        assert!(text.len() > TEXT_BYTES && text[..TEXT_BYTES].contains("M_bot_60"), "{text}");
        assert_eq!(Agents::built_in().read(&text, None).class, Class::Human);
        let bot = format!("{text} Somebot/1.0");
        assert_eq!(Agents::built_in().read(&bot, None).class, Class::Bot);
    }

    #[test]
    fn a_word_that_is_cut_is_no_mark() {
        let agents = Agents::built_in();
        for bytes in [TEXT_BYTES, READ_BYTES] {
            let text = format!("{CHROME}{} Abbott/1.0", "x".repeat(bytes - CHROME.len() - " Abbot".len()));
            assert_eq!(text[..bytes].rsplit(' ').next(), Some("Abbot"));
            assert_eq!(agents.read(&text, None).class, Class::Human, "{bytes}");
            assert_eq!(agents.read(&text[..bytes], None).class, Class::Human, "{bytes}");
        }
    }

    #[test]
    fn a_browser_behind_the_stored_part_makes_no_person() {
        // A recount sees the stored part only.
        let long = format!("Mozilla/5.0 ({}) Firefox/140.0", "x".repeat(TEXT_BYTES));
        assert_eq!(Agents::built_in().read(&long, None).class, Class::Bot);
    }

    #[test]
    fn the_built_in_table_is_named() {
        assert_eq!(Agents::built_in().to_string(), "the small built-in table of agents");
    }
}
