//! Changes between two attempts apply to the next one.

use chrono::{DateTime, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use tests::deployment::Deployment;
use tests::receiver::{Answer, Receiver};
use tests::{PATIENCE, eventually};

use crate::traffic::Traffic;

#[tokio::test(flavor = "multi_thread")]
async fn changes_between_attempts_apply_to_the_next_one() {
    let deployment = Deployment::start().await;
    // After its first attempt, a delivery waits for the longest time that a receiver may request.
    let receiver = Receiver::start(|request, number| {
        if number == 0 && request.path != "/moved/here" {
            Answer::Full(503, ("retry-after", "900".to_owned()), vec![])
        } else {
            Answer::Status(200)
        }
    })
    .await;
    let mut traffic = Traffic::on_links(&deployment, 1, 1).await;
    let paths = ["/kept", "/rotated", "/moved", "/deleted"];
    let mut endpoints = Vec::new();
    for path in paths {
        endpoints.push(deployment.create_endpoint(&receiver.url(path), &["click.created"]).await);
    }
    let [kept, rotated, moved, deleted] = endpoints.as_slice() else { unreachable!() };
    let api = |endpoint: &Value| format!("/api/webhooks/{}", endpoint["id"].as_str().unwrap());
    assert!(traffic.click(&deployment).await);
    let before = eventually("every delivery waits for its next attempt", async || {
        let waiting = waiting(&deployment).await;
        if waiting.len() == paths.len() { Ok(waiting) } else { Err(waiting) }
    })
    .await;

    let (status, answer) =
        deployment.send(Method::POST, &format!("{}/rotate-secret", api(rotated)), None).await;
    assert_eq!(status, 200, "{answer}");
    let new_url = json!({ "url": receiver.url("/moved/here") });
    assert_eq!(deployment.send(Method::PATCH, &api(moved), Some(&new_url)).await.0, 200);
    assert_eq!(deployment.send(Method::DELETE, &api(deleted), None).await.0, 204);
    let killed = newest_dispatcher(&deployment).await;
    deployment.dispatcher.kill().await;
    deployment.dispatcher.start().await.unwrap();
    eventually("the new dispatcher has removed the killed one", async || {
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM dispatchers WHERE number <= $1")
            .bind(killed)
            .fetch_one(&mut deployment.engines.postgres().await)
            .await
            .unwrap();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;

    // The kill changes no schedule. The delivery of the deleted endpoint may be gone.
    let after = waiting(&deployment).await;
    assert!(after.len() >= 3 && after.iter().all(|one| before.contains(one)), "{before:?}, then {after:?}");
    sqlx::query("UPDATE webhook_deliveries SET due_at = now()")
        .execute(&mut deployment.engines.postgres().await)
        .await
        .unwrap();
    for (path, count) in [("/kept", 2), ("/rotated", 2), ("/moved/here", 1)] {
        receiver.receives_at(path, count).await;
    }
    deployment.no_delivery_waits(PATIENCE).await;
    for (path, count) in [("/kept", 2), ("/rotated", 2), ("/moved", 1), ("/moved/here", 1), ("/deleted", 1)] {
        assert_eq!(receiver.requests_to(path).len(), count, "{path}");
    }
    let tries = |path: &str| receiver.requests_to(path);
    assert!(tries("/kept").iter().all(|request| request.is_signed_with(text(&kept["secret"]))));
    assert_eq!(tries("/moved")[0].delivery(), tries("/moved/here")[0].delivery());

    // During a rotation the new secret signs first, then the former one.
    let [before, after] = tries("/rotated").try_into().unwrap();
    assert!(before.is_signed_with(text(&rotated["secret"])));
    let [new, former] = after.signatures().try_into().unwrap();
    assert!(new.is_signed_with(text(&answer["secret"])) && former.is_signed_with(text(&rotated["secret"])));
}

/// Returns the deliveries that are due in more than five minutes, and when they are due.
async fn waiting(deployment: &Deployment) -> Vec<(String, DateTime<Utc>)> {
    sqlx::query_as(
        "SELECT delivery_id::text, due_at FROM webhook_deliveries
         WHERE lease_token IS NULL AND due_at > now() + interval '5 minutes'",
    )
    .fetch_all(&mut deployment.engines.postgres().await)
    .await
    .unwrap()
}

async fn newest_dispatcher(deployment: &Deployment) -> i32 {
    let newest = sqlx::query_scalar("SELECT max(number) FROM dispatchers");
    newest.fetch_one(&mut deployment.engines.postgres().await).await.unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}
