//! The real schedule of attempts: 10, 20, 40 and 80 seconds.
//!
//! One deployment with two dispatchers and one endpoint for each kind of failure, all in the same three minutes.
//! It mostly waits, and its name makes it start first: tests start in alphabetical order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use reqwest::Method;
use serde_json::{Value, json};
use tests::deployment::Deployment;
use tests::receiver::{Answer, Receiver, Request};
use tests::{PATIENCE, eventually, eventually_within};

use crate::traffic::Traffic;

/// The minimum waits between the attempts of a delivery.
const WAITS: [u64; 4] = [10, 20, 40, 80];

/// The longest delay of a due attempt on a busy machine.
const LATE: Duration = Duration::from_secs(30);

/// All waits, with the random tenth and the delay of a busy machine.
const WHOLE: Duration = PATIENCE.saturating_add(Duration::from_secs(150 + 15));

/// The longest wait that a receiver may request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(15 * 60);

/// Statuses that are not retried.
const FINAL: [u16; 6] = [400, 401, 404, 408, 410, 422];

/// Events for the dead endpoint: more than the 15 that disable it.
const DEAD_EVENTS: usize = 40;

/// Answers by the path.
fn script(request: &Request, number: usize, alive: &AtomicBool) -> Answer {
    let after = |status: u16, value: &str| {
        if number == 0 {
            Answer::Full(status, ("retry-after", value.to_owned()), Vec::new())
        } else {
            Answer::Status(200)
        }
    };
    let path = request.path.trim_start_matches('/');
    match path {
        "recovers" => Answer::Status(if number < 2 { 500 } else { 200 }),
        "429" => Answer::Status(if number == 0 { 429 } else { 200 }),
        "301" | "307" => {
            let here = format!("http://{}/elsewhere", request.header("host"));
            Answer::Full(path.parse().unwrap(), ("location", here), Vec::new())
        }
        "after-seconds" => after(429, "30"),
        "after-date" => {
            let date = chrono::Utc::now() + chrono::TimeDelta::seconds(31);
            after(503, &date.format("%a, %d %b %Y %H:%M:%S GMT").to_string())
        }
        "after-zero" => after(429, "0"),
        "after-nonsense" => after(429, "-1, soon"),
        "after-for-ever" => after(503, "1000000000"),
        "late" => Answer::Late(Duration::from_secs(5), 200),
        "dead" => Answer::Status(if alive.load(Ordering::Relaxed) { 200 } else { 500 }),
        "500" => Answer::Status(500),
        "witness" => Answer::Status(200),
        // Only once: a redelivery is accepted.
        status => Answer::Status(if number == 0 { status.parse().unwrap() } else { 200 }),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_failure_is_retried_and_logged_as_documented() {
    let deployment = Deployment::start().await;
    let second = deployment.another_dispatcher();
    second.start().await.unwrap();
    let alive = Arc::new(AtomicBool::new(false));
    let is_alive = Arc::clone(&alive);
    let receiver = Receiver::start(move |request, number| script(request, number, &is_alive)).await;
    let mut traffic = Traffic::on_links(&deployment, 1, 1).await;
    let mut endpoints = BTreeMap::new();
    let finals = FINAL.map(|status| status.to_string());
    let others = [
        "500",
        "recovers",
        "429",
        "301",
        "307",
        "after-seconds",
        "after-date",
        "after-zero",
        "after-nonsense",
        "after-for-ever",
        "late",
    ];
    for path in finals.iter().map(String::as_str).chain(others) {
        let endpoint =
            deployment.create_endpoint(&receiver.url(&format!("/{path}")), &["click.created"]).await;
        endpoints.insert(path.to_owned(), endpoint);
    }
    let dead = deployment.create_endpoint(&receiver.url("/dead"), &["link.updated"]).await;
    let changed = deployment.create_link().await;
    for number in 0..DEAD_EVENTS {
        rename(&deployment, &changed, &format!("name {number}")).await;
    }
    assert!(traffic.click(&deployment).await);

    let to = |path: &str| receiver.requests_to(&format!("/{path}"));
    for (path, attempts) in [("500", 5), ("301", 5), ("307", 5)] {
        eventually_within("all attempts are made", WHOLE, async || {
            no_wait_is_longer(&deployment).await;
            match to(path).len() {
                seen if seen == attempts => Ok(()),
                seen => Err((path, seen)),
            }
        })
        .await;
    }

    // The last attempts of these deliveries ended two minutes ago, so no request follows.
    for (path, waits) in [
        ("500", &WAITS[..]),
        ("301", &WAITS),
        ("307", &WAITS),
        ("recovers", &WAITS[..2]),
        ("429", &WAITS[..1]),
        ("after-zero", &WAITS[..1]),
        ("after-nonsense", &WAITS[..1]),
        ("after-seconds", &[30]),
        ("after-date", &[30]),
        ("after-for-ever", &[]),
        ("late", &[]),
    ]
    .into_iter()
    .chain(finals.iter().map(|path| (path.as_str(), &[][..])))
    {
        let secret = endpoints[path]["secret"].as_str().unwrap();
        follows_schedule(path, &to(path), waits, secret);
    }
    assert_eq!(to("elsewhere").len(), 0, "no redirect is followed");
    the_failure_log_is_complete(&deployment, &endpoints).await;
    redeliveries_and_test_events_arrive(&deployment, &endpoints["404"], &receiver).await;

    let path = format!("/api/webhooks/{}", text(&dead["id"]));
    let state = eventually("the dead endpoint is disabled", async || {
        let (_, state) = deployment.send(Method::GET, &path, None).await;
        if state["status"] == "disabled" { Ok(state) } else { Err(state) }
    })
    .await;
    assert_eq!(state["consecutive_exhausted"], 15);
    assert!(state["disabled_reason"].is_string());
    is_disabled_once(&deployment, &to("dead")).await;
    an_enabled_endpoint_gets_new_events_only(&deployment, &dead, &changed, &alive, &receiver).await;
}

/// Asserts that no delivery is due later than scheduled. A busy machine delays attempts, but not these times.
async fn no_wait_is_longer(deployment: &Deployment) {
    let waiting: Vec<(String, i16, f64)> = sqlx::query_as(
        "SELECT e.url, d.attempts, extract(epoch FROM d.due_at - now())::float8
         FROM webhook_deliveries d JOIN webhook_endpoints e ON e.id = d.endpoint_id WHERE d.attempts > 0",
    )
    .fetch_all(&mut deployment.engines.postgres().await)
    .await
    .unwrap();
    for (url, attempts, left) in waiting {
        let longest = match url.rsplit('/').next().unwrap() {
            "after-seconds" | "after-date" => 31.0,
            "after-for-ever" => MAX_RETRY_AFTER.as_secs_f64(),
            // With the random tenth.
            _ => WAITS[attempts as usize - 1] as f64 * 1.1,
        };
        assert!(left <= longest + 0.001, "{url}: due in {left} s after attempt {attempts}");
    }
}

/// Asserts that the attempts of one delivery arrived on schedule, with one id and body, each signed at its own time.
fn follows_schedule(path: &str, requests: &[Request], waits: &[u64], secret: &str) {
    assert_eq!(requests.len(), waits.len() + 1, "{path}");
    for (pair, wait) in requests.windows(2).zip(waits) {
        let gap = pair[1].at.duration_since(pair[0].at).unwrap();
        let wait = Duration::from_secs(*wait);
        assert!(gap >= wait, "{path}: {gap:?} for {wait:?}");
        assert!(gap <= wait.mul_f64(1.1) + LATE, "{path}: {gap:?} for {wait:?}");
        assert_eq!((pair[0].delivery(), &pair[0].body), (pair[1].delivery(), &pair[1].body), "{path}");
    }
    let times: BTreeSet<&str> = requests
        .iter()
        .map(|request| request.header("x-service-signature").split(',').next().unwrap())
        .collect();
    assert_eq!(times.len(), requests.len(), "{path}: each attempt is signed at its own time");
    assert!(requests.iter().all(|request| request.is_signed_with(secret)), "{path}");
}

/// Compares the failure log with the script's answers.
async fn the_failure_log_is_complete(deployment: &Deployment, endpoints: &BTreeMap<String, Value>) {
    for (path, endpoint) in endpoints {
        let log = failures(deployment, endpoint).await;
        let expected: Vec<(u64, u64)> = match path.as_str() {
            "late" => vec![],
            "500" | "301" | "307" => (1..=5).rev().map(|attempt| (attempt, path.parse().unwrap())).collect(),
            "recovers" => vec![(2, 500), (1, 500)],
            "after-date" | "after-for-ever" => vec![(1, 503)],
            other => vec![(1, other.parse().unwrap_or(429))],
        };
        let logged: Vec<(u64, u64)> = log
            .iter()
            .map(|one| (one["attempt"].as_u64().unwrap(), one["status_code"].as_u64().unwrap()))
            .collect();
        assert_eq!(logged, expected, "{path}: newest first");
        let is_final = FINAL.iter().any(|status| status.to_string() == *path);
        for (place, one) in log.iter().enumerate() {
            assert_eq!((&one["max_attempts"], &one["error_class"]), (&json!(5), &Value::Null), "{path}");
            let is_last = is_final || one["attempt"] == 5;
            assert_eq!(one["next_attempt_at"].is_null(), is_last, "{path}, {place}");
        }
        let arrived = !is_final && !["500", "301", "307", "after-for-ever"].contains(&path.as_str());
        assert!(log.iter().all(|one| one["delivered_at"].is_string() == arrived), "{path}");
    }
    let log = failures(deployment, &endpoints["after-for-ever"]).await;
    let next: chrono::DateTime<chrono::Utc> = text(&log[0]["next_attempt_at"]).parse().unwrap();
    let asked: chrono::DateTime<chrono::Utc> = text(&log[0]["attempted_at"]).parse().unwrap();
    let wait = (next - asked).to_std().unwrap();
    assert!(wait > MAX_RETRY_AFTER / 2, "{wait:?}");
}

/// Redelivers a rejected delivery and sends a test event to an endpoint that accepts them now.
async fn redeliveries_and_test_events_arrive(deployment: &Deployment, endpoint: &Value, receiver: &Receiver) {
    let path = format!("/api/webhooks/{}", text(&endpoint["id"]));
    let rejected = receiver.requests_to("/404").remove(0);
    let body = json!({ "delivery_ids": [rejected.delivery()] });
    let (status, answer) = deployment.send(Method::POST, &format!("{path}/redeliver"), Some(&body)).await;
    assert_eq!((status, &answer["queued"]), (202, &json!(1)));
    let (status, answer) = deployment.send(Method::POST, &format!("{path}/test"), None).await;
    assert_eq!(status, 202, "{answer}");
    let requests = eventually("both arrive", async || match receiver.requests_to("/404") {
        requests if requests.len() == 3 => Ok(requests),
        requests => Err(requests.len()),
    })
    .await;
    let find = |id: &str| requests[1..].iter().find(|request| request.delivery() == id).unwrap();
    assert_eq!(find(rejected.delivery()).body, rejected.body);
    let test = find(text(&answer["delivery_id"]));
    assert_eq!(test.header("x-service-event"), "endpoint.test");
    assert!(test.is_signed_with(text(&endpoint["secret"])));
    eventually("the log shows the delivery", async || {
        let log = failures(deployment, endpoint).await;
        if log[0]["delivered_at"].is_string() { Ok(()) } else { Err(log) }
    })
    .await;
}

/// Asserts that two dispatchers together disabled the endpoint once, at the fifteenth, with one notice.
async fn is_disabled_once(deployment: &Deployment, requests: &[Request]) {
    let notices: Vec<i32> = sqlx::query_scalar(
        "SELECT consecutive_exhausted FROM webhook_notices ORDER BY consecutive_exhausted",
    )
    .fetch_all(&mut deployment.engines.postgres().await)
    .await
    .unwrap();
    assert_eq!(notices, [5, 10, 15]);
    let mut attempts: BTreeMap<&str, usize> = BTreeMap::new();
    for request in requests {
        *attempts.entry(request.delivery()).or_default() += 1;
    }
    assert!(attempts.values().all(|count| *count <= 5));
    let exhausted = attempts.values().filter(|count| **count == 5).count();
    // Fifteen, and those whose last request was in flight when the fifteenth was stored.
    assert!((15..=15 + 2 * 32).contains(&exhausted), "{exhausted}");
}

/// Enables the endpoint again, as an operator does, and asserts that no earlier event is sent.
async fn an_enabled_endpoint_gets_new_events_only(
    deployment: &Deployment,
    endpoint: &Value,
    link: &Value,
    alive: &AtomicBool,
    receiver: &Receiver,
) {
    let before: BTreeSet<String> =
        receiver.requests_to("/dead").iter().map(|request| request.delivery().to_owned()).collect();
    // An event is matched with all endpoints at once, so an event that the witness got was not for the dead one.
    deployment.create_endpoint(&receiver.url("/witness"), &["link.updated"]).await;
    rename(deployment, link, "while it is disabled").await;
    eventually("the witness gets the event", async || match receiver.requests_to("/witness").len() {
        0 => Err(()),
        _ => Ok(()),
    })
    .await;
    alive.store(true, Ordering::Relaxed);
    let enabled_at = SystemTime::now();
    deployment.admin(&["enable-endpoint", "--id", text(&endpoint["id"])]).await;
    rename(deployment, link, "since it is enabled").await;
    let since = || -> Vec<Request> {
        let mut requests = receiver.requests_to("/dead");
        requests.retain(|request| request.at > enabled_at);
        requests
    };
    eventually("the new event arrives", async || match since().len() {
        0 => Err(()),
        _ => Ok(()),
    })
    .await;
    let requests = since();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].json()["data"]["name"], "since it is enabled");
    assert!(!before.contains(requests[0].delivery()));
    let path = format!("/api/webhooks/{}", text(&endpoint["id"]));
    let (_, state) = deployment.send(Method::GET, &path, None).await;
    assert_eq!((&state["status"], &state["consecutive_exhausted"]), (&json!("enabled"), &json!(0)));
}

async fn rename(deployment: &Deployment, link: &Value, name: &str) {
    let path = format!("/api/links/{}", text(&link["id"]));
    let (status, answer) = deployment.send(Method::PATCH, &path, Some(&json!({ "name": name }))).await;
    assert_eq!(status, 200, "{answer}");
}

async fn failures(deployment: &Deployment, endpoint: &Value) -> Vec<Value> {
    let path = format!("/api/webhooks/{}/failures", text(&endpoint["id"]));
    let (status, page) = deployment.send(Method::GET, &path, None).await;
    assert_eq!(status, 200, "{page}");
    page["failures"].as_array().unwrap().clone()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}
