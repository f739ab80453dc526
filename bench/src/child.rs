//! Programs of ours that a run starts beside itself.

use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use devstack::{
    Probe,
    process::{Launch, Memory, Stopped},
    scratch::Scratch,
};

/// The path of a program that was built with this one.
pub(crate) fn beside(name: &str) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program")?.with_file_name(name);
    ensure!(program.exists(), "{} is not there: build it in the same profile", program.display());
    Ok(program)
}

/// A process of this run. Killed on drop.
pub(crate) struct Child {
    process: devstack::Server,
    // Declared after the process: the folder goes when nothing writes there any more.
    _folder: Scratch,
}

impl Child {
    /// Starts a program and waits until the page `ready` of `url` is there.
    pub(crate) async fn start(
        name: &str,
        program: PathBuf,
        arguments: Vec<String>,
        environment: Vec<(&str, String)>,
        (url, ready): (&str, &str),
    ) -> anyhow::Result<Self> {
        let folder = Scratch::new("bench")?;
        let mut launch = Launch::new(&program, folder.path().join("log")).arguments(arguments);
        launch.environment = environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let process = devstack::Server::new(name, url, launch, Probe::Http { url: format!("{url}{ready}") });
        process.start().await?;
        Ok(Self { process, _folder: folder })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> anyhow::Result<u32> {
        self.process.pid().with_context(|| format!("{} ended", self.process.name()))
    }

    /// The most memory that it has had, in bytes.
    pub(crate) fn peak_memory(&self) -> anyhow::Result<u64> {
        Ok(Memory::of(self.id()?)?.peak)
    }

    /// Stops it, and holds that it ended by itself and in order.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let name = self.process.name();
        match self.process.stop().await {
            Some(Stopped::Ended(status)) if status.success() => Ok(()),
            Some(Stopped::Ended(status)) => bail!("{name} ended with {status}"),
            Some(Stopped::Killed) => bail!("{name} did not stop in time"),
            None => bail!("{name} ended before it was stopped"),
        }
    }
}
