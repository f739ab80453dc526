//! The exact bytes of webhooks.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use hyper::body::Bytes;
use reqwest::Method;
use serde_json::json;
use tests::PATIENCE;
use tests::deployment::{BROWSER, Deployment, click_id};
use tests::engines::http_client;
use tests::receiver::{Answer, Receiver, Request};

/// Characters that JSON, HTML and URLs must escape, and three scripts.
const NAME: &str = "Café \"☕\" </script> \\ / 日本 \u{1F980}";

const ALL: [&str; 4] = ["click.created", "link.created", "link.updated", "link.deleted"];

#[tokio::test(flavor = "multi_thread")]
async fn each_event_arrives_once_at_its_subscribers_as_documented() {
    let mut deployment = Deployment::start().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let all = deployment.create_endpoint(&receiver.url("/all"), &ALL).await;
    let updated = deployment.create_endpoint(&receiver.url("/updated"), &["link.updated"]).await;
    let neighbour = deployment.create_account("business").await;
    let own = std::mem::replace(&mut deployment.key, neighbour);
    deployment.create_endpoint(&receiver.url("/neighbour"), &ALL).await;
    deployment.key = deployment.create_account("pro").await;
    let body = json!({ "url": receiver.url("/pro"), "events": ALL });
    let (status, refused) = deployment.send(Method::POST, "/api/webhooks", Some(&body)).await;
    assert_eq!((status, &refused["code"]), (403, &json!("PLAN_REQUIRED")));
    deployment.key = own;

    let body = json!({ "name": NAME, "destination": "https://example.com/a?b=c" });
    let (status, link) = deployment.send(Method::POST, "/api/links", Some(&body)).await;
    assert_eq!(status, 201, "{link}");
    let (id, slug) = (link["id"].as_str().unwrap(), link["slug"].as_str().unwrap());
    deployment.edge_knows(slug).await;
    let clicked = http_client()
        .get(format!("{}/{slug}?utm_source=a%2Fb%22%3C%E2%98%95&utm_campaign=x", deployment.edge_url()))
        .header("user-agent", BROWSER)
        .header("x-forwarded-for", "198.51.100.7")
        .send()
        .await
        .unwrap();
    let path = format!("/api/links/{id}");
    assert_eq!(deployment.send(Method::PATCH, &path, Some(&json!({ "is_active": false }))).await.0, 200);
    assert_eq!(deployment.send(Method::DELETE, &path, None).await.0, 204);

    receiver.receives_at_least(5).await;
    // An event's deliveries are stored together, so one to the neighbour would wait or have arrived.
    deployment.no_delivery_waits(PATIENCE).await;
    let requests = receiver.requests_to("/all");
    let of = |event: &str| -> Request {
        let of: Vec<_> =
            requests.iter().filter(|request| request.header("x-service-event") == event).collect();
        assert_eq!(of.len(), 1, "{event}");
        of[0].clone()
    };
    for event in ALL {
        is_as_documented(&of(event), event, all["secret"].as_str().unwrap());
    }
    let data = |event: &str| of(event).json()["data"].clone();
    assert_eq!(
        data("click.created"),
        json!({
            "link_id": id, "slug": slug, "country": null, "device_type": "desktop", "utm_source": "a/b\"<☕",
            "utm_campaign": "x", "click_id": click_id(&clicked),
            "occurred_at": of("click.created").json()["created_at"], "class": "human",
        })
    );
    assert_eq!((&data("link.created")["id"], &data("link.created")["name"]), (&json!(id), &json!(NAME)));
    assert_eq!(data("link.created").get("total_clicks"), None, "counters are not sent");
    let changed = data("link.updated");
    assert_eq!((&changed["changed"], &changed["is_active"]), (&json!(["is_active"]), &json!(false)));
    assert_eq!(
        data("link.deleted"),
        json!({"id": id, "slug": slug, "name": NAME, "destination": "https://example.com/a?b=c"})
    );

    let other = receiver.requests_to("/updated");
    assert_eq!(other.len(), 1);
    is_as_documented(&other[0], "link.updated", updated["secret"].as_str().unwrap());
    assert_ne!(other[0].delivery(), of("link.updated").delivery());
    assert_eq!(receiver.count(), 5, "nothing goes to the neighbour or arrives twice");

    for secret in [&all, &updated].map(|endpoint| endpoint["secret"].as_str().unwrap()) {
        for service in ["ingest", "processor", "api", "dispatcher"] {
            assert!(!deployment.log(service).contains(secret), "no secret is in {service}'s log");
        }
        let (_, list) = deployment.send(Method::GET, "/api/webhooks", None).await;
        assert!(!list.to_string().contains("whsec_"));
    }
}

/// Checks a request against the documentation of headers, envelope and signature.
fn is_as_documented(request: &Request, event: &str, secret: &str) {
    assert_eq!(request.method, Method::POST);
    let names: BTreeSet<&str> = request.headers.keys().map(hyper::header::HeaderName::as_str).collect();
    let documented = [
        "accept",
        "content-length",
        "content-type",
        "host",
        "user-agent",
        "x-service-delivery",
        "x-service-event",
        "x-service-signature",
    ];
    assert_eq!(names, BTreeSet::from(documented), "and no other header");
    assert_eq!(request.header("content-type"), "application/json");
    assert_eq!(request.header("x-service-event"), event);

    let body = request.json();
    let fields: Vec<&String> = body.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["id", "event", "created_at", "data"]);
    assert_eq!((&body["id"], &body["event"]), (&json!(request.delivery()), &json!(event)));
    let created_at = body["created_at"].as_str().unwrap();
    assert!(created_at.len() == 24 && created_at.ends_with('Z'), "{created_at}");
    let created_at: SystemTime = chrono::DateTime::parse_from_rfc3339(created_at).unwrap().into();
    assert!(!String::from_utf8_lossy(&request.body).contains("198.51."), "no address of a visitor");

    assert!(request.is_signed_with(secret));
    let signature = request.header("x-service-signature");
    let (t, v1) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    assert!(v1.len() == 64 && v1.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)));
    let signed_at = SystemTime::UNIX_EPOCH + Duration::from_secs(t.parse().unwrap());
    // A signature has whole seconds.
    assert!(created_at < signed_at + Duration::from_secs(1), "signed at {t}, before the event");
    assert!(signed_at <= request.at, "signed at {t}, after it arrived");
    for place in [0, request.body.len() / 2, request.body.len() - 1] {
        let mut flipped = request.clone();
        let mut bytes = request.body.to_vec();
        bytes[place] ^= 1;
        flipped.body = Bytes::from(bytes);
        assert!(!flipped.is_signed_with(secret), "a flipped bit at {place} is not detected");
    }
}
