//! Appends clicks to the newest segment, prepares the next one and syncs them.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::spool::Spool;
use crate::spool::record::Encoded;
use crate::spool::segment::Active;
use crate::spool::spare::Spare;
use crate::spool::writer::{AppendError, Writer};

/// The age at which a segment with confirmed records is sealed, so that it can be deleted.
const SEGMENT_AGE: Duration = Duration::from_secs(5);

/// How many numbers are tried for a new segment: another program may have created a file with the same name.
const ATTEMPTS: usize = 3;

impl Spool {
    pub(super) fn append_to(&self, writer: &mut Writer, record: &mut Encoded) -> Result<(), AppendError> {
        if let Some(active) = &writer.active {
            if active.has_room(record) && active.append(record).is_ok() {
                return Ok(());
            }
            // The segment is full, or writing to it failed; a new file may work.
            writer.seal();
        }
        if let Some(error) = &writer.error {
            return Err(error.clone());
        }
        self.start_segment(writer, record).inspect_err(|error| writer.error = Some(error.clone()))
    }

    /// Prepares the next segment unless there is one, so that no click waits for it.
    ///
    /// # Errors
    /// When the spool is full or the disk fails.
    pub fn prepare(&self) -> Result<(), AppendError> {
        let mut writer = self.writer.lock();
        if writer.spare.is_none() {
            let bytes = self.reserve()?;
            let number = writer.take_number();
            // Unlocked, because appending must not wait for the disk.
            drop(writer);
            let spare = self.create(number, bytes)?;
            writer = self.writer.lock();
            if writer.next_number != number + 1 {
                // A click has created a segment meanwhile, and a lower number must not follow it.
                self.size.release(spare.bytes());
                return Ok(());
            }
            writer.spare = Some(spare);
        }
        writer.error = None;
        Ok(())
    }

    /// Syncs all appended records to the disk, and seals the active segment once it is old.
    ///
    /// A segment without confirmed records is not sealed for its age, so that segments are filled while Kafka is down.
    ///
    /// # Errors
    /// When the disk fails. Records that were appended since the last call may not survive a power loss.
    pub fn sync(&self) -> io::Result<()> {
        let mut writer = self.writer.lock();
        if writer
            .active
            .as_ref()
            .is_some_and(|active| active.since.elapsed() >= SEGMENT_AGE && active.has_confirmed_records())
        {
            self.seal_active(&mut writer);
        }
        let mut files = std::mem::take(&mut writer.unsynced);
        if let Some(active) = &mut writer.active {
            let end = active.segment.end();
            if end != active.synced {
                active.synced = end;
                files.push(Arc::clone(&active.file));
            }
        }
        let created = std::mem::take(&mut writer.created);
        // Unlocked, because appending must not wait for the disk.
        drop(writer);

        // Syncs all files even if one fails.
        let mut synced = Ok(());
        for file in files {
            synced = synced.and(file.sync_data());
        }
        if created {
            // A new file survives a power loss only if its directory is synced.
            synced = synced.and(File::open(&self.directory).and_then(|directory| directory.sync_all()));
        }
        synced
    }

    /// Seals the active segment, so that it can be deleted once it is confirmed, and removes the prepared one.
    pub fn seal(&self) {
        let mut writer = self.writer.lock();
        self.seal_active(&mut writer);
        if let Some(spare) = writer.spare.take() {
            self.size.release(spare.bytes());
        }
    }

    /// Truncates the active segment after its last record and seals it, if it has records.
    fn seal_active(&self, writer: &mut Writer) {
        if let Some(active) = writer.active.as_ref().filter(|active| active.has_records()) {
            self.size.release(active.truncate());
            writer.seal();
        }
    }

    /// Starts a segment with a record.
    fn start_segment(&self, writer: &mut Writer, record: &mut Encoded) -> Result<(), AppendError> {
        let mut failed = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..ATTEMPTS {
            let spare = match writer.spare.take() {
                Some(spare) => spare,
                None => {
                    let bytes = self.reserve()?;
                    let number = writer.take_number();
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
                    writer.created = true;
                    self.segments.lock().push_back(Arc::clone(&active.segment));
                    let appended = active.append(record);
                    writer.active = Some(active);
                    return appended.map_err(|error| {
                        // Without records, the segment is deleted once it is sealed.
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

    /// Reserves the size of a segment within the spool's limit.
    fn reserve(&self) -> Result<u64, AppendError> {
        let bytes = self.size.segment();
        if self.size.reserve(bytes) { Ok(bytes) } else { Err(AppendError::Full(self.size.max())) }
    }

    /// Creates the file of a segment. Releases the reserved size on failure.
    fn create(&self, number: u64, bytes: u64) -> io::Result<Spare> {
        Spare::create(&self.directory, number, bytes).inspect_err(|_| self.size.release(bytes))
    }
}
