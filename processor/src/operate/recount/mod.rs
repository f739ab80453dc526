//! `processor recount`: classifies stored clicks by the current rules, one day after the other.
//!
//! Rows keep the User-Agent and purpose, from which class, device type, browser and operating system are computed
//! again. Country and visitor cannot be recomputed because the address is not stored. A click without a User-Agent is
//! unchanged: none was sent, or its visitor had asked not to be tracked.
//!
//! Referrers get the one spelling of [`schemas::referrer`]; edges did not always give it to them.
//!
//! Each distinct pair of User-Agent and purpose is classified once. Classifications that differ from the rows are
//! written to table `recounts`, and table `rebuilds` names the recount of each rebuilt day. Audit and replay apply them
//! to the log. After a kill, run it again: it finds what still differs.

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
use service::clickhouse::Clickhouse;
use tokio::time::Instant;
use uuid::Uuid;

use self::store::{RecountStore, Scanned};
use super::applied_recounts::Classification;
use super::rebuild::{Rebuild, Rebuilt};
use crate::Config;
use crate::clickhouse::statements::next;

/// Differences that are printed for people; JSON has all.
const SHOWN: usize = 50;

/// Minimum time between two progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Arguments of `recount`.
#[derive(Debug, Clone, Args)]
pub struct Recount {
    /// Read with the small built-in table instead of the lists in HOPLINE_DATA_DIR.
    #[arg(long)]
    built_in: bool,
    /// Print what would change, by link and class, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the answer as one line of JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// What a recount changed, or would change in a dry run.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    dry_run: bool,
    /// The rules that were used.
    rules: String,
    /// Clicks whose class, device type, browser or operating system changes.
    clicks: u64,
    /// Clicks whose referrer gets another spelling: without `www.`, capital letters and a dot at its end.
    referrers: u64,
    /// Clicks whose class changes, by link.
    differences: Vec<Difference>,
    /// The days on which something changes.
    days: BTreeSet<NaiveDate>,
    /// The days that were rebuilt.
    rebuilt: Vec<Rebuilt>,
    /// Days that were skipped: they are open, or were closed less than an hour ago.
    open_days: BTreeSet<NaiveDate>,
}

/// Clicks of a link whose class changes.
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
        writeln!(f, "by {rules}: {clicks} clicks are classified differently")?;
        writeln!(f, "the referrers of {referrers} clicks get another spelling")?;
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
            writeln!(f, "{days}: skipped, still open or closed less than an hour ago; recount them later")?;
        }
        match (days.len(), dry_run) {
            (0, _) => writeln!(f, "there is nothing to recount"),
            (days, true) => writeln!(f, "{days} days would be rebuilt; nothing was changed"),
            (days, false) => writeln!(f, "done: {days} days were rebuilt"),
        }
    }
}

/// Classifies stored clicks again and rebuilds the days that change.
///
/// # Errors
/// When no rules can be read, another rebuild has started, or an engine fails. Finished days stay finished.
pub(super) async fn recount(config: &Config, command: &Recount) -> anyhow::Result<Outcome> {
    let agents = rules(config, command)?;
    let tables = RecountStore::new(Clickhouse::new(&config.clickhouse));
    let upkeep = config.upkeep_store();
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
    let classifications: Vec<_> = found.classifications.into_iter().collect();
    tables.write(recount, &classifications).await.context("cannot write the changes of the recount")?;
    let rebuild = Rebuild::begin(config, config.store("recount"), config.log()?).await?;
    let mut done = Ok(());
    for day in &outcome.days {
        match rebuild.day(*day, &[], Some(recount), "recount").await {
            Ok(rebuilt) => outcome.rebuilt.push(rebuilt),
            Err(error) => {
                done = Err(error).with_context(|| {
                    format!("{day} was not recounted; the days before it are done. Run the recount again")
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
            "HOPLINE_DATA_DIR is not set, so there are no lists of agents. Set it, or use --built-in for the small \
             built-in table that edges use without it"
        ),
    }
}

/// What the current rules change.
#[derive(Default)]
struct Found {
    clicks: u64,
    referrers: u64,
    /// By User-Agent and purpose.
    classifications: HashMap<(String, String), Classification>,
    /// By workspace, link, old class and new class.
    differences: BTreeMap<(Uuid, Uuid, String, String), u64>,
    /// The broker's days of the clicks.
    days: BTreeSet<NaiveDate>,
}

impl Found {
    fn add(&mut self, scanned: Scanned, agents: &Agents) {
        let Scanned { workspace, link, agent, why, kind, device, program, system, days, clicks } = scanned;
        let stored = Classification { class: kind, device_type: device, browser: program, os: system };
        let classification = classify(agents, &agent, &why);
        if classification == stored {
            return;
        }
        self.clicks += clicks;
        self.add_days(days);
        if stored.class != classification.class {
            let key = (workspace, link, stored.class, classification.class.clone());
            *self.differences.entry(key).or_default() += clicks;
        }
        self.classifications.insert((agent, why), classification);
    }

    /// Adds broker days, given as days since 1970, on which something changes.
    fn add_days(&mut self, days: impl IntoIterator<Item = u16>) {
        let date =
            |day| DateTime::from_timestamp(i64::from(day) * 86_400, 0).map(|midnight| midnight.date_naive());
        self.days.extend(days.into_iter().filter_map(date));
    }
}

fn classify(agents: &Agents, user_agent: &str, purpose: &str) -> Classification {
    let agent = agents.read(user_agent, Some(purpose));
    let class = match agent.class {
        Class::Human => schemas::message::Class::Human,
        Class::Bot => schemas::message::Class::Bot,
        Class::Preview => schemas::message::Class::Preview,
    };
    Classification {
        class: class.as_str().to_owned(),
        device_type: agent.device_type.to_owned(),
        browser: agent.browser.as_deref().unwrap_or_default().to_owned(),
        os: agent.os.as_deref().unwrap_or_default().to_owned(),
    }
}

/// Finds what changes among the clicks of these days.
async fn scan(tables: &RecountStore, days: &BTreeSet<NaiveDate>, agents: &Agents) -> anyhow::Result<Found> {
    let mut found = Found::default();
    if days.is_empty() {
        return Ok(found);
    }
    let days: Vec<String> = days.iter().map(|day| format!("'{day}'")).collect();
    let condition = format!("toDate(broker_ts) IN ({})", days.join(", "));
    let referrers =
        tables.other_spellings(&condition).await.context("cannot read the referrers of the raw rows")?;
    found.referrers = referrers.iter().map(|(_, clicks)| clicks).sum();
    found.add_days(referrers.iter().map(|(day, _)| *day));
    let mut rows = tables.scan(&condition).await?;
    let (mut clicks, mut logged_at) = (0_u64, Instant::now());
    while let Some(scanned) = next(&mut rows).await.context("cannot read the raw rows")? {
        clicks += scanned.clicks;
        found.add(scanned, agents);
        if logged_at.elapsed() >= PROGRESS_INTERVAL {
            logged_at = Instant::now();
            tracing::info!(clicks, "read the User-Agents of {clicks} clicks so far");
        }
    }
    Ok(found)
}
