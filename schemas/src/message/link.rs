//! Records of topic `links`, which the edges read.

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
    /// It is appended to the destination's query, whose parameters take precedence.
    #[default]
    Append,
}

impl ForwardQuery {
    /// Returns the name in messages, columns and responses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Append => "append",
        }
    }

    /// Returns the value of a column, which has no other names.
    pub fn of_column(name: &str) -> Self {
        if name == Self::Off.as_str() { Self::Off } else { Self::Append }
    }
}

/// The state of a link after its latest change, on topic `links`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LinkRecord {
    /// The link was deleted. Parsed first: a live link has no `deleted_at`.
    Deleted(DeletedLink),
    /// The link exists.
    Live(Link),
}

impl Message for LinkRecord {
    const VERSION: u32 = 1;
}

/// A link that exists, active or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The message's version.
    #[serde(rename = "v")]
    pub version: Version<1>,
    /// Identifies the link.
    pub id: LinkId,
    /// Increases by one with each change. Readers ignore a revision older than one they have.
    pub revision: u64,
    /// The link's workspace.
    pub workspace_id: WorkspaceId,
    /// The path of the short URL.
    pub slug: String,
    /// The URL that the link redirects to.
    pub destination: String,
    /// Whether the link redirects.
    pub is_active: bool,
    /// 301, 302, 307 or 308.
    pub redirect_status: u16,
    /// What happens to the visited URL's query.
    pub forward_query: ForwardQuery,
    /// Whether the click id is appended to the destination.
    pub append_click_id: bool,
    /// The time from which the link answers 410.
    #[serde(default, with = "crate::time::optional_millis", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// Whether an operator disabled it: it answers 410.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_blocked: bool,
}

/// A deleted link.
///
/// Not a Kafka tombstone: compaction removes tombstones, and a reader that starts from an older record would restore
/// the link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedLink {
    /// The message's version.
    #[serde(rename = "v")]
    pub version: Version<1>,
    /// Identifies the link.
    pub id: LinkId,
    /// Higher than every revision of the live link.
    pub revision: u64,
    /// The link's workspace; messages of earlier releases do not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<WorkspaceId>,
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
    /// The only workspace that it may send clicks of; `None` allows all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<WorkspaceId>,
    /// When it was revoked.
    #[serde(default, with = "crate::time::optional_millis", skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<DateTime<Utc>>,
}

impl EdgeToken {
    /// Prefix of the keys of edge tokens on topic `links`; the key of a link is its id.
    pub const KEY_PREFIX: &'static str = "edge_token:";

    /// Returns the record's key.
    pub fn key(&self) -> String {
        format!("{}{}", Self::KEY_PREFIX, self.edge_token_id)
    }
}

impl Message for EdgeToken {
    const VERSION: u32 = 1;
}
