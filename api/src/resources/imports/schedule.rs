//! Schedules imports.
//!
//! Imports take turns of some rows, so that a small file does not wait for large ones. An import that fails waits,
//! longer each time. Instances share imports by advisory locks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::work::Work;
use crate::app::App;
use crate::store::imports;
use crate::store::imports::Waiting;

/// Imports that one process has open at a time; each takes some megabytes.
const MOST_OPEN: usize = 32;

/// How many of them may be dry runs, which keep the names of all their rows: 40 MB for a million.
const MOST_DRY_RUNS: usize = 8;

/// Turns after which an import is closed when others wait. It is read again from the beginning then; a dry run would
/// start over, so it stays open.
const MAX_TURNS: u32 = 50;

/// Wait after a failure: the first, and the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Time between checks for imports that other instances received.
const PAUSE: Duration = Duration::from_secs(2);

/// Runs imports until shutdown. Failures are logged and tried again.
pub(crate) async fn run_imports(app: App) {
    let mut postponed = HashMap::new();
    while !app.shutdown.requested() {
        let outcome = tokio::select! {
            outcome = work_while_any_waits(&app, &mut postponed) => outcome,
            () = app.shutdown.wait() => return,
        };
        if let Err(error) = outcome {
            let error = format!("{error:#}");
            tracing::warn!(error, "cannot run imports of links; trying again");
        }
        tokio::select! {
            () = app.imports.notified() => {}
            () = tokio::time::sleep(PAUSE) => {}
            () = app.shutdown.wait() => return,
        }
    }
}

async fn work_while_any_waits(app: &App, postponed: &mut HashMap<Uuid, Postponed>) -> anyhow::Result<()> {
    let mut pooled = app.pool.acquire().await?;
    if imports::waiting(&mut pooled).await?.is_empty() {
        return Ok(());
    }
    // A separate connection: the locks end with it in any case.
    let connection = pooled.detach();
    let mut turns = Turns { app, connection, open: HashMap::new(), had: HashMap::new(), turn: 0, postponed };
    while turns.run_one().await? {}
    turns.connection.close().await?;
    Ok(())
}

/// A failed import, which waits.
struct Postponed {
    until: Instant,
    /// Failures since its last success.
    failures: u32,
}

struct Turns<'a> {
    app: &'a App,
    connection: PgConnection,
    /// Imports that this process has locked.
    open: HashMap<Uuid, Open>,
    /// The last turn of each import, open or not.
    had: HashMap<Uuid, u64>,
    /// The number of the turn.
    turn: u64,
    postponed: &'a mut HashMap<Uuid, Postponed>,
}

struct Open {
    work: Work,
    is_dry_run: bool,
    turns: u32,
}

impl Turns<'_> {
    /// Runs a turn of one import; false when none can run now.
    async fn run_one(&mut self) -> anyhow::Result<bool> {
        let waiting = imports::waiting(&mut self.connection).await?;
        let waits = |id: &Uuid| waiting.iter().any(|import| import.id == *id);
        self.had.retain(|id, _| waits(id));
        self.postponed.retain(|id, _| waits(id));
        self.open_new(&waiting).await?;
        let next = self.open.keys().min_by_key(|id| self.had.get(id)).copied();
        let Some(id) = next else { return Ok(false) };
        let Some(open) = self.open.get_mut(&id) else { return Ok(false) };
        self.turn += 1;
        self.had.insert(id, self.turn);
        open.turns += 1;
        match open.work.turn(self.app, &mut self.connection).await {
            Ok(is_over) => {
                self.postponed.remove(&id);
                if is_over {
                    self.close(id).await?;
                }
            }
            Err(error) => self.postpone(id, &error).await?,
        }
        Ok(true)
    }

    /// Opens the import that has waited longest. Only one: another instance may take the next.
    async fn open_new(&mut self, waiting: &[Waiting]) -> anyhow::Result<()> {
        let mut new: Vec<&Waiting> = waiting
            .iter()
            .filter(|import| !self.open.contains_key(&import.id) && self.is_due(import.id))
            .collect();
        new.sort_by_key(|import| self.had.get(&import.id));
        for import in new {
            let dry_runs = self.open.values().filter(|open| open.is_dry_run).count();
            if import.is_dry_run && dry_runs >= MOST_DRY_RUNS {
                continue;
            }
            if self.open.len() >= MOST_OPEN && !self.make_place().await? {
                return Ok(());
            }
            if self.open(import).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn is_due(&self, id: Uuid) -> bool {
        self.postponed.get(&id).is_none_or(|postponed| postponed.until <= Instant::now())
    }

    /// Closes the import with the most turns, if it has had enough.
    async fn make_place(&mut self) -> anyhow::Result<bool> {
        let may_go = self.open.iter().filter(|(_, open)| !open.is_dry_run && open.turns >= MAX_TURNS);
        let Some(id) = may_go.max_by_key(|(_, open)| open.turns).map(|(id, _)| *id) else {
            return Ok(false);
        };
        self.close(id).await?;
        Ok(true)
    }

    /// Opens an import; false when another instance runs it, it is done, or it fails.
    async fn open(&mut self, import: &Waiting) -> anyhow::Result<bool> {
        let id = import.id;
        if !imports::try_lock(&mut self.connection, id).await? {
            let postponed =
                self.postponed.entry(id).or_insert(Postponed { until: Instant::now(), failures: 0 });
            postponed.until = Instant::now() + PAUSE;
            return Ok(false);
        }
        match self.begin(id).await {
            Ok(Some(work)) => {
                self.open.insert(id, Open { work, is_dry_run: import.is_dry_run, turns: 0 });
                return Ok(true);
            }
            // It was done meanwhile.
            Ok(None) => self.unlock(id).await?,
            Err(error) => self.postpone(id, &error.into()).await?,
        }
        Ok(false)
    }

    async fn begin(&mut self, id: Uuid) -> sqlx::Result<Option<Work>> {
        match imports::find(&mut self.connection, id).await? {
            Some(import) => Work::begin(&mut self.connection, import).await.map(Some),
            None => Ok(None),
        }
    }

    async fn close(&mut self, id: Uuid) -> anyhow::Result<()> {
        self.open.remove(&id);
        self.unlock(id).await
    }

    async fn unlock(&mut self, id: Uuid) -> anyhow::Result<()> {
        Ok(imports::unlock(&mut self.connection, id).await?)
    }

    /// Closes a failed import until its wait is over.
    async fn postpone(&mut self, id: Uuid, error: &anyhow::Error) -> anyhow::Result<()> {
        // If Postgres is away, all imports wait, and none has failed.
        self.connection.ping().await.with_context(|| format!("after import {id}: {error:#}"))?;
        self.close(id).await?;
        let failures = self.postponed.get(&id).map_or(0, |postponed| postponed.failures);
        let wait = wait_after(failures);
        self.postponed
            .insert(id, Postponed { until: Instant::now() + wait, failures: failures.saturating_add(1) });
        let (error, wait_seconds) = (format!("{error:#}"), wait.as_secs());
        tracing::warn!(error, import = %id, wait_seconds, "an import of links failed; trying again after a wait");
        Ok(())
    }
}

fn wait_after(failures: u32) -> Duration {
    FIRST_WAIT.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_import_backs_off_up_to_five_minutes() {
        let waits = [0, 1, 2, 8, 9, 40].map(|failures| wait_after(failures).as_secs());
        assert_eq!(waits, [1, 2, 4, 256, 300, 300]);
    }
}
