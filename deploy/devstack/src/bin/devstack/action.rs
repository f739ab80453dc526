//! What a user may do with a server of the stack.

use anyhow::{anyhow, bail};
use devstack::Server;
use devstack::process::Stopped;
use serde::{Deserialize, Serialize};

/// Something to do with a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    Start,
    /// Stop in order, until it is started again.
    Stop,
    Restart,
    /// End at once (SIGKILL), until it is started again.
    Kill,
    /// Freeze with all child processes (SIGSTOP).
    Pause,
    /// Continue after a pause (SIGCONT).
    Resume,
}

impl Action {
    /// Does it.
    pub(crate) async fn apply(self, server: &Server) -> anyhow::Result<()> {
        match self {
            Self::Start => server.start().await.map_err(|error| not_ready(server, error)),
            Self::Stop => match server.stop().await {
                Some(Stopped::Killed) => {
                    bail!("{} did not stop within its deadline and was killed", server.name())
                }
                Some(Stopped::Ended(_)) | None => Ok(()),
            },
            Self::Restart => server.restart().await.map_err(|error| not_ready(server, error)),
            Self::Kill => {
                server.kill().await;
                Ok(())
            }
            Self::Pause => Ok(server.pause().await?),
            Self::Resume => Ok(server.resume().await?),
        }
    }

    /// Returns what to print once it is done.
    pub(crate) fn done(self) -> &'static str {
        match self {
            Self::Start | Self::Restart => "is ready",
            Self::Stop => "has stopped",
            Self::Kill => "was killed",
            Self::Pause => "is paused",
            Self::Resume => "continues",
        }
    }
}

/// Adds to the error whether the server keeps running.
fn not_ready(server: &Server, error: devstack::Error) -> anyhow::Error {
    let error = anyhow::Error::from(error);
    match server.pid() {
        Some(_) => anyhow!("{error:#}; it keeps running and may become ready later"),
        None => error,
    }
}
