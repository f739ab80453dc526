//! Changes of links, for webhooks.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Message, Version};
use crate::id::{LinkId, WorkspaceId};

/// The kind of a link event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LinkEventKind {
    /// A link is created.
    #[serde(rename = "link.created")]
    Created,
    /// A link is updated.
    #[serde(rename = "link.updated")]
    Updated,
    /// A link is deleted.
    #[serde(rename = "link.deleted")]
    Deleted,
}

impl LinkEventKind {
    /// Returns the name that webhook receivers see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "link.created",
            Self::Updated => "link.updated",
            Self::Deleted => "link.deleted",
        }
    }
}

/// An event on topic `link-events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkEvent {
    /// The message's version.
    #[serde(rename = "v")]
    pub version: Version<1>,
    /// Identifies the event; created in the transaction that changed the link.
    pub event_id: Uuid,
    /// What happened.
    pub event: LinkEventKind,
    /// The link.
    pub link_id: LinkId,
    /// The link's workspace.
    pub workspace_id: WorkspaceId,
    /// When it happened.
    #[serde(with = "crate::time::millis")]
    pub occurred_at: DateTime<Utc>,
    /// The event's `data` in webhooks, from the time of the event.
    pub data: serde_json::Value,
}

impl Message for LinkEvent {
    const VERSION: u32 = 1;
}
