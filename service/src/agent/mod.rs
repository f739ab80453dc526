//! What a User-Agent says about the software that sent it: class, kind of device, browser, operating system.
//!
//! [`Agents`] reads with the lists in a folder, which others keep, or, without them, with a small table of our own.
//! Either way the answer depends on the text and the purpose alone, so that what was
//! stored with a click can be read again later with newer lists.

mod built_in;
mod cache;
mod crawlers;
mod families;
mod lists;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use cache::Cache;
use lists::Lists;
pub use lists::LoadError;

/// How many bytes of a User-Agent are read; what is stored with a click is cut to the same length.
///
/// Also what bounds the work for one text that was not seen before.
pub const TEXT_BYTES: usize = 256;

/// What made a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// A person's browser.
    Human,
    /// A crawler, a monitor, a library, a command-line client.
    Bot,
    /// A prefetch, or a fetcher that shows the destination to a person.
    Preview,
}

/// What a User-Agent says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// Whether a person sees the destination.
    pub class: Class,
    /// `desktop`, `mobile`, `tablet` or `other`.
    pub device_type: &'static str,
    /// Family of the browser, when known. One of a closed set of names: no visitor can make up a new one.
    pub browser: Option<Arc<str>>,
    /// Family of the operating system, when known; a closed set too.
    pub os: Option<Arc<str>>,
}

/// Reads User-Agents, and remembers those that it has read.
pub struct Agents {
    lists: Option<Lists>,
    cache: Cache,
}

impl fmt::Debug for Agents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Agents").field("source", &self.to_string()).finish_non_exhaustive()
    }
}

/// Says what the answers rest on.
impl fmt::Display for Agents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lists {
            Some(lists) => lists.fmt(formatter),
            None => formatter.write_str("the small built-in table of agents"),
        }
    }
}

impl Agents {
    /// Reads with the small table of our own.
    #[must_use]
    pub fn built_in() -> Self {
        Self { lists: None, cache: Cache::new() }
    }

    /// Reads with the lists in a folder. Loading takes up to a second of CPU.
    ///
    /// # Errors
    /// When a list is missing or damaged; [`Agents::built_in`] is there then.
    pub fn load(folder: &Path) -> Result<Self, LoadError> {
        Ok(Self { lists: Some(Lists::load(folder)?), cache: Cache::new() })
    }

    /// Reads a User-Agent, and what the request said that it was for (`Sec-Purpose` and its like).
    pub fn read(&self, user_agent: &str, purpose: Option<&str>) -> Agent {
        let text = &user_agent[..user_agent.floor_char_boundary(TEXT_BYTES)];
        let agent = self.cache.get_or_insert(text, || self.read_new(text));
        if purpose.is_some_and(is_ahead) { Agent { class: Class::Preview, ..agent } } else { agent }
    }

    fn read_new(&self, text: &str) -> Agent {
        let lower = text.to_ascii_lowercase();
        let device_type = built_in::device_type(&lower);
        let known = built_in::class(&lower);
        let Some(lists) = &self.lists else {
            let [browser, os] = [built_in::browser(&lower), built_in::os(&lower)];
            return Agent {
                class: known,
                device_type,
                browser: browser.map(Arc::from),
                os: os.map(Arc::from),
            };
        };
        Agent {
            // Our own table goes on top of the list: it has words of crawlers that no list can know yet.
            class: lists.crawlers.class(text).filter(|_| known != Class::Preview).unwrap_or(known),
            device_type,
            browser: lists.families.browser(text),
            os: lists.families.os(text),
        }
    }
}

/// Tells whether a request is made ahead of a person, who may never see what it brings.
fn is_ahead(purpose: &str) -> bool {
    let purpose = purpose.to_ascii_lowercase();
    ["prefetch", "prerender", "preview"].iter().any(|word| purpose.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHROME: &str = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36";

    #[test]
    fn a_request_ahead_of_a_person_is_a_preview() {
        let agents = Agents::built_in();
        for purpose in ["prefetch;prerender", "prefetch", "Preview"] {
            assert_eq!(agents.read(CHROME, Some(purpose)).class, Class::Preview, "{purpose}");
        }
        assert_eq!(agents.read(CHROME, Some("navigate")).class, Class::Human);
        assert_eq!(agents.read(CHROME, None).class, Class::Human);
    }

    #[test]
    fn only_the_part_that_is_kept_is_read() {
        let agents = Agents::built_in();
        let long = format!("{CHROME}{}bot", "é".repeat(TEXT_BYTES));
        assert_eq!(agents.read(&long, None), agents.read(CHROME, None));
    }

    #[test]
    fn without_lists_it_says_so() {
        assert_eq!(Agents::built_in().to_string(), "the small built-in table of agents");
    }
}
