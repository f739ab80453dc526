//! The mark of a click that Kafka may have already.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// Returns a click's message with `again` set.
///
/// Field by field and not as a [`Click`](super::Click): what an older or newer build left behind keeps
/// whatever this one does not know. What is no JSON object goes on as it is, to become a dead letter.
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
    fn a_marked_click_is_the_same_click_again() {
        let bare = include_bytes!("../../fixtures/click.v1.bare.json").trim_ascii();
        let click = Click::decode(bare).unwrap();
        let expected = Click { again: true, ..click };
        assert_eq!(mark_again(bare), expected.encode());
        assert_eq!(mark_again(&mark_again(bare)), expected.encode());
    }

    #[test]
    fn what_cannot_be_read_goes_on_as_it_is() {
        assert_eq!(mark_again(b"[1]"), &b"[1]"[..]);
        assert_eq!(mark_again(b"\xff"), &b"\xff"[..]);
    }
}
