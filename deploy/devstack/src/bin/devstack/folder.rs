//! The folder `.dev`: everything the stack keeps.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use devstack::{Kind, postgres, readiness};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::state::{DEMO, SECRETS, STATE, State};

/// How long a supervisor that said goodbye may hold its lock.
const UNLOCK: Duration = Duration::from_secs(60);

/// How long those that only ask whether a stack runs may keep the lock from one that starts.
const GLANCE: Duration = Duration::from_millis(500);

/// The repository and its `.dev`.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    repository: PathBuf,
    path: PathBuf,
}

impl Folder {
    /// The folder of the repository at `root`, created if it is missing.
    pub(crate) fn of(root: &Path) -> anyhow::Result<Self> {
        let repository =
            fs::canonicalize(root).with_context(|| format!("no repository at {}", root.display()))?;
        let path = repository.join(".dev");
        fs::create_dir_all(path.join("logs"))
            .with_context(|| format!("could not create {}", path.display()))?;
        Ok(Self { repository, path })
    }

    pub(crate) fn repository(&self) -> &Path {
        &self.repository
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn engines(&self) -> PathBuf {
        std::env::var_os("DEVSTACK_ENGINES").map_or_else(|| self.path.join("engines"), PathBuf::from)
    }

    pub(crate) fn data(&self, name: &str) -> PathBuf {
        self.path.join("data").join(name)
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.path.join("logs").join(format!("{name}.log"))
    }

    /// Keeps each log of the former run beside the new one, so that none grows for ever.
    pub(crate) fn turn_logs(&self, names: impl IntoIterator<Item = &'static str>) {
        for name in names {
            let log = self.log(name);
            // Not there the first time.
            let _ = fs::rename(&log, log.with_extension("log.1"));
        }
    }

    /// Where Postgres keeps its data: in this folder, or elsewhere when its account cannot enter this one.
    ///
    /// # Errors
    /// When this folder is a copy and the data elsewhere belong to the original.
    pub(crate) fn postgres_folder(&self, state: &mut State) -> anyhow::Result<PathBuf> {
        let inside = self.data(Kind::Postgres.name());
        let former = state.elsewhere();
        if former.is_some() && self.is_copy(state) {
            bail!(
                "this .dev was copied from {}, and its Postgres data are not in it; `./dev reset` starts empty",
                state.owner.as_deref().unwrap_or(Path::new("another clone")).display()
            );
        }
        let place = former.map_or_else(|| postgres::folder_for(&inside), Ok)?;
        let is_elsewhere = place != inside;
        state.postgres_folder = is_elsewhere.then(|| place.clone());
        state.owner = is_elsewhere.then(|| self.path.clone());
        Ok(place)
    }

    /// Whether the folder that `state` was copied from still has the same data. One that moved has left nothing there.
    fn is_copy(&self, state: &State) -> bool {
        let Some(owner) = state.owner.as_ref().filter(|owner| **owner != self.path) else { return false };
        let original = fs::read(owner.join(STATE)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        original.is_some_and(|original: State| original.postgres_folder == state.postgres_folder)
    }

    /// Takes the lock that a running stack holds; `None` when one runs.
    ///
    /// The kernel gives it back however its holder ends, so a stale lock file means nothing.
    pub(crate) fn try_lock(&self) -> anyhow::Result<Option<File>> {
        let until = Instant::now() + GLANCE;
        loop {
            let taken = self.lock(File::try_lock)?;
            if taken.is_some() || Instant::now() >= until {
                return Ok(taken);
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Tells whether a stack runs. That shares the lock with others that ask, for a moment.
    pub(crate) fn is_running(&self) -> anyhow::Result<bool> {
        Ok(self.lock(File::try_lock_shared)?.is_none())
    }

    fn lock(&self, with: fn(&File) -> Result<(), TryLockError>) -> anyhow::Result<Option<File>> {
        let path = self.path.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("could not open {}", path.display()))?;
        match with(&file) {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("could not lock {}", path.display()))
            }
        }
    }

    /// Waits until no stack runs any more.
    pub(crate) async fn await_unlocked(&self) -> anyhow::Result<()> {
        let free = || async { if self.is_running()? { Err("it still runs".into()) } else { Ok(()) } };
        Ok(readiness::until("the end of the stack", UNLOCK, free).await?)
    }

    /// Reads a JSON file of ours; `None` when there is none.
    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<Option<T>> {
        let path = self.path.join(name);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("could not read {}", path.display())),
        };
        let value = serde_json::from_str(&text);
        value.map(Some).with_context(|| format!("{} is damaged; `./dev reset` starts over", path.display()))
    }

    /// Writes a JSON file that only we may read; whole or not at all.
    pub(crate) fn write<T: Serialize>(&self, name: &str, value: &T) -> anyhow::Result<()> {
        let path = self.path.join(name);
        let partial = path.with_extension("partial");
        let write = || -> anyhow::Result<()> {
            // One that a killed process left may have any mode.
            let _ = fs::remove_file(&partial);
            let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&partial)?;
            serde_json::to_writer_pretty(&mut file, value)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            Ok(fs::rename(&partial, &path)?)
        };
        write().with_context(|| format!("could not write {}", path.display()))
    }

    /// Removes data, logs, keys and the demo account, and returns what was removed.
    pub(crate) fn wipe(&self) -> anyhow::Result<Vec<PathBuf>> {
        let state = self.read::<State>(STATE).ok().flatten().filter(|state| !self.is_copy(state));
        let elsewhere = state.and_then(|state| state.elsewhere());
        let ours = ["data", "logs", DEMO, SECRETS, STATE].map(|name| self.path.join(name));
        let mut removed = Vec::new();
        for path in elsewhere.into_iter().chain(ours) {
            let gone = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match gone {
                Ok(()) => removed.push(path),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("could not remove {}", path.display()));
                }
            }
        }
        Ok(removed)
    }
}

/// Reads what a log has gained beyond `position`, and moves `position` there.
///
/// A log that became shorter was replaced by a new one, which is read from its beginning.
pub(crate) fn read_on(path: &Path, position: &mut u64) -> String {
    let mut read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        if file.metadata()?.len() < *position {
            *position = 0;
        }
        file.seek(std::io::SeekFrom::Start(*position))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        // Half a line waits for its other half.
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        *position += bytes.len() as u64;
        Ok(bytes)
    };
    // A log that is not there yet has nothing to say.
    read().map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use devstack::scratch::Scratch;

    use super::*;
    use crate::state::Secrets;

    #[test]
    fn a_written_file_is_read_again_and_closed_to_others() {
        let scratch = Scratch::new("folder").unwrap();
        let folder = Folder::of(scratch.path()).unwrap();
        assert!(folder.read::<Secrets>(SECRETS).unwrap().is_none());
        let secrets = Secrets::draw().unwrap();
        folder.write(SECRETS, &secrets).unwrap();
        assert_eq!(folder.read::<Secrets>(SECRETS).unwrap().unwrap(), secrets);
        let mode = fs::metadata(folder.path.join(SECRETS)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_file_is_named() {
        let scratch = Scratch::new("folder").unwrap();
        let folder = Folder::of(scratch.path()).unwrap();
        fs::write(folder.path.join(STATE), "{").unwrap();
        let error = folder.read::<State>(STATE).unwrap_err();
        assert!(error.to_string().contains(STATE), "{error}");
    }

    #[test]
    fn only_one_holds_the_lock() {
        let scratch = Scratch::new("folder").unwrap();
        let folder = Folder::of(scratch.path()).unwrap();
        let held = folder.try_lock().unwrap();
        assert!(held.is_some());
        assert!(folder.try_lock().unwrap().is_none());
        assert!(folder.is_running().unwrap());
        drop(held);
        assert!(folder.try_lock().unwrap().is_some());
    }

    #[test]
    fn who_asks_whether_a_stack_runs_keeps_none_from_starting() {
        let scratch = Scratch::new("folder").unwrap();
        let folder = Folder::of(scratch.path()).unwrap();
        let asking = folder.lock(File::try_lock_shared).unwrap();
        assert!(asking.is_some() && !folder.is_running().unwrap());
        let asked = std::thread::spawn(move || {
            sleep(GLANCE / 10);
            drop(asking);
        });
        assert!(folder.try_lock().unwrap().is_some());
        asked.join().unwrap();
    }

    #[test]
    fn a_wipe_keeps_the_downloaded_engines() {
        let scratch = Scratch::new("folder").unwrap();
        let folder = Folder::of(scratch.path()).unwrap();
        fs::create_dir_all(folder.data("kafka")).unwrap();
        fs::create_dir_all(folder.path.join("engines")).unwrap();
        assert!(folder.wipe().unwrap().contains(&folder.path.join("data")));
        assert!(folder.path.join("engines").exists());
        assert!(!folder.path.join("data").exists());
    }

    #[test]
    fn a_copy_neither_uses_nor_removes_the_originals_data_and_a_moved_folder_keeps_its_own() {
        let scratch = Scratch::new("folder").unwrap();
        let of = |name: &str| {
            let path = scratch.path().join(name);
            fs::create_dir_all(&path).unwrap();
            Folder::of(&path).unwrap()
        };
        let (original, copy, data) = (of("original"), of("copy"), scratch.path().join("elsewhere"));
        fs::create_dir(&data).unwrap();
        let mut state = State {
            postgres_folder: Some(data.clone()),
            owner: Some(original.path.clone()),
            ..State::default()
        };
        original.write(STATE, &state).unwrap();
        copy.write(STATE, &state).unwrap();
        let error = copy.postgres_folder(&mut state.clone()).unwrap_err().to_string();
        assert!(error.contains("./dev reset"), "{error}");
        copy.wipe().unwrap();
        assert!(data.exists());
        assert_eq!(original.postgres_folder(&mut state).unwrap(), data);

        let place = scratch.path().join("moved");
        fs::rename(&original.repository, &place).unwrap();
        let moved = Folder::of(&place).unwrap();
        let mut state = moved.read::<State>(STATE).unwrap().unwrap();
        assert_eq!(moved.postgres_folder(&mut state).unwrap(), data);
        assert_eq!(state.owner, Some(moved.path.clone()));
        moved.wipe().unwrap();
        assert!(!data.exists());
    }

    #[test]
    fn a_log_is_read_on_by_whole_lines_and_from_the_start_when_replaced() {
        let scratch = Scratch::new("log").unwrap();
        let log = scratch.path().join("log");
        let mut position = 0;
        assert_eq!(read_on(&log, &mut position), "");
        fs::write(&log, "one\ntw").unwrap();
        assert_eq!(read_on(&log, &mut position), "one\n");
        fs::write(&log, "one\ntwo\n").unwrap();
        assert_eq!(read_on(&log, &mut position), "two\n");
        fs::write(&log, "new\n").unwrap();
        assert_eq!(read_on(&log, &mut position), "new\n");
    }
}
