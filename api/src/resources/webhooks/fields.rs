//! The fields of an endpoint that a caller may set: their rules, shared by create and update.

use service::destination::DestinationRules;

use crate::web::faults::{Faults, parse_url};
use crate::web::text::check_readable;

/// The kinds of events an endpoint can subscribe to.
const EVENTS: [&str; 4] = ["click.created", "link.created", "link.updated", "link.deleted"];

/// The classes of clicks an endpoint can ask for.
const CLICK_CLASSES: [&str; 3] = ["human", "bot", "preview"];

/// Longest description, in characters.
const MAX_DESCRIPTION: usize = 200;

/// The given fields; `None` is absent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) url: Option<&'a str>,
    pub(super) description: Option<&'a str>,
    pub(super) events: Option<&'a [String]>,
    pub(super) click_classes: Option<&'a [String]>,
}

impl Given<'_> {
    /// Adds the fault of each field.
    pub(super) fn check(&self, rules: &DestinationRules, faults: &mut Faults) {
        if let Some(url) = self.url {
            faults.note("url", check_url(url, rules));
        }
        if let Some(description) = self.description {
            faults.note("description", check_description(description));
        }
        if let Some(events) = self.events {
            faults.note("events", check_choice(events, &EVENTS));
        }
        if let Some(classes) = self.click_classes {
            faults.note("click_classes", check_choice(classes, &CLICK_CLASSES));
        }
    }
}

/// Checks an endpoint's URL. The dispatcher checks it again before every attempt, with its addresses.
fn check_url(text: &str, rules: &DestinationRules) -> Result<(), String> {
    let url = parse_url(text)?;
    rules.check_url(&url).map(drop).map_err(|refused| refused.to_string())
}

fn check_description(text: &str) -> Result<(), String> {
    if text.chars().count() > MAX_DESCRIPTION {
        return Err("must have at most 200 characters".to_owned());
    }
    check_readable(text)
}

fn check_choice(given: &[String], known: &[&str]) -> Result<(), String> {
    if given.is_empty() {
        return Err("must have at least one entry".to_owned());
    }
    if !given.iter().all(|one| known.contains(&one.as_str())) {
        return Err(format!("must have only entries of {}", known.join(", ")));
    }
    let mut sorted: Vec<&String> = given.iter().collect();
    sorted.sort();
    sorted.dedup();
    if sorted.len() == given.len() { Ok(()) } else { Err("must not have the same entry twice".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_has_distinct_known_events() {
        let check = |events: &[&str]| {
            check_choice(&events.iter().map(|&event| event.to_owned()).collect::<Vec<_>>(), &EVENTS)
        };
        assert!(check(&["click.created", "link.deleted"]).is_ok());
        assert!(check(&[]).is_err());
        assert!(check(&["click.deleted"]).is_err());
        assert!(check(&["click.created", "click.created"]).is_err());
    }

    #[test]
    fn a_description_may_be_empty_and_has_at_most_200_characters() {
        assert!(check_description("").is_ok());
        assert!(check_description(&"é".repeat(200)).is_ok());
        assert!(check_description(&"é".repeat(201)).is_err());
        for bad in ["a\u{0}b", "a\u{200b}b", "\u{202e}a"] {
            assert!(check_description(bad).is_err(), "{bad:?}");
        }
    }
}
