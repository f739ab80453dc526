//! Faults of webhook deliveries under load.
//!
//! All four programs run, visitors click, and one endpoint gets every click. The visitors' log of answered click ids is
//! the oracle: it determines the deliveries that must arrive, and their ids.

mod flood;
mod freezes;
mod holes;
mod kills;
mod outages;
mod promotion;
mod stops;
mod upgrade;
mod verify;

use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use devstack::{Kind, Options, Server, postgres};

pub use flood::{Flooded, WebhookFlood, webhook_flood};
pub use freezes::{WebhookFreezes, webhook_freezes};
pub use holes::{Beside, WebhookHoles, webhook_holes};
pub use kills::{WebhookKills, webhook_kills};
pub use outages::{WebhookOutages, webhook_outages};
pub use promotion::{Promotion, promotion};
pub use stops::{WebhookStops, webhook_stops};
pub use upgrade::{Upgrade, Upgraded, upgrade};
pub use verify::{Verified, WebhookVerify, webhook_verify};

use super::progress;
use crate::arrivals::{Arrivals, Interruption, expected};
use crate::deployment::Deployment;
use crate::engines::{Isolated, empty_on, isolated_on};
use crate::eventually_within;
use crate::load::{Load, Log};
use crate::receiver::{Answer, Receiver, Request};

/// The number of links.
const LINKS: usize = 20;

/// The receiver's delay, so that requests are in flight.
const ANSWER: Duration = Duration::from_millis(50);

/// Minimum requests between two interruptions.
const SOME: usize = 50;

/// How long deliveries may take after an outage or a kill, on a busy machine.
const ARRIVED: Duration = Duration::from_secs(600);

/// Engines that a test may stop.
#[derive(Debug)]
pub struct OwnEngines {
    /// Kafka.
    pub kafka: Server,
    /// ClickHouse.
    pub clickhouse: Server,
    /// Postgres.
    pub postgres: Server,
}

impl OwnEngines {
    /// Starts one of each; dropping them removes their data.
    ///
    /// # Panics
    /// When one does not start.
    pub async fn start() -> Self {
        let own = async |kind: Kind| kind.start(Options::throw_away(kind.name()).unwrap()).await.unwrap();
        let (kafka, clickhouse, postgres) =
            tokio::join!(own(Kind::Kafka), own(Kind::ClickHouse), own(Kind::Postgres));
        Self { kafka, clickhouse, postgres }
    }

    /// The same with a standby of Postgres, which is not synchronous.
    ///
    /// # Panics
    /// When one does not start.
    pub async fn start_with_standby() -> (Self, Server) {
        let own = async |kind: Kind| kind.start(Options::throw_away(kind.name()).unwrap()).await.unwrap();
        let options = || Options::throw_away(Kind::Postgres.name()).unwrap();
        let of_primary = options();
        let folder = of_primary.folder.clone();
        let (kafka, clickhouse, postgres) = tokio::join!(own(Kind::Kafka), own(Kind::ClickHouse), async {
            postgres::start(of_primary).await.unwrap()
        });
        let standby = postgres::start_standby(&postgres, &folder, options()).await.unwrap();
        (Self { kafka, clickhouse, postgres }, standby)
    }

    /// Creates isolated parts of them.
    ///
    /// # Panics
    /// When an engine rejects it.
    pub async fn isolated(&self) -> Isolated {
        isolated_on(self.kafka.url(), self.clickhouse.url(), self.postgres.url()).await
    }

    /// Creates isolated parts of them without tables and topics.
    ///
    /// # Panics
    /// When an engine rejects it.
    pub async fn empty(&self) -> Isolated {
        empty_on(self.kafka.url(), self.clickhouse.url(), self.postgres.url()).await
    }
}

/// A deployment with an endpoint, and links that the edge knows.
struct Stage {
    deployment: Deployment,
    endpoint: String,
    secret: String,
    slugs: Vec<String>,
}

impl Stage {
    /// Starts the programs on these engines, with an endpoint at this URL for these events.
    async fn new(engines: Isolated, url: &str, events: &[&str]) -> Self {
        Self::on(Deployment::start_on(engines, &[]).await, url, events).await
    }

    /// The same on programs that run.
    async fn on(deployment: Deployment, url: &str, events: &[&str]) -> Self {
        let endpoint = deployment.create_endpoint(url, events).await;
        let text = |field: &str| endpoint[field].as_str().unwrap().to_owned();
        let mut slugs = Vec::new();
        for _ in 0..LINKS {
            slugs.push(deployment.create_link().await["slug"].as_str().unwrap().to_owned());
        }
        // The links are read in order, so an edge that knows the last link knows all.
        deployment.edge_knows(&slugs[LINKS - 1]).await;
        let (endpoint, secret) = (text("id"), text("secret"));
        Self { deployment, endpoint, secret, slugs }
    }

    fn load(&self, connections: u32, rate: u32) -> Load {
        Load::start(self.deployment.edge_address(), &self.slugs, connections, Some(rate))
    }

    /// Waits until every delivery has arrived and none is waiting, and compares.
    async fn arrivals(&self, log: &Log, receiver: &Receiver, interruptions: &[Interruption]) -> Arrivals {
        let wanted = expected(log, &self.endpoint);
        eventually_within("every delivery arrives", ARRIVED, async || {
            if receiver.count() < wanted.len() {
                return Err(format!("{} requests for {} deliveries", receiver.count(), wanted.len()));
            }
            let requests = receiver.requests();
            let arrived = requests.iter().map(|request| request.delivery().to_owned()).collect();
            match wanted.difference(&arrived).count() {
                0 => Ok(()),
                missing => Err(format!("{missing} of {} deliveries are missing", wanted.len())),
            }
        })
        .await;
        self.deployment.no_delivery_waits(ARRIVED).await;
        let logged = self.deployment.failed_attempts().await;
        Arrivals::of(log, &self.endpoint, &self.secret, &receiver.requests(), interruptions, logged)
    }
}

/// Returns latencies from click to request: median, 99th percentile and maximum.
fn latencies<'a>(requests: impl IntoIterator<Item = &'a Request>) -> [Duration; 3] {
    let latency = |request: &Request| request.at.duration_since(clicked_at(request)).unwrap_or_default();
    let mut latencies: Vec<Duration> = requests.into_iter().map(latency).collect();
    latencies.sort_unstable();
    [50, 99, 100].map(|percent| {
        let rank = (latencies.len() * percent).div_ceil(100).max(1);
        latencies.get(rank - 1).copied().unwrap_or_default()
    })
}

/// Returns when the edge answered the click of a request.
fn clicked_at(request: &Request) -> SystemTime {
    let at = request.json()["data"]["occurred_at"].as_str().unwrap().to_owned();
    at.parse::<DateTime<Utc>>().unwrap().into()
}

/// Reports progress after a step, with the numbers of clicks and requests.
fn report(step: &str, load: &Load, receiver: &Receiver) {
    progress(&format!("{step}: {} clicks answered, {} requests", load.answered(), receiver.count()));
}

/// Starts a receiver that accepts every request after a delay.
async fn receiver() -> Receiver {
    Receiver::start(|_, _| Answer::Late(ANSWER, 200)).await
}

/// Waits until this many more requests have arrived, because faults of idle dispatchers prove nothing.
async fn delivering(receiver: &Receiver, more: usize) {
    let wanted = receiver.count() + more;
    eventually_within("deliveries continue", ARRIVED, async || match receiver.count() {
        count if count >= wanted => Ok(()),
        count => Err(format!("{count} of {wanted}")),
    })
    .await;
}
