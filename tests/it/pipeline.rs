//! Clicks of many visitors, from the edge to counts and webhooks.

use std::collections::BTreeSet;

use schemas::topic;
use tests::deployment::Deployment;
use tests::eventually;
use tests::log::records;
use tests::receiver::{Answer, Receiver, first_of_each, only_failures_are_repeated};

use crate::traffic::Traffic;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clicks_of_a_hundred_visitors_are_counted_and_delivered_once() {
    let deployment = Deployment::start().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let endpoint = deployment.create_endpoint(&receiver.url("/in"), &["click.created", "link.created"]).await;
    let secret = endpoint["secret"].as_str().unwrap();

    let mut traffic = Traffic::on_links(&deployment, 10, 100).await;
    for _ in 0..1_000 {
        assert!(traffic.click(&deployment).await);
    }
    traffic.is_counted(&deployment).await;

    eventually("every event arrives", async || match receiver.deliveries() {
        1_010.. => Ok(()),
        arrived => Err(arrived),
    })
    .await;
    let requests = receiver.requests();
    assert!(requests.iter().all(|request| request.is_signed_with(secret)));
    only_failures_are_repeated(&requests, &deployment.failed_attempts().await);
    let first = first_of_each(&requests);
    assert_eq!(first.len(), 1_010);
    let bodies: Vec<serde_json::Value> = first.iter().map(|request| request.json()).collect();
    let delivered: BTreeSet<&str> =
        bodies.iter().filter_map(|body| body["data"]["click_id"].as_str()).collect();
    assert_eq!(delivered, traffic.click_ids());
    assert_eq!(bodies.iter().filter(|body| body["event"] == "link.created").count(), 10);

    let clicks = records(&deployment.engines, topic::CLICKS);
    assert_eq!(clicks.len(), 1_000);
    for record in &clicks {
        let click = record.json();
        assert!(traffic.click_ids().contains(click["click_id"].as_str().unwrap()));
        assert!(!String::from_utf8_lossy(&record.value).contains("198.51."), "no address leaves the edge");
    }
    for service in ["ingest", "processor", "api", "dispatcher"] {
        assert!(!deployment.log(service).contains("198.51."), "no address is in {service}'s log");
        assert!(!deployment.log(service).contains(secret), "no secret is in {service}'s log");
    }
}
