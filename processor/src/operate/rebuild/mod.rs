//! Making the next generation of tables beside the one that is read, and switching to it.
//!
//! Every step can be killed: its work is then done again from its beginning, or from where rows say it is. Writes go
//! under an epoch of their own (see [`crate::ownership`]), so one who was thought dead writes nothing any more.
//! Statements that take no condition, such as `TRUNCATE`, name tables whose number no other attempt ever has.
//!
//! Live clicks go on into the current tables. Only for the moment of the switch are live sources fenced: what they
//! have stored since is copied, and the row that names the new generation goes in under all of their epochs. So no
//! query ever reads tables that lack a click which the former ones had.

mod fill;
pub(crate) mod plan;
mod store;
mod switch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::NaiveDate;
use schemas::clickhouse::Generation;
use schemas::row::REBUILD;
use schemas::topic;
use service::clickhouse::client;
use tokio::sync::Mutex;
use tokio::time::sleep;

use self::plan::{Plan, Step, Written};
use self::store::Tables;
use super::audit;
use super::reading::ReadError;
use crate::Config;
use crate::log::{Log, LogError};
use crate::store::{InsertError, Right, Store, StoreError};
use crate::upkeep::{self, UpkeepError};

/// How often whoever is at work says so.
const BEAT: Duration = Duration::from_secs(2);

/// Seconds without a sign after which whoever was at work counts as dead.
pub(crate) const SILENCE: f64 = 10.0;

/// How often rollups are copied again because a purge has changed them half way.
const ATTEMPTS: usize = 3;

/// Why the next generation was not made. It can be taken up again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RebuildError {
    #[error("ClickHouse did not do it: {0}")]
    Store(#[from] StoreError),
    #[error("Kafka did not answer: {0}")]
    Log(#[from] LogError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot make a client of Kafka: {0}")]
    Kafka(#[from] rdkafka::error::KafkaError),
    #[error("the rollups could not be computed: {0}")]
    Upkeep(#[from] UpkeepError),
    #[error("another replay has taken over")]
    Fenced,
    #[error("another replay or drop-generation did something meanwhile; look again what is to be done")]
    Changed,
    #[error("generation {0} is the current one: every query reads its tables")]
    IsCurrent(Generation),
    #[error("another replay is at work: it gave a sign {0:.0} s ago. If it was killed, try again in 10 s")]
    AtWork(f64),
    #[error("what is written down about the replay cannot be read: {0}")]
    Unreadable(String),
    #[error("the log no longer holds partition {partition} from offset {from}: it begins at {start}")]
    LogBegins { partition: i32, from: u64, start: u64 },
    #[error(
        "the log of partition {partition} was replaced since this was planned, and the range with it: \
         `processor drop-generation` gives it up"
    )]
    FormerLog { partition: i32 },
    #[error("the new tables are not what they must be, and nothing was switched:\n{0}")]
    Unequal(Box<audit::report::Report>),
    #[error("could not audit the new tables: {0:#}")]
    Audit(anyhow::Error),
    #[error(
        "making generation {0} was broken off: `processor replay --resume` goes on with it, \
         `processor drop-generation {0}` gives it up"
    )]
    BrokenOff(Generation),
    #[error("nothing was broken off")]
    NothingToResume,
    #[error("live clicks came in between at every attempt to switch")]
    NotSwitched,
}

impl From<InsertError> for RebuildError {
    fn from(error: InsertError) -> Self {
        match error {
            InsertError::Fenced => Self::Fenced,
            InsertError::Doubtful(error) => Self::Store(error),
        }
    }
}

/// Makes generations of tables.
pub(crate) struct Rebuild<'a> {
    config: &'a Config,
    store: Store,
    tables: Tables,
    log: Log,
    clicks: Arc<str>,
}

impl<'a> Rebuild<'a> {
    pub(crate) fn new(config: &'a Config) -> Result<Self, RebuildError> {
        let kafka = &config.kafka;
        let clicks: Arc<str> = kafka.topic(topic::CLICKS.name).into();
        let store = Store::new(client(&config.clickhouse), format!("replay {}", std::process::id()));
        let tables = Tables::new(client(&config.clickhouse));
        let log = Log::new(kafka, &clicks, &kafka.topic(config.group))?;
        Ok(Self { config, store, tables, log, clicks })
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the days on which the current tables have rows for which a condition holds.
    pub(crate) async fn days(
        &self,
        generation: Generation,
        condition: &str,
    ) -> Result<BTreeSet<NaiveDate>, RebuildError> {
        Ok(self.tables.days(&generation.clicks(), condition).await?)
    }

    /// Returns the rebuild that was broken off, if one was.
    ///
    /// # Errors
    /// [`RebuildError::AtWork`] when somebody seems to be working on it.
    pub(crate) async fn broken_off(&self) -> Result<Option<Written>, RebuildError> {
        match self.tables.latest().await? {
            Some(written) if written.step.is_last() => Ok(None),
            Some(written) if written.idle_seconds < SILENCE => {
                Err(RebuildError::AtWork(written.idle_seconds))
            }
            written => Ok(written),
        }
    }

    /// Removes a generation that is not current; one that was broken off cannot be taken up any more.
    pub(crate) async fn remove(&self, generation: Generation) -> Result<bool, RebuildError> {
        let right = self.claim().await?;
        // Only now nobody else switches: what was read before the claim may be long ago.
        if generation == self.store.current_generation().await? {
            return Err(RebuildError::IsCurrent(generation));
        }
        if let Some(Written { plan, step, .. }) = self.tables.latest().await?
            && plan.generation() == generation
            && !step.is_last()
        {
            self.tables.write(right, &plan, Step::Abandoned).await?;
        }
        let existed = self.tables.exists(generation).await?;
        self.tables.drop(generation).await?;
        Ok(existed)
    }

    /// Returns the number of the next generation: above every one that there ever was, so that a statement of one
    /// who was thought dead finds no tables of somebody else's.
    pub(crate) async fn next_generation(&self) -> Result<Generation, RebuildError> {
        let current = self.store.current_generation().await?;
        Ok(next_after(current, self.tables.latest().await?.as_ref()))
    }

    /// Returns what is to be resumed, or nothing when a new plan is to be made.
    ///
    /// # Errors
    /// [`RebuildError::BrokenOff`] and [`RebuildError::NothingToResume`] when it is the other way round, and
    /// [`RebuildError::AtWork`].
    pub(crate) async fn unfinished(&self, resume: bool) -> Result<Option<Plan>, RebuildError> {
        match self.broken_off().await? {
            Some(Written { plan, .. }) if resume => Ok(Some(plan)),
            Some(Written { plan, .. }) => Err(RebuildError::BrokenOff(plan.generation())),
            None if resume => Err(RebuildError::NothingToResume),
            None => Ok(None),
        }
    }

    /// Does what a new plan says, and returns it with the number that its tables have got.
    ///
    /// # Errors
    /// [`RebuildError::Changed`] when the plan is for tables that are not current any more.
    pub(crate) async fn begin(&self, mut plan: Plan) -> Result<Plan, RebuildError> {
        let right = self.claim().await?;
        // Only now nobody else goes on; one who began since the plan was made writes nothing any more.
        let current = self.store.current_generation().await?;
        let latest = self.tables.latest().await?;
        if let Some(Written { plan: other, step, .. }) = &latest
            && !step.is_last()
        {
            if other.generation() == current {
                // Queries read these tables already: the live rows that they may lack are brought first.
                self.carry_out(right, other, *step).await?;
                return Err(RebuildError::Changed);
            }
            self.tables.write(right, other, Step::Abandoned).await?;
            self.tables.drop(other.generation()).await?;
        }
        if current != plan.of() {
            return Err(RebuildError::Changed);
        }
        plan.generation = next_after(current, latest.as_ref()).0;
        self.tables.write(right, &plan, Step::Planned).await?;
        self.carry_out(right, &plan, Step::Planned).await?;
        Ok(plan)
    }

    /// Goes on with a plan that was broken off, from behind its last step.
    ///
    /// # Errors
    /// [`RebuildError::Changed`] when somebody else has ended it meanwhile.
    pub(crate) async fn resume(&self, plan: Plan) -> Result<Plan, RebuildError> {
        let right = self.claim().await?;
        // Another one may have gone on with it until the claim.
        match self.tables.latest().await? {
            Some(Written { plan: latest, step, .. }) if latest == plan && !step.is_last() => {
                self.carry_out(right, &plan, step).await?;
                Ok(plan)
            }
            _ => Err(RebuildError::Changed),
        }
    }

    /// Does what a plan says from behind a step on, and gives signs of life.
    async fn carry_out(&self, right: Right, plan: &Plan, done: Step) -> Result<(), RebuildError> {
        // Held while it is written down, so that no sign of life puts a former step on top.
        let step = Mutex::new(done);
        tokio::select! {
            done = self.steps(right, plan, &step) => done,
            error = self.beat(right, plan, &step) => Err(error),
        }
    }

    async fn steps(&self, right: Right, plan: &Plan, step: &Mutex<Step>) -> Result<(), RebuildError> {
        let begun = *step.lock().await;
        let done = async |reached: Step| {
            let mut step = step.lock().await;
            self.tables.write(right, plan, reached).await?;
            *step = reached;
            tracing::info!(step = reached.name(), "generation {}: {}", plan.generation, reached.name());
            Ok::<_, RebuildError>(())
        };
        if begun < Step::Copied {
            self.copy(right, plan).await?;
            done(Step::Copied).await?;
        }
        if begun < Step::Filled {
            self.fill(right, plan).await?;
            done(Step::Filled).await?;
        }
        if begun < Step::RolledUp {
            self.roll_up(right, plan).await?;
            done(Step::RolledUp).await?;
        }
        self.switch(right, plan).await?;
        done(Step::Switched).await
    }

    /// Says that somebody is at work, until that cannot be said.
    async fn beat(&self, right: Right, plan: &Plan, step: &Mutex<Step>) -> RebuildError {
        loop {
            sleep(BEAT).await;
            let step = step.lock().await;
            match self.tables.write(right, plan, *step).await {
                Err(RebuildError::Fenced) => return RebuildError::Fenced,
                Err(error) => tracing::warn!("cannot say that the replay goes on: {error}"),
                Ok(()) => {}
            }
        }
    }

    /// Takes the right to write new tables; whoever had it writes nothing any more.
    async fn claim(&self) -> Result<Right, RebuildError> {
        Ok(self.store.fence(REBUILD).await?)
    }

    async fn copy(&self, right: Right, plan: &Plan) -> Result<(), RebuildError> {
        self.tables.create(plan.generation()).await?;
        // What a former attempt has filled would be taken for the range's beginning.
        self.tables.clear(right, plan.generation()).await?;
        self.tables.copy_purges(right, plan).await?;
        for day in &plan.attached {
            self.tables.attach(right, plan, *day).await?;
        }
        for day in &plan.copied {
            self.tables.copy(right, plan, *day).await?;
            tracing::info!(%day, "copied what is not read again of {day}");
        }
        Ok(())
    }

    async fn roll_up(&self, right: Right, plan: &Plan) -> Result<(), RebuildError> {
        let mut attempt = 1;
        loop {
            self.tables.copy_rollups(right, plan).await?;
            let tables = upkeep::Tables::new(client(&self.config.clickhouse));
            let (store, log) = (self.store.clone(), self.log.clone());
            upkeep::roll_up(store, tables, log, plan.generation(), &plan.slices).await?;
            let report =
                audit::audit_tables(self.config, plan.generation()).await.map_err(RebuildError::Audit)?;
            if report.difference_count == 0 {
                return Ok(());
            }
            if attempt == ATTEMPTS {
                return Err(RebuildError::Unequal(Box::new(report)));
            }
            tracing::info!("the new tables are not equal yet, their rollups are made once more");
            attempt += 1;
        }
    }
}

/// The number above every one that there ever was.
fn next_after(current: Generation, latest: Option<&Written>) -> Generation {
    Generation(latest.map_or(current, |written| current.max(written.plan.generation())).0 + 1)
}
