//! A click on its way to listeners, and its place in the log.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use uuid::Uuid;

use crate::resources::clicks::click::Line;

/// A click's place in the topic, and the process that assigned it.
///
/// As text it is the event's id, which a browser sends as `Last-Event-ID` when it reconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The broker's time, in milliseconds since 1970.
    pub(super) millis: i64,
    pub(super) partition: i32,
    pub(super) offset: i64,
    /// Random for each process, since each has its own order between partitions.
    pub(super) process: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}-{:08x}", self.millis, self.partition, self.offset, self.process)
    }
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('-');
        let mut part = || parts.next().ok_or(());
        let place = Self {
            millis: part()?.parse().map_err(drop)?,
            partition: part()?.parse().map_err(drop)?,
            offset: part()?.parse().map_err(drop)?,
            process: u32::from_str_radix(part()?, 16).map_err(drop)?,
        };
        parts.next().is_none().then_some(place).ok_or(())
    }
}

/// A click as it is sent. Clones share its bytes.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) place: Place,
    pub(super) link: Uuid,
    bytes: Bytes,
    of_viewers: Option<Bytes>,
}

impl Event {
    /// Formats a click.
    pub(super) fn new(place: Place, link: Uuid, Line { json, of_viewers }: &Line) -> Self {
        // Boxed, because a text that grew has more room than bytes.
        let bytes = |json: &str| {
            Bytes::from(
                format!("id: {place}\nevent: click\ndata: {json}\n\n").into_bytes().into_boxed_slice(),
            )
        };
        Self { place, link, bytes: bytes(json), of_viewers: of_viewers.as_deref().map(bytes) }
    }

    /// Returns how many bytes the event takes.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() + self.of_viewers.as_ref().map_or(0, Bytes::len)
    }

    /// Returns the event's bytes, with id and final empty line.
    pub(super) fn bytes(&self, is_viewer: bool) -> Bytes {
        self.of_viewers.as_ref().filter(|_| is_viewer).unwrap_or(&self.bytes).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_round_trips() {
        let place = Place { millis: 1_800_000_000_123, partition: 3, offset: 42, process: 0xbeef };
        assert_eq!(place.to_string(), "1800000000123-3-42-0000beef");
        assert_eq!(place.to_string().parse(), Ok(place));
        for bad in ["", "1", "1-2-3", "1-2-3-4-5", "a-2-3-4", "1-2-3-x", "1--2-3-4", " 1-2-3-4"] {
            assert_eq!(bad.parse::<Place>(), Err(()), "{bad}");
        }
    }
}
