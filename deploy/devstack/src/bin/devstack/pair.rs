//! The two servers of Postgres in a cluster: a primary, and a standby that has every change that the primary confirmed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, ensure};
use devstack::{Server, postgres};
use tokio::sync::Mutex;

use crate::action::Action;
use crate::folder::Folder;
use crate::state::{STATE, State};

/// A server and the folder of its data.
pub(crate) struct Node {
    pub(crate) server: Arc<Server>,
    pub(crate) folder: PathBuf,
}

/// A primary and its standby.
///
/// The primary waits for the standby with each commit while the standby runs, and confirms commits alone while it does
/// not, so that one server is enough to write.
pub(crate) struct Pair {
    nodes: [Node; 2],
    /// The index of the primary.
    primary: AtomicUsize,
    /// Held during a change. True when the standby has every change that the primary confirmed.
    is_synchronous: Mutex<bool>,
    /// Where the primary's name is kept.
    folder: Folder,
}

impl Pair {
    /// Takes running servers, of which the first is the primary, and waits until the other one follows it.
    pub(crate) async fn new(primary: Node, standby: Node, folder: Folder) -> anyhow::Result<Self> {
        let pair = Self {
            nodes: [primary, standby],
            primary: AtomicUsize::new(0),
            is_synchronous: Mutex::new(false),
            folder,
        };
        pair.settle(&mut *pair.is_synchronous.lock().await).await?;
        Ok(pair)
    }

    fn primary(&self) -> &Node {
        &self.nodes[self.primary.load(Ordering::SeqCst)]
    }

    fn standby(&self) -> &Node {
        &self.nodes[1 - self.primary.load(Ordering::SeqCst)]
    }

    /// Returns `primary` or `standby`; `None` for another server.
    pub(crate) fn role(&self, name: &str) -> Option<&'static str> {
        let is = |node: &Node| node.server.name() == name;
        match () {
            () if is(self.primary()) => Some("primary"),
            () if is(self.standby()) => Some("standby"),
            () => None,
        }
    }

    /// Applies an action to one of the two.
    pub(crate) async fn apply(&self, action: Action, server: &Server) -> anyhow::Result<()> {
        let mut is_synchronous = self.is_synchronous.lock().await;
        match action {
            Action::Start => self.start(server, &mut is_synchronous).await,
            Action::Restart => {
                let stopped = self.stop(Action::Stop, server, &mut is_synchronous).await;
                self.start(server, &mut is_synchronous).await.and(stopped)
            }
            Action::Resume => {
                action.apply(server).await?;
                self.settle(&mut is_synchronous).await
            }
            Action::Stop | Action::Kill | Action::Pause => {
                self.stop(action, server, &mut is_synchronous).await
            }
        }
    }

    /// Starts one; the standby from a copy of the primary, which also brings a former primary back.
    async fn start(&self, server: &Server, is_synchronous: &mut bool) -> anyhow::Result<()> {
        let (primary, standby) = (self.primary(), self.standby());
        let is_primary = server.name() == primary.server.name();
        if !is_primary && server.pid().is_none() {
            if primary.server.is_active() {
                postgres::copy_data(&primary.server, &primary.folder, &standby.folder).await?;
            } else {
                let (primary, standby) = (primary.server.name(), standby.server.name());
                ensure!(
                    *is_synchronous,
                    "{standby} begins with a copy of {primary}, the primary, which is not running: start that first"
                );
            }
        }
        Action::Start.apply(server).await?;
        if is_primary {
            // Only if a promotion was interrupted.
            postgres::promote(server).await?;
        }
        self.settle(is_synchronous).await
    }

    /// Stops, kills or pauses one; before that, no commit waits for the standby any longer.
    async fn stop(&self, action: Action, server: &Server, is_synchronous: &mut bool) -> anyhow::Result<()> {
        let primary = &self.primary().server;
        let mut released = Ok(());
        if server.name() != primary.name() && primary.is_active() {
            released = postgres::set_synchronous(primary, false).await;
            *is_synchronous = false;
        }
        action.apply(server).await?;
        released.with_context(|| format!("{} still waits for {}", primary.name(), server.name()))
    }

    /// Lets the primary wait for the standby if both run, or not if it runs alone.
    ///
    /// Also after one of them has ended by itself. While the primary is away, what the standby has does not change.
    pub(crate) async fn ended(&self) -> anyhow::Result<()> {
        self.settle(&mut *self.is_synchronous.lock().await).await
    }

    async fn settle(&self, is_synchronous: &mut bool) -> anyhow::Result<()> {
        let (primary, standby) = (&self.primary().server, &self.standby().server);
        if !primary.is_active() {
            return Ok(());
        }
        *is_synchronous = false;
        let both = standby.is_active();
        postgres::set_synchronous(primary, both).await.with_context(|| {
            let (primary, standby) = (primary.name(), standby.name());
            format!("{standby} does not follow {primary}; `./dev restart {standby}` copies it again")
        })?;
        *is_synchronous = both;
        Ok(())
    }

    /// Stops the primary, and makes the standby the primary.
    pub(crate) async fn promote(&self, name: &str) -> anyhow::Result<()> {
        let mut is_synchronous = self.is_synchronous.lock().await;
        let role = self.role(name).with_context(|| {
            let [first, second] = &self.nodes;
            format!("only a standby can be promoted: {} or {}", first.server.name(), second.server.name())
        })?;
        let (primary, standby) = (self.primary(), self.standby());
        if role == "primary" {
            ensure!(primary.server.is_active(), "{name} is not running: `./dev start {name}` starts it");
            return Ok(postgres::promote(&primary.server).await?);
        }
        ensure!(standby.server.is_active(), "{name} is not running: `./dev start {name}` starts it");
        ensure!(
            *is_synchronous,
            "{name} may lack changes of {0}: `./dev start {0}` first, and then `./dev start {name}`",
            primary.server.name()
        );
        // Whether it stops in time or is killed, the standby has all that it confirmed.
        primary.server.stop().await;
        let mut state: State = self.folder.read(STATE)?.unwrap_or_default();
        state.postgres_primary = Some(name.to_owned());
        self.folder.write(STATE, &state)?;
        self.primary.store(1 - self.primary.load(Ordering::SeqCst), Ordering::SeqCst);
        *is_synchronous = false;
        Ok(postgres::promote(&standby.server).await?)
    }
}
