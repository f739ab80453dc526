//! kill -9 of the edge under load: every answered click is counted and delivered.

use std::collections::BTreeSet;
use std::time::Duration;

use tests::deployment::Deployment;
use tests::eventually;
use tests::receiver::{Answer, Receiver};

use crate::traffic::Traffic;

/// Kills of the processor are in `counts_faults`, of the dispatcher in `webhooks_faults`, of the API in `edge_outages`.
#[tokio::test(flavor = "multi_thread")]
async fn every_answered_click_is_counted_once_and_delivered_when_the_edge_is_killed() {
    let deployment = Deployment::start().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let endpoint = deployment.create_endpoint(&receiver.url("/in"), &["click.created"]).await;
    let secret = endpoint["secret"].as_str().unwrap();
    let mut traffic = Traffic::on_links(&deployment, 10, 100).await;

    let edge = &deployment.ingest;
    for round in 0..4 {
        if round > 0 {
            // Clicks continue, so the next request meets a dead or starting program.
            edge.kill().await;
            for _ in 0..20 {
                traffic.click(&deployment).await;
            }
            edge.start().await.unwrap();
        }
        let mut answered = 0;
        while answered < 235 {
            if traffic.click(&deployment).await {
                answered += 1;
            } else {
                // An edge that is ready may still be loading its links.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    assert!(traffic.answered() >= 940);
    traffic.is_counted(&deployment).await;

    let click_ids = traffic.click_ids();
    eventually("every answered click is delivered", async || {
        let delivered = delivered(&receiver);
        let missing = click_ids.iter().filter(|id| !delivered.contains(**id)).count();
        if missing == 0 { Ok(()) } else { Err(missing) }
    })
    .await;
    let requests = receiver.requests();
    assert!(requests.iter().all(|request| request.is_signed_with(secret)));
    // A repeat after a crash carries the same delivery id.
    let mut ids: BTreeSet<(String, String)> = BTreeSet::new();
    for request in &requests {
        let body = request.json();
        ids.insert((body["data"]["click_id"].as_str().unwrap().to_owned(), request.delivery().to_owned()));
    }
    let clicks: BTreeSet<&String> = ids.iter().map(|(click, _)| click).collect();
    assert_eq!(clicks.len(), ids.len(), "no event has two delivery ids");
}

fn delivered(receiver: &Receiver) -> BTreeSet<String> {
    receiver
        .requests()
        .iter()
        .map(|request| request.json()["data"]["click_id"].as_str().unwrap().to_owned())
        .collect()
}
