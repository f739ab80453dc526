//! Receivers that misbehave.

use std::time::Duration;

use dispatcher::Config;
use schemas::message::Class;
use tests::eventually;
use tests::receiver::{Answer, Receiver};

use crate::raw::{Behaviour, Raw};
use crate::world::World;

/// The failures of a delivery: attempt, status, class and body of each.
type Failures = Vec<(i16, Option<i16>, Option<String>, String)>;

/// Sends one click to a misbehaving receiver and returns the failure log after the first attempt, which never times
/// out.
async fn fails(behaviour: Behaviour) -> Failures {
    fails_with(behaviour, |_| {}).await
}

/// [`fails`] with a timeout, which is long enough to connect and to send the request on a busy machine.
async fn times_out(behaviour: Behaviour) -> Failures {
    fails_with(behaviour, |config| config.tuning.attempt_deadline = Duration::from_secs(4)).await
}

async fn fails_with(behaviour: Behaviour, change: impl FnOnce(&mut Config)) -> Failures {
    let world = World::new().await;
    let receiver = Raw::start(behaviour).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url, &["click.created"]).await;
    let dispatcher = world
        .dispatcher_with(|config| {
            config.tuning.retry_base = Duration::from_secs(600);
            change(config);
        })
        .await;
    world.click(workspace, Class::Human).await;
    eventually("an attempt is made", async || match receiver.requests() {
        1 => Ok(()),
        count => Err(count),
    })
    .await;
    let failures = eventually("it has an outcome", async || {
        match (world.failures(endpoint).await, world.pending().await) {
            (failures, 1) if failures.is_empty() => Err(failures),
            (failures, _) => Ok(failures),
        }
    })
    .await;
    assert_eq!(receiver.requests(), 1);
    if !failures.is_empty() {
        world.make_due().await;
        eventually("it is attempted again", async || match receiver.requests() {
            2 => Ok(()),
            count => Err(count),
        })
        .await;
    }
    dispatcher.kill().await;
    failures
}

fn without_answer(class: &str) -> Failures {
    vec![(1, None, Some(class.to_owned()), String::new())]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_never_answers_fails_at_the_deadline() {
    assert_eq!(times_out(Behaviour::Hold("")).await, without_answer("timeout"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_line_that_trickles_fails_at_the_deadline() {
    assert_eq!(times_out(Behaviour::Trickle("HTTP/1.1 200 OK")).await, without_answer("timeout"));
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_headers_fail_without_filling_memory() {
    let flood = Behaviour::Flood(
        "HTTP/1.1 200 OK\r\n",
        b"x-more: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n",
    );
    assert_eq!(fails(flood).await, without_answer("response"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_body_after_a_200_is_a_success() {
    let flood = Behaviour::Flood("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", &[b'a'; 65_536]);
    assert_eq!(fails(flood).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_never_comes_after_a_200_is_a_success() {
    assert_eq!(fails(Behaviour::Hold("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_compressed_body_is_truncated_and_not_decompressed() {
    let flood = Behaviour::Flood(
        "HTTP/1.1 500 No\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n\x1f",
        &[0x8b; 65_536],
    );
    let failures = fails(flood).await;
    let (attempt, status, class, body) = &failures[0];
    assert_eq!((failures.len(), *attempt, *status, class), (1, 1, Some(500), &None));
    assert!(body.len() <= 4096 && body.len() > 4090 && body.starts_with("\x1f\u{fffd}"), "{}", body.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn informational_responses_alone_fail() {
    assert_eq!(fails(Behaviour::Close("HTTP/1.1 100 Continue\r\n\r\n")).await, without_answer("response"));
    let flood = Behaviour::Trickle("HTTP/1.1 103 Early Hints\r\n\r\n");
    assert_eq!(times_out(flood).await, without_answer("timeout"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_closes_early_or_is_not_http_fails() {
    assert_eq!(fails(Behaviour::Close("")).await, without_answer("response"));
    assert_eq!(fails(Behaviour::Close("HTTP/1.1 200")).await, without_answer("response"));
    assert_eq!(fails(Behaviour::Close("+OK ready\r\n")).await, without_answer("response"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_without_tls_or_listener_fails_to_connect() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    let https = receiver.url("/").replace("http:", "https:");
    let plain = world.endpoint(workspace, &https, &["click.created"]).await;
    let absent = world.endpoint(workspace, "http://127.0.0.1:2/", &["click.created"]).await;
    let unknown = world.endpoint(workspace, "https://nowhere.invalid/", &["click.created"]).await;
    let dispatcher =
        world.dispatcher_with(|config| config.tuning.retry_base = Duration::from_secs(600)).await;
    world.click(workspace, Class::Human).await;
    for (endpoint, class) in [(plain, "connect"), (absent, "connect"), (unknown, "dns")] {
        let failures = eventually("the first attempt fails", async || {
            let failures = world.failures(endpoint).await;
            if failures.is_empty() { Err(()) } else { Ok(failures) }
        })
        .await;
        assert_eq!(failures, without_answer(class), "{class}");
    }
    dispatcher.stop().await;
}
