//! Endpoints that never answer ("black holes"), beside as many that do.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, SystemTime};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::{ARRIVED, clicked_at, latencies};
use crate::arrivals::expected;
use crate::deployment::Deployment;
use crate::engines::Isolated;
use crate::eventually_within;
use crate::load::Load;
use crate::receiver::{Answer, Receiver, Request, first_of_each, most_at_once, only_failures_are_repeated};

/// The number of endpoints and the load.
#[derive(Debug, Clone, Copy)]
pub struct WebhookHoles {
    /// Workspaces.
    pub workspaces: u32,
    /// Black holes of each workspace, and as many endpoints that answer.
    pub each: u32,
    /// Minimum clicks in each workspace.
    pub clicks: u32,
    /// Clicks per second in each workspace.
    pub rate: u32,
}

/// The results of the endpoints that answer.
#[derive(Debug)]
pub struct Beside {
    /// Deliveries to endpoints that answer.
    pub deliveries: usize,
    /// Those that arrived only after the end of a request to a black hole that began after their click.
    pub late: Vec<String>,
    /// Latencies from click to request: median, 99th percentile and maximum.
    pub latencies: [Duration; 3],
    /// The maximum concurrent requests to black holes.
    pub open: usize,
    /// Deliveries to black holes that were waiting when all others had arrived.
    pub waiting: usize,
}

impl Beside {
    /// Asserts that no delivery waited for a black hole, although more deliveries than permits were waiting for black
    /// holes.
    ///
    /// # Panics
    /// When the assertion fails.
    pub fn no_delivery_waited(&self) {
        assert!(self.late.is_empty(), "{self}; such as {}", self.late[0]);
        assert!(
            self.open > 0 && self.waiting > self.open,
            "{self}: too few deliveries waited for the black holes"
        );
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { deliveries, late, latencies: [p50, p99, longest], open, waiting } = self;
        write!(
            f,
            "{deliveries} deliveries to endpoints that answer: p50 {p50:.0?}, p99 {p99:.0?}, longest {longest:.0?}; \
             {} waited for the timeout of a black hole. Black holes had {open} requests at once at most, and {waiting} \
             deliveries waiting",
            late.len()
        )
    }
}

/// A workspace with its link and the ids of its endpoints that answer.
struct Workspace {
    slug: String,
    answering: Vec<String>,
}

/// Lets visitors click in workspaces in which half of the endpoints never answer.
///
/// # Panics
/// When a delivery to an endpoint that answers never arrives, or is repeated without a failed attempt.
pub async fn webhook_holes(engines: Isolated, plan: WebhookHoles) -> Beside {
    // Each request to a black hole keeps a connection open.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let script = |request: &Request, _| if is_hole(request) { Answer::Silence } else { Answer::Status(200) };
    let receiver = Receiver::start(script).await;
    let mut deployment = Deployment::start_on(engines, &[]).await;
    let mut workspaces = Vec::new();
    for _ in 0..plan.workspaces {
        workspaces.push(workspace(&mut deployment, &receiver, plan.each).await);
    }
    // The links are read in order, so an edge that knows the last link knows all.
    deployment.edge_knows(&workspaces[workspaces.len() - 1].slug).await;

    // With the first request, the dispatcher learns which endpoints answer.
    for workspace in &workspaces {
        deployment.click(&workspace.slug, "198.51.100.7").await.unwrap();
    }
    let known = (plan.workspaces * plan.each) as usize;
    arrived(&receiver, known).await;
    let loads: Vec<Load> = workspaces
        .iter()
        .map(|one| {
            Load::start(deployment.edge_address(), std::slice::from_ref(&one.slug), 2, Some(plan.rate))
        })
        .collect();
    for load in &loads {
        load.answers(u64::from(plan.clicks).saturating_sub(load.answered())).await;
    }
    let mut wanted = BTreeSet::new();
    for (load, workspace) in loads.into_iter().zip(&workspaces) {
        let log = load.stop().await;
        log.is_complete();
        wanted.extend(workspace.answering.iter().flat_map(|endpoint| expected(&log, endpoint)));
    }
    arrived(&receiver, known + wanted.len()).await;
    let waiting = deployment.waiting_deliveries().await;

    let requests = receiver.requests();
    let (holes, others): (Vec<&Request>, Vec<&Request>) = requests.iter().partition(|one| is_hole(one));
    only_failures_are_repeated(others.iter().copied(), &deployment.failed_attempts().await);
    let first = first_of_each(others);
    let is_of_load = |request: &&Request| wanted.contains(request.delivery());
    let of_load: Vec<&Request> = first.iter().copied().filter(is_of_load).collect();
    assert_eq!(
        (of_load.len(), first.len()),
        (wanted.len(), known + wanted.len()),
        "no other delivery arrives"
    );
    let given_up = GivenUp::of(&holes);
    let late = of_load.iter().filter(|one| given_up.since(clicked_at(one)).is_some_and(|at| at <= one.at));
    Beside {
        deliveries: wanted.len(),
        late: late.map(|request| request.delivery().to_owned()).collect(),
        latencies: latencies(of_load.iter().copied()),
        open: most_at_once(holes.iter().copied()),
        waiting: waiting.try_into().unwrap(),
    }
}

async fn workspace(deployment: &mut Deployment, receiver: &Receiver, each: u32) -> Workspace {
    deployment.key = deployment.create_account("business").await;
    let mut answering = Vec::new();
    for _ in 0..each {
        deployment.create_endpoint(&receiver.url("/hole"), &["click.created"]).await;
        let endpoint = deployment.create_endpoint(&receiver.url("/alive"), &["click.created"]).await;
        answering.push(endpoint["id"].as_str().unwrap().to_owned());
    }
    let slug = deployment.create_link().await["slug"].as_str().unwrap().to_owned();
    Workspace { slug, answering }
}

fn is_hole(request: &Request) -> bool {
    request.path == "/hole"
}

async fn arrived(receiver: &Receiver, wanted: usize) {
    eventually_within("every delivery beside the black holes arrives", ARRIVED, async || {
        match receiver.deliveries_of(|request| !is_hole(request)) {
            count if count >= wanted => Ok(()),
            count => Err(format!("{count} of {wanted}")),
        }
    })
    .await;
}

/// The starts of requests to black holes, ascending, each with the earliest end of the requests that began then or
/// later.
struct GivenUp(Vec<(SystemTime, Option<SystemTime>)>);

impl GivenUp {
    fn of(holes: &[&Request]) -> Self {
        let mut ends: Vec<_> = holes.iter().map(|request| (request.at, request.ended_at())).collect();
        ends.sort_unstable();
        let mut first = None;
        for (_, end) in ends.iter_mut().rev() {
            first = [first, *end].into_iter().flatten().min();
            *end = first;
        }
        Self(ends)
    }

    /// Returns the earliest end of the requests that began at that time or later.
    fn since(&self, time: SystemTime) -> Option<SystemTime> {
        let place = self.0.partition_point(|(began, _)| *began < time);
        self.0.get(place).and_then(|(_, end)| *end)
    }
}
