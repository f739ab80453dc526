//! Marks clicks that may be repeats.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// Returns a click's message with `again` set, which marks a possible repeat.
///
/// Edits the JSON rather than a [`Click`](super::Click), to keep the fields that this build does not know. Returns
/// anything but a JSON object unchanged; it becomes a dead letter.
pub fn mark_again(value: &[u8]) -> Cow<'_, [u8]> {
    let Ok(mut click) = serde_json::from_slice::<Map<String, Value>>(value) else {
        return Cow::Borrowed(value);
    };
    click.insert("again".to_owned(), Value::Bool(true));
    serde_json::to_vec(&click).map_or(Cow::Borrowed(value), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Click, Message as _};

    #[test]
    fn marking_a_click_changes_only_again() {
        let bare = include_bytes!("../../fixtures/click.v1.bare.json").trim_ascii();
        let click = Click::decode(bare).unwrap();
        let expected = Click { again: true, ..click };
        assert_eq!(mark_again(bare), expected.encode());
        assert_eq!(mark_again(&mark_again(bare)), expected.encode());
    }

    #[test]
    fn invalid_messages_are_unchanged() {
        assert_eq!(mark_again(b"[1]"), &b"[1]"[..]);
        assert_eq!(mark_again(b"\xff"), &b"\xff"[..]);
    }
}
