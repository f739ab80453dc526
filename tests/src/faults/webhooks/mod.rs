//! Faults of webhook deliveries under load.
//!
//! All four programs run, visitors click, and every click goes to one endpoint. The visitors' own log of answered
//! click ids is the oracle: from it follows which deliveries must arrive, and under which ids.

mod flood;
mod freezes;
mod holes;
mod kills;
mod outages;
mod stops;
mod verify;

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use devstack::{Kind, Options, Server};

pub use flood::{Flooded, WebhookFlood, webhook_flood};
pub use freezes::{WebhookFreezes, webhook_freezes};
pub use holes::{Beside, WebhookHoles, webhook_holes};
pub use kills::{WebhookKills, webhook_kills};
pub use outages::{WebhookOutages, webhook_outages};
pub use stops::{WebhookStops, webhook_stops};
pub use verify::{Verified, WebhookVerify, webhook_verify};

use crate::arrivals::{Arrivals, Interruption, expected};
use crate::deployment::Deployment;
use crate::engines::{Isolated, isolated_on};
use crate::eventually;
use crate::load::{Load, Log};
use crate::receiver::{Answer, Receiver, Request};

/// How many links the visitors click on.
const LINKS: usize = 20;

/// How long the receiver takes to answer, so that there are requests in flight.
const ANSWER: Duration = Duration::from_millis(50);

/// Requests that have to come between two interruptions.
const SOME: usize = 50;

/// How long the edge may take to learn a link. A deadline for a broken system.
const LEARNED: Duration = Duration::from_secs(60);

/// How long deliveries may take that waited for an outage or for a killed dispatcher to end, on a busy machine.
const ARRIVED: Duration = Duration::from_secs(600);

/// Engines that belong to whoever started them, and may be stopped.
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
    /// Starts one of each, with data that goes when they are dropped.
    ///
    /// # Panics
    /// When one does not start.
    pub async fn start() -> Self {
        let own = async |kind: Kind| kind.start(Options::throw_away(kind.name()).unwrap()).await.unwrap();
        let (kafka, clickhouse, postgres) =
            tokio::join!(own(Kind::Kafka), own(Kind::ClickHouse), own(Kind::Postgres));
        Self { kafka, clickhouse, postgres }
    }

    /// Makes a corner of them.
    ///
    /// # Panics
    /// When an engine refuses.
    pub async fn isolated(&self) -> Isolated {
        isolated_on(self.kafka.url(), self.clickhouse.url(), self.postgres.url()).await
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
        let deployment = Deployment::start_on(engines, &[]).await;
        let endpoint = deployment.create_endpoint(url, events).await;
        let text = |field: &str| endpoint[field].as_str().unwrap().to_owned();
        let mut slugs = Vec::new();
        for _ in 0..LINKS {
            slugs.push(deployment.create_link().await["slug"].as_str().unwrap().to_owned());
        }
        // Published in order: who knows the last link knows all.
        knows(&deployment, &slugs[LINKS - 1]).await;
        let (endpoint, secret) = (text("id"), text("secret"));
        Self { deployment, endpoint, secret, slugs }
    }

    fn load(&self, connections: u32, rate: u32) -> Load {
        Load::start(self.deployment.edge_address(), &self.slugs, connections, Some(rate))
    }

    /// Waits until every click's delivery has arrived and none waits any more, and compares.
    async fn arrivals(&self, log: &Log, receiver: &Receiver, interruptions: &[Interruption]) -> Arrivals {
        let wanted = expected(log, &self.endpoint);
        eventually("every delivery arrives", ARRIVED, async || {
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
        eventually("no delivery waits", ARRIVED, async || {
            let mut postgres = self.deployment.engines.postgres().await;
            let waiting: i64 = sqlx::query_scalar("SELECT count(*) FROM webhook_deliveries")
                .fetch_one(&mut postgres)
                .await
                .unwrap();
            if waiting == 0 { Ok(()) } else { Err(waiting) }
        })
        .await;
        let logged = self.failed_attempts().await;
        Arrivals::of(log, &self.endpoint, &self.secret, &receiver.requests(), interruptions, logged)
    }

    /// How many attempts of each delivery the failure log has.
    async fn failed_attempts(&self) -> HashMap<String, usize> {
        let rows: Vec<(String, i64)> =
            sqlx::query_as("SELECT delivery_id::text, count(*) FROM webhook_failures GROUP BY 1")
                .fetch_all(&mut self.deployment.engines.postgres().await)
                .await
                .unwrap();
        rows.into_iter().map(|(delivery, count)| (delivery, count as usize)).collect()
    }
}

/// Waits until the edge knows a link.
async fn knows(deployment: &Deployment, slug: &str) {
    eventually("the edge knows the link", LEARNED, async || match deployment.head(slug).await {
        Ok(302) => Ok(()),
        other => Err(other),
    })
    .await;
}

/// From clicks to their requests: the median, the 99th percentile and the longest.
fn latencies<'a>(requests: impl IntoIterator<Item = &'a Request>) -> [Duration; 3] {
    let latency = |request: &Request| request.at.duration_since(clicked_at(request)).unwrap_or_default();
    let mut latencies: Vec<Duration> = requests.into_iter().map(latency).collect();
    latencies.sort_unstable();
    [50, 99, 100].map(|percent| {
        let rank = (latencies.len() * percent).div_ceil(100).max(1);
        latencies.get(rank - 1).copied().unwrap_or_default()
    })
}

/// When the edge answered the click that a request tells of.
fn clicked_at(request: &Request) -> SystemTime {
    let at = request.json()["data"]["occurred_at"].as_str().unwrap().to_owned();
    at.parse::<DateTime<Utc>>().unwrap().into()
}

/// A receiver that takes everything, a moment later.
async fn receiver() -> Receiver {
    Receiver::start(|_, _| Answer::Late(ANSWER, 200)).await
}

/// Waits until so many more requests have come: what happens to idle dispatchers shows nothing.
async fn delivering(receiver: &Receiver, more: usize) {
    let wanted = receiver.count() + more;
    eventually("deliveries go on", ARRIVED, async || match receiver.count() {
        count if count >= wanted => Ok(()),
        count => Err(format!("{count} of {wanted}")),
    })
    .await;
}
