//! Programs of another release beside those of this one, on either schema.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

use super::super::progress;
use super::{ARRIVED, Stage, receiver};
use crate::arrivals::Arrivals;
use crate::counted::click_ids;
use crate::deployment::{Deployment, click_id, programs};
use crate::engines::Isolated;
use crate::eventually_within;
use crate::load::{Answer, Log};
use crate::processor::audit;
use crate::tally::Tally;

/// The other release and the load.
#[derive(Debug, Clone)]
pub struct Upgrade {
    /// The folder of its programs.
    pub former: PathBuf,
    /// Visitors.
    pub connections: u32,
    /// Clicks per second of all visitors together.
    pub rate: u32,
}

/// The results of an upgrade.
#[derive(Debug)]
pub struct Upgraded {
    /// Replacements of a program.
    pub replaced: usize,
    /// The clicks on topic `clicks`.
    pub tally: Tally,
    /// The deliveries.
    pub arrivals: Arrivals,
    /// Rows of clicks.
    pub rows: usize,
    /// Clicks without an answer, while an edge was replaced. They may have been counted.
    pub unanswered: u64,
}

/// A deployment that changes its release under load.
struct Changing {
    stage: Stage,
    former: PathBuf,
    present: PathBuf,
    replaced: usize,
    /// Clicks and conversions beside the load.
    more: Vec<Answer>,
}

/// Upgrades, goes back, and upgrades again, one program at a time under load. First, programs of this build run on the
/// former schema. The engines must be empty.
///
/// # Panics
/// When a program does not end with exit code 0 or does not become ready, or something that was answered is lost.
pub async fn upgrade(engines: Isolated, plan: &Upgrade) -> Upgraded {
    let receiver = receiver().await;
    let deployment = Deployment::start_release(engines, &[], &plan.former).await;
    let stage = Stage::on(deployment, &receiver.url("/in"), &["click.created"]).await;
    let load = stage.load(plan.connections, plan.rate);
    let mut changing =
        Changing { stage, former: plan.former.clone(), present: programs(), replaced: 0, more: Vec::new() };
    load.answers(u64::from(plan.rate)).await;
    changing.works("the former release").await;

    // The API is replaced after the migration, because users wait for its answers.
    for name in ["processor", "dispatcher", "ingest"] {
        changing.put(name, true).await;
    }
    let deployment = &changing.stage.deployment;
    let migrated = async {
        load.answers(5 * u64::from(plan.rate)).await;
        deployment.migrate(&changing.present).await;
    };
    let (processor, dispatcher, ingest, ()) = tokio::join!(
        deployment.processor.start(),
        deployment.dispatcher.start(),
        deployment.ingest.start(),
        migrated
    );
    [processor, dispatcher, ingest].into_iter().for_each(Result::unwrap);
    changing.works("this build without its API, which started before the migration").await;

    changing.put("api", true).await;
    changing.started("api").await;
    for (name, is_present) in [
        ("ingest", false),
        ("processor", false),
        ("api", false),
        ("dispatcher", false),
        ("api", true),
        ("dispatcher", true),
        ("ingest", true),
        ("processor", true),
    ] {
        load.answers(u64::from(plan.rate)).await;
        changing.put(name, is_present).await;
        changing.started(name).await;
    }
    load.answers(u64::from(plan.rate)).await;

    let mut log = load.stop().await;
    assert_eq!((log.refused, log.dropped), (0, 0), "clicks that were refused, or redirected and not stored");
    log.answers.append(&mut changing.more);
    let Changing { stage, replaced, .. } = changing;
    let arrivals = stage.arrivals(&log, &receiver, &[]).await;
    stage.deployment.ingest.stop().await;
    let tally = Tally::of(&stage.deployment.engines, &log);
    let rows = rows(&stage.deployment.engines, &log).await;
    audit(&stage.deployment.engines).await;
    Upgraded { replaced, tally, arrivals, rows, unanswered: log.unanswered }
}

impl Changing {
    /// Replaces a running program with this build's or the former release's.
    async fn put(&mut self, name: &str, is_present: bool) {
        let programs = if is_present { &self.present } else { &self.former };
        self.stage.deployment.replace(name, programs).await;
        self.replaced += 1;
    }

    /// Starts a replaced program, and uses all four.
    async fn started(&mut self, name: &str) {
        let services = self.stage.deployment.services();
        let server = services.into_iter().find(|server| server.name() == name).unwrap();
        server.start().await.unwrap();
        self.works(&server.launch().program.display().to_string()).await;
    }

    /// Creates a link, clicks it, registers a conversion, and waits until the API shows them.
    async fn works(&mut self, what: &str) {
        let deployment = &self.stage.deployment;
        let link = deployment.create_link().await;
        let [id, slug] = ["id", "slug"].map(|field| link[field].as_str().unwrap());
        deployment.edge_knows(slug).await;
        let due = Instant::now();
        let redirect = deployment.click(slug, "198.51.100.7").await.unwrap();
        let click_id = click_id(&redirect);
        assert_eq!(deployment.convert(&click_id).await, 201);
        self.more.push(Answer { click_id: click_id.into(), due, latency: due.elapsed() });
        eventually_within("the API shows the click and its conversion", ARRIVED, async || {
            let link = deployment.show_link(id).await;
            let shown = ["total_clicks", "unique_clicks", "conversions"].map(|count| link[count].as_u64());
            if shown == [Some(1); 3] { Ok(()) } else { Err(link) }
        })
        .await;
        progress(&format!("works: {what}"));
    }
}

/// Waits until every answered click is a row, and returns the number of rows.
async fn rows(engines: &Isolated, log: &Log) -> usize {
    let wanted: BTreeSet<&str> = log.answers.iter().map(|answer| &*answer.click_id).collect();
    eventually_within("every answered click is a row", ARRIVED, async || {
        let stored = click_ids(engines).await;
        match wanted.iter().filter(|id| !stored.contains(**id)).count() {
            0 => Ok(stored.len()),
            missing => Err(format!("{missing} are missing")),
        }
    })
    .await
}

impl Upgraded {
    /// Asserts that nothing was lost, and nothing counted or delivered without a click.
    ///
    /// # Panics
    /// When the assertion fails.
    pub fn is_complete(&self) {
        self.tally.is_exact();
        let Self { arrivals, unanswered, .. } = self;
        assert!(arrivals.missing.is_empty() && arrivals.wrong.is_empty(), "{self}");
        assert!(arrivals.strangers.len() as u64 <= *unanswered, "{self}");
        assert!(self.rows as u64 <= arrivals.answered as u64 + unanswered, "{self}");
        assert!(arrivals.unexplained.is_empty(), "{self}; such as {}", arrivals.unexplained[0]);
    }
}

impl fmt::Display for Upgraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replaced, tally, arrivals, rows, .. } = self;
        write!(f, "{replaced} programs replaced; {tally}; {rows} rows; {arrivals}")
    }
}
