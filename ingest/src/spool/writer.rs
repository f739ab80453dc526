//! Appending to the newest segment, and having the next one ready.

use std::{fs::File, io, sync::Arc, time::Duration};

use super::{Spool, record::Encoded, segment::Active, spare::Spare};

/// How long a segment is appended to at most while Kafka takes what is in it, so that the disk is given back.
const SEGMENT_AGE: Duration = Duration::from_secs(5);

/// How many names are tried for a new segment: others may have put something in the way of one.
const NAMES: usize = 3;

/// Why a click is not in the spool.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refused {
    /// The spool has its full size. It takes clicks again when Kafka has confirmed some.
    #[error("the spool is full: it may take {0} bytes of the disk (HOPLINE_SPOOL_MAX_BYTES)")]
    Full(u64),
    /// The disk takes no more, or fails.
    #[error("the disk takes no clicks: {0}")]
    Disk(#[source] Arc<io::Error>),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Disk(error.into())
    }
}

/// What appending goes on from.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) active: Option<Active>,
    /// The file of the next segment, if it is made already.
    pub(super) spare: Option<Spare>,
    next_number: u64,
    /// Sealed since the last sync.
    unsynced: Vec<Arc<File>>,
    /// Whether a file got its name since the last sync.
    named: bool,
    /// Why there was no new segment when one was needed.
    refused: Option<Refused>,
}

impl Writer {
    pub(super) fn new(next_number: u64) -> Self {
        Self { active: None, spare: None, next_number, unsynced: Vec::new(), named: false, refused: None }
    }

    fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Ends the current segment.
    fn seal(&mut self) {
        if let Some(active) = self.active.take() {
            active.segment.seal();
            self.unsynced.push(active.file);
        }
    }
}

impl Spool {
    pub(super) fn append_to(&self, writer: &mut Writer, record: &mut Encoded) -> Result<(), Refused> {
        if let Some(active) = &writer.active {
            if active.has_room(record) && active.append(record).is_ok() {
                return Ok(());
            }
            // Full, or the disk fails here; it may not fail elsewhere.
            writer.seal();
        }
        if let Some(refused) = &writer.refused {
            return Err(refused.clone());
        }
        self.begin(writer, record).inspect_err(|refused| writer.refused = Some(refused.clone()))
    }

    /// Makes sure that the next segment is ready, so that no click has to wait for it.
    ///
    /// # Errors
    /// When the spool is full or the disk refuses the file.
    pub fn prepare(&self) -> Result<(), Refused> {
        let mut writer = self.writer();
        if writer.spare.is_none() {
            let bytes = self.reserve()?;
            let number = writer.number();
            // Appending must not wait for the disk.
            drop(writer);
            let spare = self.create(number, bytes)?;
            writer = self.writer();
            if writer.next_number != number + 1 {
                // A click needed a segment meanwhile and has made one, and an older number may not follow it.
                self.size.release(spare.bytes());
                return Ok(());
            }
            writer.spare = Some(spare);
        }
        writer.refused = None;
        Ok(())
    }

    /// Brings everything appended so far onto the disk, and ends a segment that has become old.
    ///
    /// A segment of which nothing is confirmed yet does not become old: while Kafka is down, each takes as many
    /// clicks as it can.
    ///
    /// # Errors
    /// When the disk fails: what was appended since the last call may not survive a power loss then.
    pub fn sync(&self) -> io::Result<()> {
        let mut writer = self.writer();
        if writer
            .active
            .as_ref()
            .is_some_and(|active| active.since.elapsed() >= SEGMENT_AGE && active.is_confirmed_from())
        {
            self.cut(&mut writer);
        }
        let mut files = std::mem::take(&mut writer.unsynced);
        if let Some(active) = &mut writer.active {
            let end = active.segment.end();
            if end != active.synced {
                active.synced = end;
                files.push(Arc::clone(&active.file));
            }
        }
        let named = std::mem::take(&mut writer.named);
        // Appending must not wait for the disk.
        drop(writer);

        // One that fails is no reason to leave out the others.
        let mut synced = Ok(());
        for file in files {
            synced = synced.and(file.sync_data());
        }
        if named {
            // A file survives only if its name does.
            synced = synced.and(File::open(&self.directory).and_then(|directory| directory.sync_all()));
        }
        synced
    }

    /// Ends the current segment, so that it can be deleted once it is confirmed, and gives the prepared one back.
    pub fn seal(&self) {
        let mut writer = self.writer();
        self.cut(&mut writer);
        if let Some(spare) = writer.spare.take() {
            self.size.release(spare.bytes());
        }
    }

    /// Ends the current segment, if it has records, where these end.
    fn cut(&self, writer: &mut Writer) {
        if let Some(active) = writer.active.as_ref().filter(|active| active.is_used()) {
            self.size.release(active.cut());
            writer.seal();
        }
    }

    /// Begins a segment with a record.
    fn begin(&self, writer: &mut Writer, record: &mut Encoded) -> Result<(), Refused> {
        let mut failed = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..NAMES {
            let spare = match writer.spare.take() {
                Some(spare) => spare,
                None => {
                    let bytes = self.reserve()?;
                    let number = writer.number();
                    match self.create(number, bytes) {
                        Ok(spare) => spare,
                        Err(error) => {
                            failed = error;
                            continue;
                        }
                    }
                }
            };
            let bytes = spare.bytes();
            match Active::begin(spare, &self.directory) {
                Ok(active) => {
                    writer.named = true;
                    self.list().push_back(Arc::clone(&active.segment));
                    let appended = active.append(record);
                    writer.active = Some(active);
                    return appended.map_err(|error| {
                        // With no record it is over as soon as it is sealed.
                        writer.seal();
                        error.into()
                    });
                }
                Err(error) => {
                    self.size.release(bytes);
                    failed = error;
                }
            }
        }
        Err(failed.into())
    }

    /// Takes the size of a segment off what the spool may still take of the disk.
    fn reserve(&self) -> Result<u64, Refused> {
        let bytes = self.size.segment();
        if self.size.reserve(bytes) { Ok(bytes) } else { Err(Refused::Full(self.size.max())) }
    }

    /// Makes the file of a segment of a size that was reserved, and gives that back if it cannot.
    fn create(&self, number: u64, bytes: u64) -> io::Result<Spare> {
        Spare::create(&self.directory, number, bytes).inspect_err(|_| self.size.release(bytes))
    }
}
