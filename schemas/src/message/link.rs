//! A link, as edges need it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{Message, Version};
use crate::id::{EdgeTokenId, LinkId, WorkspaceId};

/// What happens to the query of a visited short URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum ForwardQuery {
    /// It is dropped.
    Off,
    /// It is added to the destination's, whose own parameters win.
    #[default]
    Append,
}

impl ForwardQuery {
    /// The name in messages, columns and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Append => "append",
        }
    }
}

/// A value of topic `links`: the state of one link after its latest change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LinkRecord {
    /// The link is gone. Tried first: a live link has no `deleted_at`.
    Deleted(DeletedLink),
    /// The link is there.
    Live(Link),
}

impl Message for LinkRecord {
    const VERSION: u32 = 1;
}

/// A link that is there, active or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The message's version.
    #[serde(rename = "v")]
    pub version: Version<1>,
    /// Identifies the link.
    pub id: LinkId,
    /// Raised by one with each change: readers ignore an older one.
    pub revision: u64,
    /// The link's workspace.
    pub workspace_id: WorkspaceId,
    /// The path segment that visitors ask for.
    pub slug: String,
    /// Where the link leads.
    pub destination: String,
    /// Whether it redirects at all.
    pub is_active: bool,
    /// 301, 302, 307 or 308.
    pub redirect_status: u16,
    /// What happens to the visited URL's query.
    pub forward_query: ForwardQuery,
    /// Whether the destination gets the click's id.
    pub append_click_id: bool,
    /// From when on the link answers 410.
    #[serde(default, with = "crate::time::optional_millis", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
}

/// A link that was deleted. A value and not a Kafka tombstone: compaction would forget a tombstone, and a
/// reader that starts from an older record would bring the link back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedLink {
    /// The message's version.
    #[serde(rename = "v")]
    pub version: Version<1>,
    /// Identifies the link.
    pub id: LinkId,
    /// Above every revision of the live link.
    pub revision: u64,
    /// When it was deleted.
    #[serde(with = "crate::time::millis")]
    pub deleted_at: DateTime<Utc>,
}

/// A token of an external redirect edge, on topic `links` under the key `edge_token:<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeToken {
    /// The message's version.
    #[serde(rename = "v")]
    pub version: Version<1>,
    /// Identifies the token.
    pub edge_token_id: EdgeTokenId,
    /// SHA-256 of the token, 64 hex digits.
    pub token_sha256: String,
    /// The only workspace whose clicks it may send; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<WorkspaceId>,
    /// Set when it was revoked.
    #[serde(default, with = "crate::time::optional_millis", skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<DateTime<Utc>>,
}

impl EdgeToken {
    /// What the keys of edge tokens on topic `links` begin with; links' keys are their ids.
    pub const KEY_PREFIX: &'static str = "edge_token:";

    /// The record's key.
    pub fn key(&self) -> String {
        format!("{}{}", Self::KEY_PREFIX, self.edge_token_id)
    }
}

impl Message for EdgeToken {
    const VERSION: u32 = 1;
}
