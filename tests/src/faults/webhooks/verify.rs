//! Verifies deliveries with the documentation's example in Python.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use devstack::ports;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::task::JoinSet;

use super::super::progress;
use super::{ARRIVED, LINKS, Stage};
use crate::arrivals::expected;
use crate::engines::Isolated;
use crate::eventually_within;
use crate::receiver::start_example;

/// Links that are created, changed and deleted besides the clicks.
const CHANGED: usize = 20;

/// The number and rate of events.
#[derive(Debug, Clone, Copy)]
pub struct WebhookVerify {
    /// Minimum clicks.
    pub events: u32,
    /// Visitors.
    pub connections: u32,
    /// Clicks per second of all visitors together.
    pub rate: u32,
}

/// The results of the example.
#[derive(Debug)]
pub struct Verified {
    /// Deliveries that must arrive.
    pub deliveries: usize,
    /// Requests whose signature it accepted.
    pub accepted: usize,
    /// Requests whose signature it rejected.
    pub rejected: usize,
}

impl Verified {
    /// Asserts that each delivery arrived once and was accepted.
    ///
    /// # Panics
    /// When the assertion fails.
    pub fn is_exact(&self) {
        assert!(self.rejected == 0 && self.accepted == self.deliveries, "{self}");
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { deliveries, accepted, rejected } = self;
        write!(
            f,
            "{deliveries} deliveries: the example in Python accepted {accepted} requests and rejected {rejected}"
        )
    }
}

/// Sends clicks and link events to the example receiver, which checks each signature.
///
/// # Panics
/// When a delivery never arrives, or there is no `python3`.
pub async fn webhook_verify(engines: Isolated, plan: WebhookVerify) -> Verified {
    // The example needs the secret, and the endpoint needs the example's address. Events from before the example
    // listens are retried.
    let port = ports::free().unwrap();
    let url = format!("http://127.0.0.1:{port}/in");
    let all = ["click.created", "link.created", "link.updated", "link.deleted"];
    let stage = Stage::new(engines, &url, &all).await;
    let example = Example::start(port, &stage.secret).await;

    let load = stage.load(plan.connections, plan.rate);
    for _ in 0..CHANGED {
        let link = stage.deployment.create_link().await;
        let path = format!("/api/links/{}", link["id"].as_str().unwrap());
        let name = json!({"name": "Café \"☕\" </script> \\ \u{1F980}"});
        assert_eq!(stage.deployment.send(Method::PATCH, &path, Some(&name)).await.0, 200);
        assert_eq!(stage.deployment.send(Method::DELETE, &path, None).await.0, 204);
    }
    load.answers(u64::from(plan.events).saturating_sub(load.answered())).await;
    let log = load.stop().await;
    log.is_complete();

    let clicks = expected(&log, &stage.endpoint);
    let deliveries = clicks.len() + LINKS + 3 * CHANGED;
    progress(&format!("{deliveries} events are on their way; {} requests so far", example.verdicts().len()));
    eventually_within("every delivery arrives", ARRIVED, async || {
        let verdicts = example.verdicts();
        let missing = clicks.iter().filter(|id| !verdicts.contains_key(*id)).count();
        if missing == 0 && verdicts.len() >= deliveries { Ok(()) } else { Err((missing, verdicts.len())) }
    })
    .await;
    let verdicts = example.verdicts();
    assert_eq!(verdicts.len(), deliveries, "unexpected deliveries");
    let accepted = verdicts.values().map(|verdict| verdict.accepted).sum();
    let rejected = verdicts.values().map(|verdict| verdict.rejected).sum();
    Verified { deliveries, accepted, rejected }
}

/// How often a delivery was accepted and rejected.
#[derive(Debug, Clone, Copy, Default)]
struct Verdict {
    accepted: usize,
    rejected: usize,
}

/// The running example and its output.
struct Example {
    verdicts: Arc<Mutex<HashMap<String, Verdict>>>,
    _reader: JoinSet<()>,
    _process: Child,
}

impl Example {
    async fn start(port: u16, secret: &str) -> Self {
        let (mut process, _) = start_example(port, secret, &["--json"]).await;
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let verdicts = Arc::new(Mutex::new(HashMap::<String, Verdict>::new()));
        let seen = Arc::clone(&verdicts);
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            while let Some(line) = lines.next_line().await.unwrap() {
                let line: Value = serde_json::from_str(&line).unwrap();
                let delivery = line["delivery"].as_str().unwrap();
                assert_eq!(line["body"]["id"], line["delivery"]);
                let mut seen = seen.lock().unwrap();
                let verdict = seen.entry(delivery.to_owned()).or_default();
                *(if line["verified"] == true { &mut verdict.accepted } else { &mut verdict.rejected }) += 1;
            }
        });
        Self { verdicts, _reader: reader, _process: process }
    }

    /// Returns the verdicts on all deliveries so far.
    fn verdicts(&self) -> HashMap<String, Verdict> {
        self.verdicts.lock().unwrap().clone()
    }
}
