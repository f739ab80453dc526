//! From the tables that are read to the new ones, without a moment at which a query sees too little or too much.
//!
//! 1. What live sources have stored since is copied, until little is left.
//! 2. Their epochs are raised and older inserts waited out: nothing is added to the former tables any more. The rest
//!    is copied, and the row that names the new generation goes in under all of these epochs. A lane that has taken
//!    its partition again meanwhile makes that fail, and it is tried again.
//! 3. A lane may have taken its partition while that very row went in, and so read that the former generation is
//!    current. Its inserts are refused from the row on; the epochs are raised again, which makes it look once more, and
//!    what an insert that was under way at that moment stored is copied.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use schemas::row::REBUILD;

use super::plan::Plan;
use super::{Rebuild, RebuildError};
use crate::store::Right;

/// Rows that may be left to copy while live sources wait.
const LITTLE: u64 = 50_000;

/// How often live rows are copied before live sources are fenced, however much they bring.
const ROUNDS: usize = 20;

/// How often the switch is tried.
const ATTEMPTS: usize = 20;

impl Rebuild<'_> {
    pub(super) async fn switch(&self, right: Right, plan: &Plan) -> Result<(), RebuildError> {
        let mut attempt = 0;
        while self.store.current_generation().await? < plan.generation() {
            attempt += 1;
            if attempt > ATTEMPTS {
                return Err(RebuildError::NotSwitched);
            }
            // Who has lost it must not disturb the live sources.
            self.tables.check(right).await?;
            let live = self.live(plan).await?;
            for _ in 0..ROUNDS {
                let copies = live.iter().map(|(src, from)| self.tables.copy_live(right, plan, *src, *from));
                if try_join_all(copies).await?.iter().sum::<u64>() <= LITTLE {
                    break;
                }
            }
            let fenced = self.fence(&live.keys().copied().collect::<Vec<_>>()).await?;
            // A copy without an answer ends this attempt: it may still go on, and whoever resumes waits it out.
            let copies = live.iter().map(|(src, from)| self.tables.copy_live(right, plan, *src, *from));
            try_join_all(copies).await?;
            match self.tables.switch(right, &fenced, plan).await {
                Err(RebuildError::Fenced) => tracing::info!("a live source went on meanwhile, trying again"),
                // Whether it was done, the row says, as soon as it cannot be written any more.
                Err(RebuildError::Store(error)) => {
                    tracing::warn!("the switch is doubtful, looking again: {error}");
                    self.store.wait_out(REBUILD, right.epoch + 1).await?;
                }
                outcome => outcome?,
            }
        }
        // Who is fenced here reads which generation is current again.
        for (src, from) in &self.live(plan).await? {
            loop {
                let [live] = self.fence(&[*src]).await?[..] else { break };
                match self.tables.copy_live(live, plan, *src, *from).await {
                    Err(RebuildError::Fenced) => {}
                    outcome => {
                        outcome?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns from which offset on the rows of each live source were not copied yet when the plan was made.
    async fn live(&self, plan: &Plan) -> Result<BTreeMap<u32, u64>, RebuildError> {
        let mut live = plan.live.clone();
        let sources = self.store.sources().await?;
        for partition in 0..self.log.partitions().await? {
            // The topic may have got more partitions since, or other logs.
            live.entry(sources.of(partition)).or_insert(0);
        }
        Ok(live)
    }

    /// Takes live sources from whoever has them.
    async fn fence(&self, sources: &[u32]) -> Result<Vec<Right>, RebuildError> {
        Ok(try_join_all(sources.iter().map(|src| self.store.fence(*src))).await?)
    }
}
