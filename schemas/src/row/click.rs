//! The raw row of a click.

use chrono::{DateTime, Utc};

use super::row_binary::{array, millis, optional_text, read_text, read_uuid, text, uuid};
use crate::id::{LinkId, WorkspaceId};
use crate::message::Click;
use crate::referrer;

/// A click and its position: the table has each pair (`src`, `koff`) at most once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClickRow<S = String> {
    /// The click.
    pub click: Click<S>,
    /// The number of the source; see [`source`](super::source()).
    pub src: u32,
    /// Offset within the partition.
    pub koff: u64,
    /// The broker's time when it appended the record.
    pub broker_ts: DateTime<Utc>,
}

/// The columns of [`ClickRow::write_row_binary`] in order, for `input()`.
pub const CLICK_STRUCTURE: &str = "workspace_id UUID, link_id UUID, occurred_at DateTime64(3, 'UTC'), click_id String, \
     slug String, class String, visitor UInt64, country String, device_type String, browser String, os String, \
     referrer String, utm_source String, utm_medium String, utm_campaign String, utm_term String, \
     utm_content String, external_click_id String, user_agent String, purpose String, again Bool, src UInt32, \
     koff UInt64, broker_ts DateTime64(3, 'UTC')";

impl<S> ClickRow<S> {
    /// Returns the time at which the click is counted: the edge's, but at most the broker's, because an edge's clock
    /// may be ahead.
    pub fn occurred_at(&self) -> DateTime<Utc> {
        self.click.occurred_at.min(self.broker_ts)
    }
}

impl<S: AsRef<str>> ClickRow<S> {
    /// Appends the row's bytes.
    pub fn write_row_binary(&self, out: &mut Vec<u8>) {
        let click = &self.click;
        uuid(out, click.workspace_id.uuid());
        uuid(out, click.link_id.uuid());
        millis(out, self.occurred_at());
        text(out, click.click_id.as_ref());
        text(out, click.slug.as_ref());
        text(out, click.class.as_str());
        out.extend_from_slice(&click.visitor.to_le_bytes());
        optional_text(out, click.country.as_ref());
        optional_text(out, click.device_type.as_ref());
        optional_text(out, click.browser.as_ref());
        optional_text(out, click.os.as_ref());
        // Records of older edges may have other spellings.
        optional_text(out, click.referrer.as_ref().map(|host| referrer::normalize(host.as_ref())).as_ref());
        optional_text(out, click.utm_source.as_ref());
        optional_text(out, click.utm_medium.as_ref());
        optional_text(out, click.utm_campaign.as_ref());
        optional_text(out, click.utm_term.as_ref());
        optional_text(out, click.utm_content.as_ref());
        optional_text(out, click.external_click_id.as_ref());
        optional_text(out, click.user_agent.as_ref());
        optional_text(out, click.purpose.as_ref());
        out.push(u8::from(click.again));
        out.extend_from_slice(&self.src.to_le_bytes());
        out.extend_from_slice(&self.koff.to_le_bytes());
        millis(out, self.broker_ts);
    }
}

/// The output of [`ClickRow::write_row_binary`], with access to single columns.
///
/// Methods panic when the bytes are not a complete row.
#[derive(Debug, Clone, Copy)]
pub struct RowBytes<'a>(pub &'a [u8]);

impl<'a> RowBytes<'a> {
    /// Position of the click id, after two UUIDs and a time.
    const CLICK_ID: usize = 40;

    /// Returns the click's workspace.
    pub fn workspace_id(self) -> WorkspaceId {
        WorkspaceId::from_uuid(read_uuid(self.0))
    }

    /// Returns the click's link.
    pub fn link_id(self) -> LinkId {
        LinkId::from_uuid(read_uuid(&self.0[16..]))
    }

    /// Returns the click id.
    pub fn click_id(self) -> &'a str {
        read_text(&self.0[Self::CLICK_ID..])
    }

    /// Returns the offset within the partition.
    pub fn koff(self) -> u64 {
        u64::from_le_bytes(array(self.0, self.0.len() - 16))
    }

    /// Returns the broker's time.
    pub fn broker_ts(self) -> DateTime<Utc> {
        let millis = i64::from_le_bytes(array(self.0, self.0.len() - 8));
        DateTime::from_timestamp_millis(millis).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;
    use crate::message::Message as _;

    fn row() -> ClickRow {
        let click = Click::decode(include_bytes!("../../fixtures/click.v1.json")).unwrap();
        let broker_ts = click.occurred_at + chrono::TimeDelta::milliseconds(7);
        ClickRow { click, src: source(1, 3), koff: 42, broker_ts }
    }

    #[test]
    fn a_click_from_a_clock_ahead_is_counted_at_the_brokers_time() {
        let mut ahead = row();
        ahead.click.occurred_at = ahead.broker_ts + chrono::TimeDelta::minutes(5);
        assert_eq!(ahead.occurred_at(), ahead.broker_ts);
        assert!(row().occurred_at() < row().broker_ts);
    }

    #[test]
    fn the_position_is_at_the_end_of_the_bytes() {
        let mut bytes = Vec::new();
        row().write_row_binary(&mut bytes);
        let tail = &bytes[bytes.len() - 21..];
        assert_eq!(tail[0], 1, "again");
        assert_eq!(tail[1..5], 0x0001_0003_u32.to_le_bytes());
        assert_eq!(tail[5..13], 42_u64.to_le_bytes());
    }

    #[test]
    fn columns_read_from_the_bytes_equal_the_row() {
        let (row, mut bytes) = (row(), Vec::new());
        row.write_row_binary(&mut bytes);
        let read = RowBytes(&bytes);
        assert_eq!(read.workspace_id(), row.click.workspace_id);
        assert_eq!(read.link_id(), row.click.link_id);
        assert_eq!(read.click_id(), row.click.click_id);
        assert_eq!((read.koff(), read.broker_ts()), (row.koff, row.broker_ts));
    }
}
