//! The folder `.dev`, which contains all files of the stack; those of a cluster, except the logs, are in
//! `.dev/cluster`.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use devstack::{Kind, postgres, private, readiness};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::members::Topology;
use crate::state::{DEMO, SECRETS, STATE, State};

/// How long a stack that is stopping may hold its lock.
const UNLOCK_DEADLINE: Duration = Duration::from_secs(60);

/// How long a start waits for the lock, which [`Folder::is_running`] holds for a moment.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// What the lock's file contains after a cluster was started.
const CLUSTER: &str = "cluster";

/// The repository and its `.dev`.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    repository: PathBuf,
    path: PathBuf,
    topology: Topology,
}

impl Folder {
    /// Opens the `.dev` of the repository at `root`, for the stack that was started last; creates it when it is
    /// missing.
    pub(crate) fn open(root: &Path) -> anyhow::Result<Self> {
        let repository =
            fs::canonicalize(root).with_context(|| format!("no repository at {}", root.display()))?;
        let path = repository.join(".dev");
        // Only the logs: Postgres's account must be able to enter the others.
        private::create_folder(&path.join("logs"))?;
        let last = fs::read_to_string(path.join("lock")).unwrap_or_default();
        let topology = if last == CLUSTER { Topology::Cluster } else { Topology::Single };
        Ok(Self { repository, path, topology })
    }

    /// Returns the same `.dev` for another stack.
    pub(crate) fn with(&self, topology: Topology) -> Self {
        Self { topology, ..self.clone() }
    }

    /// Which stack's data this is for.
    pub(crate) fn topology(&self) -> Topology {
        self.topology
    }

    /// Returns the folder of what the two stacks do not share.
    pub(crate) fn home(&self) -> PathBuf {
        match self.topology {
            Topology::Single => self.path.clone(),
            Topology::Cluster => self.path.join("cluster"),
        }
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
        self.home().join("data").join(name)
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.path.join("logs").join(format!("{name}.log"))
    }

    /// Renames the logs of the previous run.
    pub(crate) fn rotate_logs(&self, names: impl IntoIterator<Item = impl AsRef<str>>) {
        for name in names {
            let log = self.log(name.as_ref());
            // Fails the first time.
            let _ = fs::rename(&log, log.with_extension("log.1"));
        }
    }

    /// Returns Postgres's data folder: in this folder, or outside when its account cannot enter this one.
    ///
    /// # Errors
    /// When this folder is a copy and the data outside belong to the original.
    pub(crate) fn postgres_folder(&self, state: &mut State) -> anyhow::Result<PathBuf> {
        let inside = self.data(Kind::Postgres.name());
        let outside = state.outside_folder();
        if outside.is_some() && self.is_copy(state) {
            bail!(
                "this .dev was copied from {}, and its Postgres data are not in it; `./dev reset` starts empty",
                state.owner.as_deref().unwrap_or(Path::new("another clone")).display()
            );
        }
        let folder = outside.map_or_else(|| postgres::folder_for(&inside), Ok)?;
        let is_outside = folder != inside;
        state.postgres_folder = is_outside.then(|| folder.clone());
        state.owner = is_outside.then(|| self.home());
        Ok(folder)
    }

    /// Returns whether `state` was copied from another `.dev`, which still owns the data.
    fn is_copy(&self, state: &State) -> bool {
        let Some(owner) = state.owner.as_ref().filter(|owner| **owner != self.home()) else { return false };
        let original = fs::read(owner.join(STATE)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        original.is_some_and(|original: State| original.postgres_folder == state.postgres_folder)
    }

    /// Takes the lock of a running stack, and notes which stack it is; returns `None` when another one runs.
    ///
    /// The kernel releases the lock however the process ends; the file itself stays.
    pub(crate) fn try_lock(&self) -> anyhow::Result<Option<File>> {
        let deadline = Instant::now() + LOCK_WAIT;
        loop {
            let taken = self.lock(File::try_lock)?;
            if let Some(mut file) = taken {
                file.set_len(0)?;
                file.write_all(if self.topology == Topology::Cluster { CLUSTER.as_bytes() } else { b"" })?;
                return Ok(Some(file));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Returns an error while a stack of the other kind runs.
    pub(crate) fn ensure_none_other_runs(&self) -> anyhow::Result<()> {
        let running = self.is_running()?.then(|| Self::open(&self.repository)).transpose()?;
        match running.map(|running| running.topology).filter(|running| *running != self.topology) {
            Some(Topology::Cluster) => bail!("a cluster is running; stop it first with `./dev down`"),
            Some(Topology::Single) => {
                bail!("a stack that is not a cluster is running; stop it first with `./dev down`")
            }
            None => Ok(()),
        }
    }

    /// Returns whether a stack runs. Takes a shared lock for a moment.
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

    /// Waits until no stack runs.
    pub(crate) async fn await_unlocked(&self) -> anyhow::Result<()> {
        let unlocked =
            || async { if self.is_running()? { Err("it is still running".into()) } else { Ok(()) } };
        Ok(readiness::until("the end of the stack", UNLOCK_DEADLINE, unlocked).await?)
    }

    /// Reads a JSON file; returns `None` when there is none.
    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<Option<T>> {
        let path = self.home().join(name);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("could not read {}", path.display())),
        };
        let value = serde_json::from_str(&text);
        value.map(Some).with_context(|| format!("{} is damaged; `./dev reset` starts over", path.display()))
    }

    /// Writes a JSON file atomically, readable only by its owner.
    pub(crate) fn write<T: Serialize>(&self, name: &str, value: &T) -> anyhow::Result<()> {
        let path = self.home().join(name);
        let partial = path.with_extension("partial");
        let write = || -> anyhow::Result<()> {
            fs::create_dir_all(self.home())?;
            // A killed process may have left one with another mode.
            let _ = fs::remove_file(&partial);
            let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&partial)?;
            serde_json::to_writer_pretty(&mut file, value)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            Ok(fs::rename(&partial, &path)?)
        };
        write().with_context(|| format!("could not write {}", path.display()))
    }

    /// Removes data, logs, keys and demo accounts of both stacks, and returns the removed paths.
    pub(crate) fn wipe(&self) -> anyhow::Result<Vec<PathBuf>> {
        let outside = |folder: Self| {
            let state = folder.read::<State>(STATE).ok().flatten();
            state.filter(|state| !folder.is_copy(state)).and_then(|state| state.outside_folder())
        };
        let stacks = [Topology::Single, Topology::Cluster];
        let outside = stacks.into_iter().filter_map(|topology| outside(self.with(topology)));
        let inside = ["data", "logs", DEMO, SECRETS, STATE, CLUSTER].map(|name| self.path.join(name));
        let mut removed = Vec::new();
        for path in outside.chain(inside) {
            let gone = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match gone {
                Ok(()) => removed.push(path),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("could not remove {}", path.display()));
                }
            }
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use devstack::scratch::Scratch;

    use super::*;
    use crate::state::Secrets;

    #[test]
    fn a_written_file_can_be_read_only_by_its_owner() {
        let scratch = Scratch::new("folder").unwrap();
        let folder = Folder::open(scratch.path()).unwrap();
        assert!(folder.read::<Secrets>(SECRETS).unwrap().is_none());
        let secrets = Secrets::generate().unwrap();
        folder.write(SECRETS, &secrets).unwrap();
        assert_eq!(folder.read::<Secrets>(SECRETS).unwrap().unwrap(), secrets);
        let mode = fs::metadata(folder.path.join(SECRETS)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mode = fs::metadata(folder.path.join("logs")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "the log of the stack has a key");
    }

    #[test]
    fn the_error_of_a_damaged_file_has_its_name() {
        let scratch = Scratch::new("folder").unwrap();
        let folder = Folder::open(scratch.path()).unwrap();
        fs::write(folder.path.join(STATE), "{").unwrap();
        let error = folder.read::<State>(STATE).unwrap_err();
        assert!(error.to_string().contains(STATE), "{error}");
    }

    #[test]
    fn only_one_stack_holds_the_lock() {
        let scratch = Scratch::new("folder").unwrap();
        let folder = Folder::open(scratch.path()).unwrap();
        let held = folder.try_lock().unwrap();
        assert!(held.is_some());
        assert!(folder.try_lock().unwrap().is_none());
        assert!(folder.is_running().unwrap());
        drop(held);
        assert!(folder.try_lock().unwrap().is_some());
    }

    #[test]
    fn a_status_check_does_not_prevent_a_start() {
        let scratch = Scratch::new("folder").unwrap();
        let folder = Folder::open(scratch.path()).unwrap();
        let shared = folder.lock(File::try_lock_shared).unwrap();
        assert!(shared.is_some() && !folder.is_running().unwrap());
        let checker = std::thread::spawn(move || {
            sleep(LOCK_WAIT / 10);
            drop(shared);
        });
        assert!(folder.try_lock().unwrap().is_some());
        checker.join().unwrap();
    }

    #[test]
    fn a_wipe_keeps_the_downloaded_engines() {
        let scratch = Scratch::new("folder").unwrap();
        let folder = Folder::open(scratch.path()).unwrap();
        fs::create_dir_all(folder.data("kafka")).unwrap();
        fs::create_dir_all(folder.path.join("engines")).unwrap();
        assert!(folder.wipe().unwrap().contains(&folder.path.join("data")));
        assert!(folder.path.join("engines").exists());
        assert!(!folder.path.join("data").exists());
    }

    #[test]
    fn a_cluster_has_its_own_files_and_a_wipe_removes_those_of_both() {
        let scratch = Scratch::new("folder").unwrap();
        let single = Folder::open(scratch.path()).unwrap();
        let cluster = single.with(Topology::Cluster);
        for folder in [&single, &cluster] {
            assert!(folder.read::<State>(STATE).unwrap().is_none());
            folder.write(STATE, &State::default()).unwrap();
        }
        assert_eq!(Folder::open(scratch.path()).unwrap().topology(), Topology::Single);
        drop(cluster.try_lock().unwrap());
        assert_eq!(Folder::open(scratch.path()).unwrap().topology(), Topology::Cluster);
        drop(single.try_lock().unwrap());
        assert_eq!(Folder::open(scratch.path()).unwrap().topology(), Topology::Single);
        single.wipe().unwrap();
        assert!(single.read::<State>(STATE).unwrap().is_none() && !cluster.home().exists());
    }

    #[test]
    fn only_a_moved_folder_keeps_data_outside_of_it() {
        let scratch = Scratch::new("folder").unwrap();
        let open = |name: &str| {
            let path = scratch.path().join(name);
            fs::create_dir_all(&path).unwrap();
            Folder::open(&path).unwrap()
        };
        let (original, copy, data) = (open("original"), open("copy"), scratch.path().join("outside"));
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

        let path = scratch.path().join("moved");
        fs::rename(&original.repository, &path).unwrap();
        let moved = Folder::open(&path).unwrap();
        let mut state = moved.read::<State>(STATE).unwrap().unwrap();
        assert_eq!(moved.postgres_folder(&mut state).unwrap(), data);
        assert_eq!(state.owner, Some(moved.path.clone()));
        moved.wipe().unwrap();
        assert!(!data.exists());
    }
}
