//! Chunks of records of one partition, in one buffer, which the polling thread sends to a lane.

use chrono::{DateTime, Utc};
use rdkafka::message::BorrowedMessage;

use crate::pipeline::decode::Record;

/// A chunk with this many bytes of keys and values is full.
const BYTES: usize = 64 << 10;

/// A chunk with this many records is full.
const RECORDS: usize = 512;

/// The place of a record in a chunk's bytes. The value follows the key.
#[derive(Debug)]
struct Place {
    offset: u64,
    broker_ts: Option<DateTime<Utc>>,
    start: usize,
    key_end: usize,
    end: usize,
    has_key: bool,
    has_payload: bool,
}

/// Records of one partition in offset order.
#[derive(Debug)]
pub struct Chunk {
    partition: i32,
    bytes: Vec<u8>,
    places: Vec<Place>,
}

impl Chunk {
    /// Creates an empty chunk for a partition.
    pub fn new(partition: i32) -> Self {
        Self { partition, bytes: Vec::new(), places: Vec::new() }
    }

    /// The partition.
    pub fn partition(&self) -> i32 {
        self.partition
    }

    /// Returns whether it has no records.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns whether no record may be added any more.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= BYTES || self.places.len() >= RECORDS
    }

    /// Copies a message into the chunk.
    pub fn push(&mut self, message: &BorrowedMessage<'_>) {
        self.add(Record::of(message));
    }

    fn add(&mut self, record: Record<'_>) {
        let Record { offset, broker_ts, key, payload } = record;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key.unwrap_or_default());
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(payload.unwrap_or_default());
        let end = self.bytes.len();
        let (has_key, has_payload) = (key.is_some(), payload.is_some());
        self.places.push(Place { offset, broker_ts, start, key_end, end, has_key, has_payload });
    }

    /// Returns the approximate memory of the chunk in bytes.
    pub fn memory(&self) -> usize {
        self.bytes.capacity() + self.places.capacity() * size_of::<Place>()
    }

    /// Returns the records.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.places.iter().map(|place| Record {
            offset: place.offset,
            broker_ts: place.broker_ts,
            key: place.has_key.then(|| &self.bytes[place.start..place.key_end]),
            payload: place.has_payload.then(|| &self.bytes[place.key_end..place.end]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_returns_its_records_unchanged() {
        let record = |offset, key, payload| Record { offset, broker_ts: None, key, payload };
        let records = [
            record(7, Some(&b"key"[..]), Some(&b"value"[..])),
            record(8, None, Some(&b"no key"[..])),
            record(9, Some(&b"tombstone"[..]), None),
            record(11, Some(&b""[..]), Some(&b""[..])),
            record(12, None, None),
        ];
        let mut chunk = Chunk::new(3);
        records.into_iter().for_each(|record| chunk.add(record));
        assert_eq!(chunk.records().collect::<Vec<_>>(), records);
    }

    #[test]
    fn a_chunk_is_limited_by_bytes_and_records() {
        let record =
            |payload: &'static [u8]| Record { offset: 0, broker_ts: None, key: None, payload: Some(payload) };
        let mut by_bytes = Chunk::new(3);
        assert!(by_bytes.is_empty() && !by_bytes.is_full());
        by_bytes.add(record(&[0; BYTES]));
        assert!(by_bytes.is_full());
        let mut by_records = Chunk::new(3);
        for _ in 0..RECORDS {
            assert!(!by_records.is_full());
            by_records.add(record(b"x"));
        }
        assert!(by_records.is_full() && !by_records.is_empty());
        assert!(by_records.memory() >= RECORDS * size_of::<Place>());
    }
}
