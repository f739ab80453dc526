//! Attempts without a 2xx answer.

use std::time::{Duration, SystemTime};

use schemas::id::EndpointId;
use schemas::message::Class;
use tests::eventually;
use tests::receiver::{Answer, Receiver, Request};

use crate::world::{SECRET, World};

/// Sends one click to a receiver with this script, waits until its delivery has ended, and returns the requests.
async fn deliver_to(
    world: &World,
    retry_base: Duration,
    script: impl Fn(&Request, usize) -> Answer + Send + Sync + 'static,
) -> (EndpointId, Vec<Request>) {
    let receiver = Receiver::start(script).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/hook"), &["click.created"]).await;
    let dispatcher = world.dispatcher_with(|config| config.tuning.retry_base = retry_base).await;
    world.click(workspace, Class::Human).await;
    receiver.receives_at_least(1).await;
    world.done().await;
    dispatcher.stop().await;
    (endpoint, receiver.requests())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_has_the_same_id_and_body() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, number| match number {
        0 => Answer::Full(500, ("x-any", "1".to_owned()), b"out of\0 order".to_vec()),
        1 => Answer::Status(503),
        _ => Answer::Status(200),
    })
    .await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/hook"), &["click.created"]).await;
    let base = Duration::from_secs(300);
    let dispatcher = world.dispatcher_with(|config| config.tuning.retry_base = base).await;
    world.click(workspace, Class::Human).await;
    for (attempts, wait) in [(1, base), (2, base * 2)] {
        let next = world.failed(attempts).await;
        let request = receiver.requests().pop().unwrap();
        // At most a tenth is added at random.
        let (wait, since) = (wait.as_secs_f64(), request.at.elapsed().unwrap().as_secs_f64());
        assert!(next >= wait - since && next <= wait * 1.1, "{next} s after {since} s, and not {wait}");
        // A signature has the second of its attempt.
        eventually("another second", async || match SystemTime::now().duration_since(request.at) {
            Ok(since) if since.as_secs() > 0 => Ok(()),
            since => Err(since),
        })
        .await;
        world.make_due().await;
    }
    world.done().await;
    dispatcher.stop().await;
    let requests = receiver.requests();
    assert_eq!(requests.len(), 3);
    for request in &requests {
        assert!(request.is_signed_with(SECRET));
        assert_eq!((request.delivery(), &request.body), (requests[0].delivery(), &requests[0].body));
    }
    assert_ne!(requests[0].header("x-service-signature"), requests[2].header("x-service-signature"));
    assert_eq!(
        world.failures(endpoint).await,
        [(1, Some(500), None, "out of\u{fffd} order".to_owned()), (2, Some(503), None, String::new()),]
    );
    assert_eq!(world.state(endpoint).await, ("enabled".to_owned(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_has_five_attempts() {
    let world = World::new().await;
    let (endpoint, requests) =
        deliver_to(&world, Duration::from_millis(10), |_, _| Answer::Status(500)).await;
    assert_eq!(requests.len(), 5);
    let attempts: Vec<i16> = world.failures(endpoint).await.iter().map(|failure| failure.0).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5]);
    assert_eq!(world.state(endpoint).await, ("enabled".to_owned(), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_404_is_final_and_in_the_failure_log() {
    let world = World::new().await;
    let (endpoint, requests) = deliver_to(&world, Duration::from_millis(10), |_, _| {
        Answer::Full(404, ("content-type", "text/plain".to_owned()), vec![b'x'; 100_000])
    })
    .await;
    assert_eq!(requests.len(), 1);
    assert_eq!(world.failures(endpoint).await, [(1, Some(404), None, "x".repeat(4096))]);
    assert_eq!(world.state(endpoint).await, ("enabled".to_owned(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_extends_the_wait() {
    let world = World::new().await;
    let (_, requests) = deliver_to(&world, Duration::from_millis(10), |_, number| match number {
        0 => Answer::Full(429, ("retry-after", "2".to_owned()), vec![]),
        _ => Answer::Status(200),
    })
    .await;
    assert_eq!(requests.len(), 2);
    let gap = requests[1].at.duration_since(requests[0].at).unwrap();
    assert!(gap >= Duration::from_secs(2), "{gap:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_after_date_is_respected_and_nonsense_is_ignored() {
    let world = World::new().await;
    let base = Duration::from_millis(100);
    let (_, requests) = deliver_to(&world, base, |_, number| match number {
        0 => {
            let date = chrono::Utc::now() + chrono::TimeDelta::seconds(3);
            let text = date.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
            Answer::Full(503, ("retry-after", text), vec![])
        }
        1 => Answer::Full(503, ("retry-after", "-1".to_owned()), vec![]),
        // This status has no meaning for `Retry-After`.
        2 => Answer::Full(500, ("retry-after", "600".to_owned()), vec![]),
        _ => Answer::Status(200),
    })
    .await;
    assert_eq!(requests.len(), 4);
    let gap = requests[1].at.duration_since(requests[0].at).unwrap();
    // The date has whole seconds.
    assert!(gap >= Duration::from_millis(1_900), "{gap:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_delayed_by_a_wrong_clock_is_made_due() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, number| Answer::Status(if number == 0 { 500 } else { 200 })).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/hook"), &["click.created"]).await;
    let dispatcher =
        world.dispatcher_with(|config| config.tuning.retry_base = Duration::from_secs(900)).await;
    world.click(workspace, Class::Human).await;
    world.failed(1).await;
    dispatcher.stop().await;
    // As if the database's clock had been set back by a day since.
    sqlx::query("UPDATE webhook_deliveries SET due_at = due_at + interval '1 day'")
        .execute(&world.pool)
        .await
        .unwrap();
    let dispatcher = world.dispatcher().await;
    world.done().await;
    assert_eq!(receiver.requests().len(), 2);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_a_failure_and_not_followed() {
    let world = World::new().await;
    let (endpoint, requests) = deliver_to(&world, Duration::from_millis(10), |request, _| {
        let elsewhere = format!("http://{}/elsewhere", request.header("host"));
        Answer::Full(302, ("location", elsewhere), vec![])
    })
    .await;
    assert_eq!(requests.len(), 5);
    assert!(requests.iter().all(|request| request.path == "/hook"), "{requests:?}");
    assert_eq!(world.failures(endpoint).await[0].1, Some(302));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_internal_endpoint_gets_no_request() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    let literal = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let port = receiver.url("").rsplit_once(':').unwrap().1.to_owned();
    let name = world.endpoint(workspace, &format!("https://localhost:{port}/"), &["click.created"]).await;
    let dispatcher =
        world.dispatcher_with(|config| config.webhook_allow = "10.0.0.0/8".parse().unwrap()).await;
    world.click(workspace, Class::Human).await;
    for endpoint in [literal, name] {
        let failures = eventually("all attempts are blocked", async || {
            let failures = world.failures(endpoint).await;
            if failures.len() == 5 { Ok(failures) } else { Err(failures) }
        })
        .await;
        assert!(failures.iter().all(|failure| failure.2.as_deref() == Some("blocked")), "{failures:?}");
    }
    assert!(receiver.requests().is_empty());
    dispatcher.stop().await;
}
