//! Changes between two attempts apply to the next one.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tests::deployment::Deployment;
use tests::eventually;
use tests::receiver::{Answer, Receiver, Request};

use crate::traffic::Traffic;

/// The shortest wait after a first failed attempt.
const WAIT: Duration = Duration::from_secs(10);

/// The longest wait, with the random tenth and the delay of a killed dispatcher and a busy machine.
const LATEST: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread")]
async fn changes_between_attempts_apply_to_the_next_one() {
    let deployment = Deployment::start().await;
    let receiver = Receiver::start(|_, number| Answer::Status(if number == 0 { 500 } else { 200 })).await;
    let mut traffic = Traffic::on_links(&deployment, 1, 1).await;
    let paths = ["/kept", "/rotated", "/moved", "/deleted"];
    let mut endpoints = Vec::new();
    for path in paths {
        endpoints.push(deployment.create_endpoint(&receiver.url(path), &["click.created"]).await);
    }
    let [kept, rotated, moved, deleted] = endpoints.as_slice() else { unreachable!() };
    let api = |endpoint: &Value| format!("/api/webhooks/{}", endpoint["id"].as_str().unwrap());
    assert!(traffic.click(&deployment).await);
    for endpoint in &endpoints {
        eventually("the first attempt is in the log", async || {
            let (_, log) = deployment.send(Method::GET, &format!("{}/failures", api(endpoint)), None).await;
            match log["failures"][0]["status_code"].as_u64() {
                Some(500) => Ok(()),
                _ => Err(log),
            }
        })
        .await;
    }

    let (status, answer) =
        deployment.send(Method::POST, &format!("{}/rotate-secret", api(rotated)), None).await;
    assert_eq!(status, 200, "{answer}");
    let new_url = json!({ "url": receiver.url("/moved/here") });
    assert_eq!(deployment.send(Method::PATCH, &api(moved), Some(&new_url)).await.0, 200);
    assert_eq!(deployment.send(Method::DELETE, &api(deleted), None).await.0, 204);
    deployment.dispatcher.kill().await;
    deployment.dispatcher.start().await.unwrap();

    // The script counts requests by path, so the new URL fails once as well.
    for (path, count) in [("/kept", 2), ("/rotated", 2), ("/moved/here", 2)] {
        eventually("the next attempt is made", async || match receiver.requests_to(path).len() {
            seen if seen == count => Ok(()),
            seen => Err((path, seen)),
        })
        .await;
    }
    eventually("nothing waits", async || {
        let waiting: i64 = sqlx::query_scalar("SELECT count(*) FROM webhook_deliveries")
            .fetch_one(&mut deployment.engines.postgres().await)
            .await
            .unwrap();
        if waiting == 0 { Ok(()) } else { Err(waiting) }
    })
    .await;
    for (path, count) in [("/kept", 2), ("/rotated", 2), ("/moved", 1), ("/moved/here", 2), ("/deleted", 1)] {
        assert_eq!(receiver.requests_to(path).len(), count, "{path}");
    }
    let tries = |path: &str| receiver.requests_to(path);
    let first = tries("/kept").remove(0);
    let gap = tries("/kept")[1].at.duration_since(first.at).unwrap();
    assert!((WAIT..LATEST).contains(&gap), "on schedule despite the kill: {gap:?}");
    assert!(tries("/kept").iter().all(|request| request.is_signed_with(text(&kept["secret"]))));
    assert_eq!(tries("/moved")[0].delivery(), tries("/moved/here")[0].delivery());

    // During a rotation the new secret signs first, then the former one.
    let [before, after] = tries("/rotated").try_into().unwrap();
    assert!(before.is_signed_with(text(&rotated["secret"])));
    let [new, former] = signatures(&after).try_into().unwrap();
    assert!(new.is_signed_with(text(&answer["secret"])) && former.is_signed_with(text(&rotated["secret"])));
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Returns copies of the request, each with only one of its signatures.
fn signatures(request: &Request) -> Vec<Request> {
    let header = request.header("x-service-signature").to_owned();
    let mut parts = header.split(',');
    let t = parts.next().unwrap();
    parts
        .map(|v1| {
            let mut alone = request.clone();
            alone.headers.insert("x-service-signature", format!("{t},{v1}").parse().unwrap());
            alone
        })
        .collect()
}
