//! `processor recount`: what stored clicks say by the present rules, in tables that then take the place of the current
//! ones.
//!
//! Of a click its User-Agent and purpose are kept, and by these class, kind of device, browser and operating system are
//! read again. Country and visitor cannot be: the address is not kept. A click without a User-Agent stays as it is:
//! none was sent, or its visitor had asked not to be followed.
//!
//! Referrers lose their `www.`, which clicks have that were stored before edges left it out.
//!
//! Every distinct pair of a User-Agent and a purpose is read once. Where the reading is not what rows say, it is written
//! to table `recounts`, under a number that the plan of the rebuild names. So whoever takes the rebuild up again does
//! the same, and audit and replay make of the log what the recount has made of the rows.

pub(crate) mod applied;
mod store;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, bail};
use chrono::{DateTime, NaiveDate};
use clap::Args;
use schemas::clickhouse::Generation;
use schemas::id::{LinkId, WorkspaceId};
use serde::Serialize;
use service::agent::{Agents, Class};
use service::clickhouse::client;
use tokio::time::Instant;
use uuid::Uuid;

use self::applied::Reading;
use self::store::{Scanned, Tables, in_time};
use super::rebuild::Rebuild;
use super::rebuild::plan::Plan;
use crate::Config;
use crate::upkeep;

/// Differences that are printed for people; JSON has all.
const SHOWN: usize = 50;

/// Above every offset of Kafka's.
const NO_END: u64 = i64::MAX as u64;

/// Least time between two lines about how far it is.
const TELL: Duration = Duration::from_secs(5);

/// By which rules clicks are counted again.
#[derive(Debug, Clone, Args)]
pub struct Recount {
    /// Read with the small built-in table instead of the lists in HOPLINE_DATA_DIR.
    #[arg(long)]
    built_in: bool,
    /// Go on with a recount that was broken off.
    #[arg(long, conflicts_with_all = ["built_in", "dry_run"])]
    resume: bool,
    /// Say what would change, by link and class, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the answer as one line of JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// What was done, or would be.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    dry_run: bool,
    /// By which rules.
    rules: String,
    /// Clicks of which something changes: class, kind of device, browser or operating system.
    clicks: u64,
    /// Clicks whose referrer loses its `www.`.
    referrers: u64,
    /// Clicks of another class, by link.
    differences: Vec<Difference>,
    /// How the new tables are made; none where nothing changes.
    plan: Option<Plan>,
}

/// Clicks of a link that are of another class by the present rules.
#[derive(Debug, Serialize)]
struct Difference {
    workspace_id: WorkspaceId,
    link_id: LinkId,
    was: String,
    becomes: String,
    clicks: u64,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dry_run, rules, clicks, referrers, differences, plan } = self;
        writeln!(f, "by {rules}: {clicks} clicks are read differently")?;
        writeln!(f, "{referrers} referrers lose their www.")?;
        let mut classes: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for Difference { was, becomes, clicks, .. } in differences {
            *classes.entry((was, becomes)).or_default() += clicks;
        }
        for ((was, becomes), clicks) in classes {
            writeln!(f, "  {was} -> {becomes}: {clicks} clicks")?;
        }
        for Difference { workspace_id, link_id, was, becomes, clicks } in differences.iter().take(SHOWN) {
            writeln!(f, "    {workspace_id} {link_id}: {clicks} from {was} to {becomes}")?;
        }
        if differences.len() > SHOWN {
            writeln!(f, "    and {} more; --json has all", differences.len() - SHOWN)?;
        }
        let Some(plan) = plan else { return writeln!(f, "there is nothing to recount") };
        plan.fmt(f)?;
        if *dry_run {
            return writeln!(f, "nothing was done");
        }
        writeln!(f, "done: generation {} is current", plan.generation())?;
        writeln!(f, "`processor drop-generation {}` removes the former tables", plan.of())
    }
}

/// Recounts, or goes on with what was broken off.
///
/// # Errors
/// When there are no rules to read by, a rebuild is at work or was broken off, or an engine fails.
pub(super) async fn recount(config: &Config, command: &Recount) -> anyhow::Result<Outcome> {
    let rebuild = Rebuild::new(config)?;
    if let Some(plan) = rebuild.unfinished(command.resume).await? {
        let plan = rebuild.resume(plan).await?;
        let rules = "the rules of the recount that was broken off".to_owned();
        return Ok(Outcome {
            dry_run: false,
            rules,
            clicks: 0,
            referrers: 0,
            differences: Vec::new(),
            plan: Some(plan),
        });
    }
    let agents = rules(config, command)?;
    let planning = Planning::new(config, &rebuild).await?;
    let found = planning.scan(&agents).await?;
    let differences =
        found.differences.into_iter().map(|((workspace, link, was, becomes), clicks)| Difference {
            workspace_id: WorkspaceId::from_uuid(workspace),
            link_id: LinkId::from_uuid(link),
            was,
            becomes,
            clicks,
        });
    let mut outcome = Outcome {
        dry_run: command.dry_run,
        rules: agents.to_string(),
        clicks: found.clicks,
        referrers: found.referrers,
        differences: differences.collect(),
        plan: None,
    };
    if found.days.is_empty() {
        return Ok(outcome);
    }
    let recount = Uuid::now_v7();
    let mut plan = planning.plan(&found.days).recounting(recount);
    if !command.dry_run {
        let readings: Vec<_> = found.readings.into_iter().collect();
        planning.tables.write(recount, &readings).await.context("cannot write what the recount changes")?;
        plan = rebuild.begin(plan).await?;
    }
    outcome.plan = Some(plan);
    Ok(outcome)
}

fn rules(config: &Config, command: &Recount) -> anyhow::Result<Agents> {
    match (&config.data_dir, command.built_in) {
        (_, true) => Ok(Agents::built_in()),
        (Some(folder), false) => Agents::load(folder).context("cannot read the lists of agents"),
        (None, false) => bail!(
            "HOPLINE_DATA_DIR does not say where the lists of agents are; edges without it read with the small \
             built-in table, and --built-in does here"
        ),
    }
}

/// What the present rules change.
#[derive(Default)]
struct Found {
    clicks: u64,
    referrers: u64,
    /// By User-Agent and purpose.
    readings: HashMap<(String, String), Reading>,
    /// By workspace, link, class and the class that it becomes.
    differences: BTreeMap<(Uuid, Uuid, String, String), u64>,
    /// The broker's days of the clicks.
    days: BTreeSet<NaiveDate>,
}

impl Found {
    fn add(&mut self, scanned: Scanned, agents: &Agents) {
        let Scanned { workspace, link, user_agent, why, kind, device, program, system, days, clicks } =
            scanned;
        let stored = Reading { class: kind, device_type: device, browser: program, os: system };
        let reading = read(agents, &user_agent, &why);
        if reading == stored {
            return;
        }
        self.clicks += clicks;
        self.touch(days);
        if stored.class != reading.class {
            let key = (workspace, link, stored.class, reading.class.clone());
            *self.differences.entry(key).or_default() += clicks;
        }
        self.readings.insert((user_agent, why), reading);
    }

    /// Notes days of the broker, as days since 1970, on which something changes.
    fn touch(&mut self, days: impl IntoIterator<Item = u16>) {
        let date =
            |day| DateTime::from_timestamp(i64::from(day) * 86_400, 0).map(|midnight| midnight.date_naive());
        self.days.extend(days.into_iter().filter_map(date));
    }
}

fn read(agents: &Agents, user_agent: &str, purpose: &str) -> Reading {
    let agent = agents.read(user_agent, Some(purpose));
    let class = match agent.class {
        Class::Human => schemas::message::Class::Human,
        Class::Bot => schemas::message::Class::Bot,
        Class::Preview => schemas::message::Class::Preview,
    };
    Reading {
        class: class.as_str().to_owned(),
        device_type: agent.device_type.to_owned(),
        browser: agent.browser.as_deref().unwrap_or_default().to_owned(),
        os: agent.os.as_deref().unwrap_or_default().to_owned(),
    }
}

/// What is known when a recount begins: it is of the clicks that are stored by then.
struct Planning {
    tables: Tables,
    /// The number of the tables to be made, and of those that are read.
    next: Generation,
    generation: Generation,
    closed_until: Option<NaiveDate>,
    /// The recount is of the clicks of these sources below these offsets.
    live: BTreeMap<u32, u64>,
    /// The broker's days that have rows.
    days: BTreeSet<NaiveDate>,
}

impl Planning {
    async fn new(config: &Config, rebuild: &Rebuild<'_>) -> anyhow::Result<Self> {
        let (log, store) = (rebuild.log(), rebuild.store());
        let generation = store.current_generation().await.context("cannot read the current generation")?;
        // Before what is done, as for a replay: all rows of a slice that was closed by now are below that.
        let closed = upkeep::Tables::new(client(&config.clickhouse)).last_closed_slice(generation).await;
        let closed = closed.context("cannot read the closed slices")?;
        let sources = store.sources().await.context("cannot read the partitions' logs")?;
        let mut live = BTreeMap::new();
        for partition in 0..log.partitions().await.context("cannot ask Kafka for the topic of clicks")? {
            let position = store.position_of(generation, &sources, partition).await;
            let position = position.context("cannot read how far the partition is")?;
            live.insert(sources.of(partition), position.map_or(0, |position| position.next));
        }
        let tables = Tables::new(client(&config.clickhouse));
        // Nothing comes from former logs any more, so all of theirs is of the recount. What no source here has is not:
        // partitions may be added, and logs replaced, while it runs.
        for src in tables.sources(generation).await.context("cannot read the sources of the raw rows")? {
            live.entry(src).or_insert(NO_END);
        }
        let closed_until = closed.and_then(|day| day.succ_opt());
        let days = rebuild.days(generation, "1").await?;
        let next = rebuild.next_generation().await?;
        Ok(Self { tables, next, generation, closed_until, live, days })
    }

    fn plan(&self, touched: &BTreeSet<NaiveDate>) -> Plan {
        let Self { next, generation, closed_until, live, days, .. } = self;
        Plan::new(*next, *generation, Vec::new(), live.clone(), days, touched, *closed_until)
    }

    async fn scan(&self, agents: &Agents) -> anyhow::Result<Found> {
        let mut found = Found::default();
        let condition = self.plan(&BTreeSet::new()).is_copied();
        let referrers = self
            .tables
            .referrers_with_www(self.generation, &condition)
            .await
            .context("cannot read the referrers of the raw rows")?;
        found.referrers = referrers.iter().map(|(_, clicks)| clicks).sum();
        found.touch(referrers.iter().map(|(day, _)| *day));
        let mut rows = self.tables.scan(self.generation, &condition)?;
        let (mut clicks, mut told) = (0_u64, Instant::now());
        while let Some(scanned) = in_time(rows.next()).await.context("cannot read the raw rows")? {
            clicks += scanned.clicks;
            found.add(scanned, agents);
            if told.elapsed() >= TELL {
                told = Instant::now();
                tracing::info!(clicks, "read the User-Agents of {clicks} clicks so far");
            }
        }
        Ok(found)
    }
}
