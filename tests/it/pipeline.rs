//! The whole path of a click, a link, a conversion and a webhook.

use std::collections::BTreeSet;

use schemas::topic;
use tests::deployment::{Deployment, click_id};
use tests::eventually;
use tests::log::records;
use tests::receiver::{Answer, Receiver};

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
    let mut requests = receiver.requests();
    assert!(requests.iter().all(|request| request.is_signed_with(secret)));
    let failed: i64 = sqlx::query_scalar("SELECT count(*) FROM webhook_failures")
        .fetch_one(&mut deployment.engines.postgres().await)
        .await
        .unwrap();
    assert!(requests.len() as i64 <= 1_010 + failed, "only failed attempts are made again");
    let mut seen = BTreeSet::new();
    requests.retain(|request| seen.insert(request.delivery().to_owned()));
    assert_eq!(requests.len(), 1_010);
    let bodies: Vec<serde_json::Value> = requests.iter().map(|request| request.json()).collect();
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

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_link_redirects_to_its_new_destination_and_a_deleted_one_is_gone() {
    let deployment = Deployment::start().await;
    let link = deployment.create_link().await;
    let (id, slug) = (link["id"].as_str().unwrap(), link["slug"].as_str().unwrap());
    let leads_to = async |wanted: &str| {
        eventually("the edge follows", async || {
            let answer = deployment.click(slug, "198.51.100.1").await.unwrap();
            let status = answer.status().as_u16();
            let location = answer.headers().get("location").map(|value| value.to_str().unwrap().to_owned());
            let there = match &location {
                Some(location) => location.starts_with(wanted),
                None => status == 404 && wanted.is_empty(),
            };
            if there { Ok(()) } else { Err((status, location)) }
        })
        .await;
    };
    leads_to("https://example.com/").await;
    let path = format!("/api/links/{id}");
    let body = serde_json::json!({ "destination": "https://example.org/new" });
    assert_eq!(deployment.send(reqwest::Method::PATCH, &path, Some(&body)).await.0, 200);
    leads_to("https://example.org/new").await;
    assert_eq!(deployment.send(reqwest::Method::DELETE, &path, None).await.0, 204);
    leads_to("").await;
    assert_eq!(deployment.send(reqwest::Method::GET, &path, None).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_needs_no_other_process() {
    let deployment = Deployment::start().await;
    let mut traffic = Traffic::on_links(&deployment, 2, 10).await;
    for service in [&deployment.processor, &deployment.api, &deployment.dispatcher] {
        service.kill().await;
    }
    for _ in 0..20 {
        assert!(traffic.click(&deployment).await);
    }
    for service in [&deployment.processor, &deployment.api, &deployment.dispatcher] {
        service.start().await.unwrap();
    }
    traffic.is_counted(&deployment).await;
    let answer = deployment.click("no-such-slug", "198.51.100.1").await.unwrap();
    assert_eq!(answer.status(), 404);
    let slug = deployment.create_link().await["slug"].as_str().unwrap().to_owned();
    eventually("a link made after the outage redirects", async || {
        let answer = deployment.click(&slug, "198.51.100.1").await.unwrap();
        if answer.status() == 302 { Ok(click_id(&answer)) } else { Err(answer.status()) }
    })
    .await;
}
