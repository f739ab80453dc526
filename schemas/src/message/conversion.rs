//! A conversion, for counting.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{Message, Version};
use crate::id::{ConversionId, LinkId, WorkspaceId};

/// A conversion on topic `conversions`. Personal fields are omitted; only the API returns them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversion {
    /// The message's version.
    #[serde(rename = "v")]
    pub version: Version<1>,
    /// Identifies the conversion.
    pub conversion_id: ConversionId,
    /// The click that converted.
    pub click_id: String,
    /// The link of that click.
    pub link_id: LinkId,
    /// The link's workspace.
    pub workspace_id: WorkspaceId,
    /// The time in the click's id, by the clock of its edge.
    #[serde(with = "crate::time::millis")]
    pub clicked_at: DateTime<Utc>,
    /// When the conversion was registered.
    #[serde(with = "crate::time::millis")]
    pub converted_at: DateTime<Utc>,
}

impl Message for Conversion {
    const VERSION: u32 = 1;
}
