//! A click: the record of a visit.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{DecodeError, Message, Text, Version};
use crate::id::{LinkId, WorkspaceId};

/// The kind of client that made a request. Statistics count `human` by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// A person's browser.
    Human,
    /// A crawler, a monitor, a command-line client.
    Bot,
    /// A prefetch, or an app that shows a preview of the destination.
    Preview,
}

impl Class {
    /// Returns the name in messages, columns and responses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Human => "human",
            Self::Bot => "bot",
            Self::Preview => "preview",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A click on topic `clicks`. It has no client address, only `visitor`, which is a hash of it.
///
/// Its texts are `String`s, or [`Text`]s that borrow from the message's bytes; see [`Click::borrow`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Click<S = String> {
    /// The message's version.
    #[serde(rename = "v")]
    pub version: Version<1>,
    /// The signed click id; see [`crate::click_id`].
    pub click_id: S,
    /// The link that was clicked.
    pub link_id: LinkId,
    /// The link's workspace.
    pub workspace_id: WorkspaceId,
    /// The slug at the time of the click.
    pub slug: S,
    /// The edge's clock when it answered.
    #[serde(with = "crate::time::millis")]
    pub occurred_at: DateTime<Utc>,
    /// The kind of client.
    pub class: Class,
    /// Keyed hash of workspace, client address and User-Agent; 16 hex digits, because a JSON number would lose bits.
    #[serde(with = "hex64")]
    pub visitor: u64,
    /// ISO 3166-1 alpha-2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub country: Option<S>,
    /// `desktop`, `mobile`, `tablet` or `other`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_type: Option<S>,
    /// Family of the browser.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub browser: Option<S>,
    /// Family of the operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<S>,
    /// Host of the referring page, as [`crate::referrer::normalize`] spells it; records of older edges may differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub referrer: Option<S>,
    /// UTM parameter, from the visited URL, else from the destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utm_source: Option<S>,
    /// UTM parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utm_medium: Option<S>,
    /// UTM parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utm_campaign: Option<S>,
    /// UTM parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utm_term: Option<S>,
    /// UTM parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utm_content: Option<S>,
    /// The value of parameter `click_id` in the visited URL: an id of the caller's own system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_click_id: Option<S>,
    /// The User-Agent, truncated to 256 bytes, for recomputing classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<S>,
    /// The value of `Sec-Purpose`, `Purpose` or `X-Moz`, or another reason for the class, for recomputing classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<S>,
    /// Whether this may be a repeat of a click that was published before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

impl Message for Click {
    const VERSION: u32 = 1;
}

impl<'a> Click<Text<'a>> {
    /// Reads a record's value as [`Message::decode`] does, but without copying its texts.
    pub fn borrow(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        super::read(bytes, <Click as Message>::VERSION)
    }

    /// Copies the texts.
    pub fn to_owned(&self) -> Click {
        let text = |text: &Text<'_>| text.as_ref().to_owned();
        let owned = |optional: &Option<Text<'_>>| optional.as_ref().map(text);
        Click {
            version: self.version,
            click_id: text(&self.click_id),
            link_id: self.link_id,
            workspace_id: self.workspace_id,
            slug: text(&self.slug),
            occurred_at: self.occurred_at,
            class: self.class,
            visitor: self.visitor,
            country: owned(&self.country),
            device_type: owned(&self.device_type),
            browser: owned(&self.browser),
            os: owned(&self.os),
            referrer: owned(&self.referrer),
            utm_source: owned(&self.utm_source),
            utm_medium: owned(&self.utm_medium),
            utm_campaign: owned(&self.utm_campaign),
            utm_term: owned(&self.utm_term),
            utm_content: owned(&self.utm_content),
            external_click_id: owned(&self.external_click_id),
            user_agent: owned(&self.user_agent),
            purpose: owned(&self.purpose),
            again: self.again,
        }
    }
}

mod hex64 {
    use super::{Deserialize as _, Deserializer, Serializer, Text};
    use serde::de::Error as _;

    pub(super) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{value:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = Text::deserialize(deserializer)?;
        let text = text.as_ref();
        if text.len() != 16 {
            return Err(D::Error::custom("expected 16 hex digits"));
        }
        u64::from_str_radix(text, 16).map_err(D::Error::custom)
    }
}
