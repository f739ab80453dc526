//! The format of a snapshot.
//!
//! Numbers are little endian. A text is its length in four bytes, then its UTF-8.
//!
//! | part | content |
//! |---|---|
//! | `hoplinks` | magic |
//! | 4 bytes | version of this format |
//! | header | time of writing (milliseconds since 1970), name of the topic, id of the cluster or an empty text |
//! | entries | one byte for the kind (live link, deleted link or token), then its fields |
//! | 1 byte | 0: the end of the entries |
//! | 4 bytes | CRC-32 of all bytes before |

use std::io::{self, Read, Write};
use std::time::Instant;

use chrono::{DateTime, Utc};
use schemas::id::{EdgeTokenId, LinkId, WorkspaceId};
use schemas::message::{ForwardQuery, Link};
use uuid::Uuid;

use crate::links::table::Table;
use crate::links::target::Target;
use crate::links::tokens::Token;

const MAGIC: &[u8; 8] = b"hoplinks";
const VERSION: u32 = 1;

/// The maximum length of a text. Bounds the allocation for a damaged length.
const MAX_TEXT: u32 = 1 << 20;

/// An absent time.
const NEVER: i64 = i64::MIN;

const END: u8 = 0;
const LIVE: u8 = 1;
const DELETED: u8 = 2;
const TOKEN: u8 = 3;

const ACTIVE: u8 = 1;
const APPEND_CLICK_ID: u8 = 2;
const FORWARD_QUERY: u8 = 4;
const BLOCKED: u8 = 8;

/// Where the links of a snapshot come from, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The topic's full name.
    pub topic: String,
    /// The cluster's id, if it was known.
    pub cluster_id: Option<String>,
    /// When the snapshot was written.
    pub written_at: DateTime<Utc>,
}

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is not a snapshot.
    #[error("it is not a link snapshot")]
    NotASnapshot,
    /// Another build wrote it.
    #[error("it has format {0}, this build reads format {VERSION}")]
    Format(u32),
    /// The snapshot is of another deployment.
    #[error("it is of topic {0}")]
    OtherTopic(String),
    /// The bytes have changed since they were written, or some are missing.
    #[error("it is damaged")]
    Damaged,
}

/// Writes the whole table. Fails with `TimedOut` at `until`.
pub(super) fn write(to: impl Write, table: &Table, origin: &Origin, until: Instant) -> io::Result<()> {
    let mut to = Summed::new(to);
    to.write_all(MAGIC)?;
    to.write_all(&VERSION.to_le_bytes())?;
    to.write_all(&origin.written_at.timestamp_millis().to_le_bytes())?;
    text(&mut to, &origin.topic)?;
    text(&mut to, origin.cluster_id.as_deref().unwrap_or_default())?;
    for targets in table.live() {
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        for target in targets {
            live(&mut to, &target)?;
        }
    }
    for (id, revision) in table.deleted() {
        to.write_all(&[DELETED])?;
        to.write_all(id.uuid().as_bytes())?;
        to.write_all(&revision.to_le_bytes())?;
    }
    for (id, token) in table.tokens().iter() {
        to.write_all(&[TOKEN])?;
        to.write_all(id.uuid().as_bytes())?;
        to.write_all(&token.digest)?;
        to.write_all(&[u8::from(token.revoked), u8::from(token.workspace_id.is_some())])?;
        to.write_all(token.workspace_id.map_or(Uuid::nil(), WorkspaceId::uuid).as_bytes())?;
    }
    to.write_all(&[END])?;
    let sum = to.sum.clone().finalize();
    to.inner.write_all(&sum.to_le_bytes())
}

fn live(to: &mut impl Write, target: &Target) -> io::Result<()> {
    let flags = [
        (target.is_active, ACTIVE),
        (target.append_click_id, APPEND_CLICK_ID),
        (target.forward_query == ForwardQuery::Append, FORWARD_QUERY),
        (target.is_blocked, BLOCKED),
    ];
    let flags = flags.iter().filter(|(set, _)| *set).fold(0, |flags, (_, flag)| flags | flag);
    to.write_all(&[LIVE])?;
    to.write_all(target.link_id.uuid().as_bytes())?;
    to.write_all(target.workspace_id.uuid().as_bytes())?;
    to.write_all(&target.revision.to_le_bytes())?;
    to.write_all(&target.expires_at.map_or(NEVER, |at| at.timestamp_millis()).to_le_bytes())?;
    to.write_all(&target.redirect_status.to_le_bytes())?;
    to.write_all(&[flags])?;
    text(to, target.slug())?;
    text(to, target.destination())
}

fn text(to: &mut impl Write, text: &str) -> io::Result<()> {
    let length = u32::try_from(text.len()).ok().filter(|length| *length <= MAX_TEXT);
    to.write_all(&length.ok_or(io::ErrorKind::InvalidData)?.to_le_bytes())?;
    to.write_all(text.as_bytes())
}

/// Reads a snapshot of a topic.
pub(super) fn read(from: impl Read, topic: &str) -> Result<(Table, Origin), SnapshotError> {
    let mut from = Summed::new(from);
    match from.bytes::<8>() {
        Ok(magic) if magic == *MAGIC => {}
        Ok(_) => return Err(SnapshotError::NotASnapshot),
        Err(error) => return Err(SnapshotError::of(error, SnapshotError::NotASnapshot)),
    }
    // A file that is too short is damaged.
    from.table(topic).map_err(|error| match error {
        SnapshotError::Io(error) => SnapshotError::of(error, SnapshotError::Damaged),
        other => other,
    })
}

impl SnapshotError {
    fn of(error: io::Error, too_short: Self) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { too_short } else { Self::Io(error) }
    }
}

/// Computes the CRC-32 of the bytes that are read or written.
struct Summed<T> {
    inner: T,
    sum: crc32fast::Hasher,
}

impl<T> Summed<T> {
    fn new(inner: T) -> Self {
        Self { inner, sum: crc32fast::Hasher::new() }
    }
}

impl<T: Write> Write for Summed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Summed<T> {
    fn table(&mut self, topic: &str) -> Result<(Table, Origin), SnapshotError> {
        let version = u32::from_le_bytes(self.bytes()?);
        if version != VERSION {
            return Err(SnapshotError::Format(version));
        }
        let written_at = time(self.bytes()?)?.ok_or(SnapshotError::Damaged)?;
        let origin = Origin {
            written_at,
            topic: self.text()?,
            cluster_id: Some(self.text()?).filter(|id| !id.is_empty()),
        };
        let table = Table::default();
        loop {
            match self.bytes()? {
                [END] => break,
                [LIVE] => drop(table.put(self.live()?).map_err(|_| SnapshotError::Damaged)?),
                [DELETED] => {
                    let id = LinkId::from_uuid(self.uuid()?);
                    table.delete(id, u64::from_le_bytes(self.bytes()?));
                }
                [TOKEN] => {
                    let id = EdgeTokenId::from_uuid(self.uuid()?);
                    let digest = self.bytes()?;
                    let [revoked, has_workspace] = self.bytes()?;
                    let workspace = WorkspaceId::from_uuid(self.uuid()?);
                    let workspace_id = (has_workspace != 0).then_some(workspace);
                    table.put_token(id, Token { digest, workspace_id, revoked: revoked != 0 });
                }
                _ => return Err(SnapshotError::Damaged),
            }
        }
        let sum = self.sum.clone().finalize();
        if u32::from_le_bytes(self.bytes()?) != sum {
            return Err(SnapshotError::Damaged);
        }
        // Last, so that a damaged name is reported as damage.
        if origin.topic != topic {
            return Err(SnapshotError::OtherTopic(origin.topic));
        }
        Ok((table, origin))
    }

    fn live(&mut self) -> Result<Link, SnapshotError> {
        let id = LinkId::from_uuid(self.uuid()?);
        let workspace_id = WorkspaceId::from_uuid(self.uuid()?);
        let revision = u64::from_le_bytes(self.bytes()?);
        let expires_at = time(self.bytes()?)?;
        let redirect_status = u16::from_le_bytes(self.bytes()?);
        let [flags] = self.bytes()?;
        Ok(Link {
            version: Default::default(),
            id,
            revision,
            workspace_id,
            slug: self.text()?,
            destination: self.text()?,
            is_active: flags & ACTIVE != 0,
            redirect_status,
            forward_query: if flags & FORWARD_QUERY != 0 { ForwardQuery::Append } else { ForwardQuery::Off },
            append_click_id: flags & APPEND_CLICK_ID != 0,
            is_blocked: flags & BLOCKED != 0,
            expires_at,
        })
    }

    fn text(&mut self) -> Result<String, SnapshotError> {
        let length = u32::from_le_bytes(self.bytes()?);
        if length > MAX_TEXT {
            return Err(SnapshotError::Damaged);
        }
        let mut text = vec![0; length as usize];
        self.fill(&mut text)?;
        String::from_utf8(text).map_err(|_| SnapshotError::Damaged)
    }

    fn uuid(&mut self) -> io::Result<Uuid> {
        self.bytes().map(Uuid::from_bytes)
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(bytes)?;
        self.sum.update(bytes);
        Ok(())
    }
}

fn time(millis: [u8; 8]) -> Result<Option<DateTime<Utc>>, SnapshotError> {
    match i64::from_le_bytes(millis) {
        NEVER => Ok(None),
        millis => DateTime::from_timestamp_millis(millis).map(Some).ok_or(SnapshotError::Damaged),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::links::{TokenStatus, link};

    const TOPIC: &str = "dev.links";

    fn origin() -> Origin {
        Origin {
            topic: TOPIC.to_owned(),
            cluster_id: Some("cluster".to_owned()),
            written_at: DateTime::from_timestamp_millis(1_790_000_000_123).unwrap(),
        }
    }

    fn table() -> Table {
        let table = Table::default();
        table.put(link(1, 3, "s", "https://a.example/?x=1#e")).unwrap();
        table
            .put(Link {
                is_active: false,
                append_click_id: false,
                forward_query: ForwardQuery::Off,
                redirect_status: 308,
                expires_at: DateTime::from_timestamp_millis(1_800_000_000_000),
                ..link(2, 1, "früh", "https://b.example/")
            })
            .unwrap();
        table.delete(LinkId::from_uuid(Uuid::from_u128(3)), 7);
        let token = |digest, workspace: Option<u128>, revoked| Token {
            digest,
            workspace_id: workspace.map(|id| WorkspaceId::from_uuid(Uuid::from_u128(id))),
            revoked,
        };
        table.put_token(EdgeTokenId::from_uuid(Uuid::from_u128(1)), token([1; 32], Some(9), false));
        table.put_token(EdgeTokenId::from_uuid(Uuid::from_u128(2)), token([2; 32], None, true));
        table
    }

    fn bytes() -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, &table(), &origin(), Instant::now() + Duration::from_secs(60)).unwrap();
        bytes
    }

    #[test]
    fn a_snapshot_round_trips() {
        let (read, read_origin) = read(&bytes()[..], TOPIC).unwrap();
        assert_eq!(read_origin, origin());
        let written = table();
        for slug in ["s", "früh", "t"] {
            assert_eq!(read.find(slug), written.find(slug));
        }
        for digest in [[1; 32], [2; 32], [3; 32]] {
            assert_eq!(read.token(&digest), written.token(&digest));
        }
        assert_eq!(read.token(&[2; 32]), TokenStatus::Revoked);
        assert_eq!((read.len(), read.known()), (2, 5));
        assert_eq!(read.deleted(), written.deleted());
    }

    #[test]
    fn another_kind_of_file_format_or_topic_is_rejected() {
        assert!(matches!(read(&b"something else"[..], TOPIC), Err(SnapshotError::NotASnapshot)));
        assert!(matches!(read(&b""[..], TOPIC), Err(SnapshotError::NotASnapshot)));
        let mut later = bytes();
        later[8] = 2;
        assert!(matches!(read(&later[..], TOPIC), Err(SnapshotError::Format(2))));
        assert!(
            matches!(read(&bytes()[..], "links"), Err(SnapshotError::OtherTopic(topic)) if topic == TOPIC)
        );
    }

    #[test]
    fn a_truncated_snapshot_is_damaged() {
        let bytes = bytes();
        for end in MAGIC.len()..bytes.len() {
            assert!(matches!(read(&bytes[..end], TOPIC), Err(SnapshotError::Damaged)), "{end}");
        }
    }

    #[test]
    fn writing_fails_at_its_deadline() {
        let written = write(Vec::new(), &table(), &origin(), Instant::now());
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    proptest! {
        #[test]
        fn a_change_of_any_byte_is_detected(index in any::<prop::sample::Index>(), change in 1..=u8::MAX) {
            let mut bytes = bytes();
            let index = index.index(bytes.len());
            bytes[index] ^= change;
            prop_assert!(read(&bytes[..], TOPIC).is_err());
        }
    }
}
