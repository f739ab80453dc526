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

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use cache::Cache;
pub use classification::{Agent, Class};
use lists::Lists;
pub use lists::LoadError;

/// Number of bytes of a User-Agent that are read, and stored with a click.
///
/// It also limits the work for a text that is not in the cache.
pub const TEXT_BYTES: usize = 256;

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
        let text = &user_agent[..user_agent.floor_char_boundary(TEXT_BYTES)];
        let agent = self.cache.get_or_insert(text, || self.classify(text));
        match purpose {
            Some(OVER_LIMIT) => Agent { class: Class::Bot, ..agent },
            Some(purpose) if is_prefetch(purpose) => Agent { class: Class::Preview, ..agent },
            _ => agent,
        }
    }

    fn classify(&self, text: &str) -> Agent {
        let lower = text.to_ascii_lowercase();
        let device_type = built_in::device_type(&lower);
        let built_in_class = built_in::class(&lower);
        let Some(lists) = &self.lists else {
            let [browser, os] = [built_in::browser(&lower), built_in::os(&lower)];
            return Agent {
                class: built_in_class,
                device_type,
                browser: browser.map(Arc::from),
                os: os.map(Arc::from),
            };
        };
        Agent {
            // The built-in table also detects crawlers that are not on the list yet, and its previews take precedence.
            class: lists
                .crawlers
                .class(text)
                .filter(|_| built_in_class != Class::Preview)
                .unwrap_or(built_in_class),
            device_type,
            browser: lists.families.browser(text),
            os: lists.families.os(text),
        }
    }
}

/// The purpose that the edge stores for a click above its client's limit, so that a recount keeps it a bot's.
pub const OVER_LIMIT: &str = "over-limit";

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
    fn a_prefetch_is_a_preview() {
        let agents = Agents::built_in();
        for purpose in ["prefetch;prerender", "prefetch", "Preview"] {
            assert_eq!(agents.read(CHROME, Some(purpose)).class, Class::Preview, "{purpose}");
        }
        assert_eq!(agents.read(CHROME, Some(OVER_LIMIT)).class, Class::Bot);
        assert_eq!(agents.read(CHROME, Some("navigate")).class, Class::Human);
        assert_eq!(agents.read(CHROME, None).class, Class::Human);
    }

    #[test]
    fn only_the_stored_part_is_read() {
        let agents = Agents::built_in();
        let long = format!("{CHROME}{}bot", "é".repeat(TEXT_BYTES));
        assert_eq!(agents.read(&long, None), agents.read(CHROME, None));
    }

    #[test]
    fn the_built_in_table_is_named() {
        assert_eq!(Agents::built_in().to_string(), "the small built-in table of agents");
    }
}
