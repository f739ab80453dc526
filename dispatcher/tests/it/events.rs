//! Delivery of events to the endpoints that subscribed to them.

use schemas::message::{Class, Click, LinkEventKind, Message as _, delivery_id};
use schemas::topic;
use tests::eventually;
use tests::log::records;
use tests::receiver::{Answer, Receiver};

use crate::world::{SECRET, World};

#[tokio::test(flavor = "multi_thread")]
async fn each_event_arrives_once_and_signed_at_its_subscribers() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let (business, agency) = (world.workspace("business").await, world.workspace("agency").await);
    let (other, free) = (world.workspace("business").await, world.workspace("pro").await);
    let all = ["click.created", "link.created", "link.updated", "link.deleted"];
    let endpoint = world.endpoint(business, &receiver.url("/all"), &all).await;
    world.endpoint(business, &receiver.url("/deleted"), &["link.deleted"]).await;
    world.endpoint(agency, &receiver.url("/agency"), &["click.created"]).await;
    world.endpoint(other, &receiver.url("/other"), &all).await;
    world.endpoint(free, &receiver.url("/free"), &all).await;
    let dispatcher = world.dispatcher().await;

    let click = world.click(business, Class::Human).await;
    let created = world.link_event(business, LinkEventKind::Created).await;
    world.click(business, Class::Bot).await;
    world.click(business, Class::Preview).await;
    world.click(free, Class::Human).await;
    world.link_event(business, LinkEventKind::Deleted).await;
    world.click(agency, Class::Human).await;

    let requests = eventually("five deliveries", async || {
        let requests = receiver.requests();
        if requests.len() >= 5 { Ok(requests) } else { Err(requests.len()) }
    })
    .await;
    // After this, it is certain that the other events have no delivery.
    world.enqueued().await;
    world.done().await;

    for request in &requests {
        assert_eq!(request.method, "POST");
        assert_eq!(request.header("content-type"), "application/json");
        assert!(request.is_signed_with(SECRET), "{request:?}");
        assert!(!request.is_signed_with("whsec_other"));
        let body = request.json();
        assert_eq!(body["id"], request.delivery());
        assert_eq!(body["event"], request.header("x-service-event"));
    }
    let of = |path: &str, event: &str| {
        let mut found = receiver.requests_to(path);
        found.retain(|request| request.header("x-service-event") == event);
        assert_eq!(found.len(), 1, "{event} at {path}");
        found.remove(0)
    };
    let clicked = of("/all", "click.created");
    assert_eq!(clicked.delivery(), delivery_id(&click, &endpoint.to_string()).to_string());
    assert_eq!(clicked.json()["data"]["click_id"], click);
    assert_eq!(clicked.json()["data"]["class"], "human");
    let link = of("/all", "link.created");
    assert_eq!(link.delivery(), delivery_id(&created, &endpoint.to_string()).to_string());
    assert_eq!(link.json()["data"]["name"], "Café ☕ \"quoted\" </p>");
    of("/all", "link.deleted");
    of("/deleted", "link.deleted");
    of("/agency", "click.created");
    assert_eq!(receiver.requests().len(), 5);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_click_right_after_an_endpoint_was_created_is_delivered() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    let dispatcher = world.dispatcher().await;
    for round in 0..10 {
        let path = format!("/{round}");
        world.endpoint(workspace, &receiver.url(&path), &["click.created"]).await;
        let click = world.click(workspace, Class::Human).await;
        eventually("the click arrives at the new endpoint", async || {
            let arrived = receiver.requests_to(&path);
            let found = arrived.iter().any(|request| request.json()["data"]["click_id"] == *click);
            if found { Ok(()) } else { Err(arrived.len()) }
        })
        .await;
    }
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_event_becomes_a_dead_letter_and_delays_nothing() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    world.publish(topic::CLICKS, "a", b"{\"v\":1").await;
    world.publish(topic::CLICKS, "b", b"{\"v\":77}").await;
    world.publish(topic::LINK_EVENTS, "c", b"\xff\xfe").await;
    world.click(workspace, Class::Human).await;
    receiver.receives(1).await;
    let letters = eventually("three dead letters", async || {
        let letters = records(&world.isolated, topic::DEAD_LETTERS);
        if letters.len() == 3 { Ok(letters) } else { Err(letters) }
    })
    .await;
    let mut values: Vec<&[u8]> = letters.iter().map(|letter| letter.value.as_slice()).collect();
    values.sort_unstable();
    assert_eq!(values, [b"{\"v\":1".as_slice(), b"{\"v\":77}", b"\xff\xfe"]);
    assert!(letters.iter().all(|letter| letter.key.starts_with(&world.isolated.topic_prefix)));
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_without_webhooks_ends_retries() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(500)).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher =
        world.dispatcher_with(|config| config.tuning.retry_base = std::time::Duration::from_secs(600)).await;
    world.click(workspace, Class::Human).await;
    world.failed(1).await;
    world.set_plan(workspace, "pro").await;
    world.done().await;
    assert_eq!(receiver.requests().len(), 1);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resubmitted_dead_letter_is_delivered_once() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    world.publish_to(topic::CLICKS, 3, b"{").await;
    let letter = eventually("a dead letter", async || {
        let mut letters = records(&world.isolated, topic::DEAD_LETTERS);
        if letters.len() == 1 { Ok(letters.remove(0)) } else { Err(letters) }
    })
    .await;
    assert_eq!(letter.key, format!("{}/3/0", world.isolated.topic(topic::CLICKS)));

    // As `processor dead-letters resubmit` does: marked as a possible repeat, in the dead letter's partition.
    let click = Click { again: true, ..World::new_click(workspace, Class::Human) };
    for _ in 0..2 {
        world.publish_to(topic::CLICKS, 3, &click.encode()).await;
        world.enqueued().await;
        world.done().await;
    }
    let requests = receiver.requests();
    assert_eq!(requests.len(), 1, "the finished delivery is remembered");
    assert_eq!(requests[0].delivery(), delivery_id(&click.click_id, &endpoint.to_string()).to_string());
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_is_split_into_transactions() {
    const ENDPOINTS: i64 = 30;
    const CLICKS: i64 = 100;
    let world = World::new().await;
    // Unanswered deliveries stay in the queue.
    let receiver = Receiver::start(|_, _| Answer::Silence).await;
    let workspace = world.workspace("business").await;
    for _ in 0..ENDPOINTS {
        world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    }
    // In one partition, so that they are polled together.
    for _ in 0..CLICKS {
        let click = World::new_click(workspace, Class::Human);
        world.publish_to(topic::CLICKS, 0, &click.encode()).await;
    }
    let dispatcher = world.dispatcher().await;
    world.enqueued().await;
    assert_eq!(world.pending().await, ENDPOINTS * CLICKS);
    // A delivery is due from the beginning of the transaction that stores it, and a claim does not change that.
    let largest = "SELECT max(rows) FROM
                   (SELECT count(*) AS rows FROM webhook_deliveries GROUP BY due_at) AS transactions";
    let largest = world.number(largest).await;
    assert!((1_000..=2_000).contains(&largest), "a transaction of {largest} deliveries");
    dispatcher.kill().await;
}
