//! More clicks than an endpoint can receive, beside another workspace with few clicks.

use std::fmt;
use std::time::Duration;

use devstack::process::Memory;

use super::{ANSWER, ARRIVED, latencies};
use crate::arrivals::{Arrivals, expected};
use crate::deployment::Deployment;
use crate::engines::Isolated;
use crate::eventually_within;
use crate::load::Load;
use crate::receiver::{Answer, Receiver, Request, first_of_each, most_at_once};

/// The number and rate of clicks.
#[derive(Debug, Clone, Copy)]
pub struct WebhookFlood {
    /// Minimum clicks for the slow endpoint while visitors also click in the other workspace.
    pub clicks: u32,
    /// Visitors.
    pub connections: u32,
    /// Clicks per second of all visitors together; without it, each clicks again after an answer.
    pub rate: Option<u32>,
}

/// Links, so that the clicks are in several partitions.
const LINKS: usize = 3;

/// Clicks per second of the other workspace.
const NEIGHBOURLY: u32 = 10;

/// Clicks for the slow endpoint after the last one of the other workspace.
const BEHIND: u64 = 300;

/// Maximum requests in flight to one endpoint.
const AT_ONCE: usize = 32;

/// Maximum memory of the dispatcher.
const MEMORY_MIB: u64 = 512;

/// The results of a flood.
#[derive(Debug)]
pub struct Flooded {
    /// The slow endpoint's deliveries.
    pub arrivals: Arrivals,
    /// Its maximum concurrent requests.
    pub at_once: usize,
    /// The other workspace's deliveries.
    pub neighbour: Arrivals,
    /// How many of the slow endpoint's deliveries arrived after the last of them.
    pub behind: usize,
    /// The other workspace's latencies from click to request: median, 99th percentile and maximum.
    pub latencies: [Duration; 3],
    /// The dispatcher's maximum memory.
    pub peak_mib: u64,
}

impl Flooded {
    /// Asserts that each delivery arrived within the limits, that only failed attempts were repeated, and that the
    /// other workspace did not wait for the flood.
    ///
    /// # Panics
    /// When the assertion fails.
    pub fn is_contained(&self) {
        self.arrivals.are_complete();
        self.neighbour.are_complete();
        assert!(self.at_once <= AT_ONCE, "{self}");
        assert!(self.behind > 0, "{self}");
        assert!(self.peak_mib <= MEMORY_MIB, "{self}");
    }
}

impl fmt::Display for Flooded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arrivals, at_once, neighbour, behind, latencies: [p50, p99, longest], peak_mib } = self;
        write!(
            f,
            "{arrivals}; at most {at_once} requests at once; the dispatcher had {peak_mib} MiB at most; the \
             neighbour: {neighbour}; p50 {p50:.0?}, p99 {p99:.0?}, longest {longest:.0?}, \
             {behind} of the others after them"
        )
    }
}

/// Lets visitors click more than an endpoint that answers after 50 ms can receive, and a few times in another
/// workspace.
///
/// # Panics
/// When a delivery never arrives.
pub async fn webhook_flood(engines: Isolated, plan: WebhookFlood) -> Flooded {
    let script =
        |request: &Request, _| if is_slow(request) { Answer::Late(ANSWER, 200) } else { Answer::Status(200) };
    let receiver = Receiver::start(script).await;
    let mut deployment = Deployment::start_on(engines, &[]).await;
    let slow = deployment.create_endpoint(&receiver.url("/slow"), &["click.created"]).await;
    let mut slugs = Vec::new();
    for _ in 0..LINKS {
        slugs.push(deployment.create_link().await["slug"].as_str().unwrap().to_owned());
    }
    deployment.key = deployment.create_account("business").await;
    let neighbour = deployment.create_endpoint(&receiver.url("/neighbour"), &["click.created"]).await;
    let theirs = deployment.create_link().await["slug"].as_str().unwrap().to_owned();
    // The links are read in order, so an edge that knows the last link knows all.
    deployment.edge_knows(&theirs).await;

    let edge = deployment.edge_address();
    let flood = Load::start(edge, &slugs, plan.connections, plan.rate);
    let few = Load::start(edge, &[theirs], 1, Some(NEIGHBOURLY));
    flood.answers(plan.clicks.into()).await;
    few.answers(1).await;
    let few = few.stop().await;
    few.is_complete();
    flood.answers(BEHIND).await;
    let flood = flood.stop().await;
    flood.is_complete();

    let text = |endpoint: &serde_json::Value, field: &str| endpoint[field].as_str().unwrap().to_owned();
    let wanted = [expected(&flood, &text(&slow, "id")).len(), expected(&few, &text(&neighbour, "id")).len()];
    let [all, theirs] = wanted;
    eventually_within("all deliveries of both workspaces arrive", ARRIVED, async || {
        let seen = [receiver.deliveries_of(is_slow), receiver.deliveries_of(|request| !is_slow(request))];
        if seen[0] >= all && seen[1] >= theirs { Ok(()) } else { Err((seen, wanted)) }
    })
    .await;
    deployment.no_delivery_waits(ARRIVED).await;
    let (slow_ones, others): (Vec<Request>, Vec<Request>) =
        receiver.requests().into_iter().partition(is_slow);
    let failed = deployment.failed_attempts().await;
    let first = first_of_each(&others);
    let last = first.iter().map(|request| request.at).max().unwrap();
    let behind = first_of_each(&slow_ones).iter().filter(|request| request.at > last).count();
    let compare = |log, endpoint, requests: &[Request]| {
        let [id, secret] = ["id", "secret"].map(|field| text(endpoint, field));
        Arrivals::of(log, &id, &secret, requests, &[], failed.clone())
    };
    Flooded {
        arrivals: compare(&flood, &slow, &slow_ones),
        at_once: most_at_once(&slow_ones),
        neighbour: compare(&few, &neighbour, &others),
        behind,
        latencies: latencies(first),
        peak_mib: Memory::of(deployment.dispatcher.pid().unwrap()).unwrap().peak >> 20,
    }
}

fn is_slow(request: &Request) -> bool {
    request.path == "/slow"
}
