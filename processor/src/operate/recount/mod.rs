//! `processor recount`: what stored clicks say by the present rules, a day after the other.
//!
//! Of a click its User-Agent and purpose are kept, and by these class, kind of device, browser and operating system are
//! read again. Country and visitor cannot be: the address is not kept. A click without a User-Agent stays as it is:
//! none was sent, or its visitor had asked not to be followed.
//!
//! Referrers lose their `www.`, which clicks have that were stored before edges left it out.
//!
//! Every distinct pair of a User-Agent and a purpose is read once. Where the reading is not what rows say, it is written
//! to table `recounts`, and each day that was made again by it names it in table `rebuilds`. So audit and replay make of
//! the log what the recount has made of the rows. Killed, it is started again: it finds what is still different.

pub(crate) mod applied;
mod store;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, bail};
use chrono::{DateTime, NaiveDate};
use clap::Args;
use schemas::id::{LinkId, WorkspaceId};
use serde::Serialize;
use service::agent::{Agents, Class};
use service::clickhouse::client;
use tokio::time::Instant;
use uuid::Uuid;

use self::applied::Reading;
use self::store::{Scanned, Tables};
use super::rebuild::{Rebuild, Rebuilt};
use crate::Config;
use crate::clickhouse::statements::next;

/// Differences that are printed for people; JSON has all.
const SHOWN: usize = 50;

/// Least time between two lines about how far it is.
const TELL: Duration = Duration::from_secs(5);

/// By which rules clicks are counted again.
#[derive(Debug, Clone, Args)]
pub struct Recount {
    /// Read with the small built-in table instead of the lists in HOPLINE_DATA_DIR.
    #[arg(long)]
    built_in: bool,
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
    /// The days on which something changes.
    days: BTreeSet<NaiveDate>,
    /// Those that were made again.
    rebuilt: Vec<Rebuilt>,
    /// Days with clicks that stay as they are: they are open, or were closed less than an hour ago.
    open_days: BTreeSet<NaiveDate>,
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
        let Self { dry_run, rules, clicks, referrers, differences, days, rebuilt, open_days } = self;
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
        for day in rebuilt {
            writeln!(f, "{day}")?;
        }
        if !open_days.is_empty() {
            let days: Vec<String> = open_days.iter().map(NaiveDate::to_string).collect();
            let days = days.join(", ");
            writeln!(f, "{days}, closed less than an hour ago or open, can be read again later")?;
        }
        match (days.len(), dry_run) {
            (0, _) => writeln!(f, "there is nothing to recount"),
            (days, true) => writeln!(f, "{days} days would be made again; nothing was done"),
            (days, false) => writeln!(f, "done: {days} days were made again"),
        }
    }
}

/// Recounts.
///
/// # Errors
/// When there are no rules to read by, another rebuild has begun, or an engine fails. Days that were done stay done.
pub(super) async fn recount(config: &Config, command: &Recount) -> anyhow::Result<Outcome> {
    let agents = rules(config, command)?;
    let tables = Tables::new(client(&config.clickhouse));
    let upkeep = config.tables();
    let settled = upkeep.days().await.context("cannot read the closed slices")?;
    let blocks = upkeep.last_blocks().await;
    let with_rows = blocks.context("cannot read the days of the raw rows")?.into_keys();
    let (scanned, open_days): (BTreeSet<NaiveDate>, BTreeSet<NaiveDate>) =
        with_rows.partition(|day| settled.are_settled(day));
    let found = scan(&tables, &scanned, &agents).await?;
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
        days: found.days,
        rebuilt: Vec::new(),
        open_days,
    };
    if command.dry_run || outcome.days.is_empty() {
        return Ok(outcome);
    }
    let recount = Uuid::now_v7();
    let readings: Vec<_> = found.readings.into_iter().collect();
    tables.write(recount, &readings).await.context("cannot write what the recount changes")?;
    let rebuild = Rebuild::begin(config, config.store("recount"), config.log()?).await?;
    let mut done = Ok(());
    for day in &outcome.days {
        match rebuild.day(*day, &[], Some(recount), "recount").await {
            Ok(rebuilt) => outcome.rebuilt.push(rebuilt),
            Err(error) => {
                done = Err(error).with_context(|| {
                    format!("{day} was not read again; the days before it are done. Run it again")
                });
                break;
            }
        }
    }
    rebuild.end().await?;
    done.map(|()| outcome)
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

/// Reads what the clicks of some days say.
async fn scan(tables: &Tables, days: &BTreeSet<NaiveDate>, agents: &Agents) -> anyhow::Result<Found> {
    let mut found = Found::default();
    if days.is_empty() {
        return Ok(found);
    }
    let days: Vec<String> = days.iter().map(|day| format!("'{day}'")).collect();
    let condition = format!("toDate(broker_ts) IN ({})", days.join(", "));
    let referrers =
        tables.referrers_with_www(&condition).await.context("cannot read the referrers of the raw rows")?;
    found.referrers = referrers.iter().map(|(_, clicks)| clicks).sum();
    found.touch(referrers.iter().map(|(day, _)| *day));
    let mut rows = tables.scan(&condition)?;
    let (mut clicks, mut told) = (0_u64, Instant::now());
    while let Some(scanned) = next(&mut rows).await.context("cannot read the raw rows")? {
        clicks += scanned.clicks;
        found.add(scanned, agents);
        if told.elapsed() >= TELL {
            told = Instant::now();
            tracing::info!(clicks, "read the User-Agents of {clicks} clicks so far");
        }
    }
    Ok(found)
}
