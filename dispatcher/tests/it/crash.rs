//! Dispatchers that are killed or stopped.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use schemas::message::{Class, delivery_id};
use tests::receiver::{Answer, Receiver};
use tests::{PATIENCE, eventually};
use tokio::sync::watch;
use uuid::Uuid;

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_dispatcher_loses_nothing_and_repeats_under_the_same_id() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Late(Duration::from_millis(20), 200)).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let mut expected = HashSet::new();
    let mut dispatcher = start(&world).await;
    for round in 0..3 {
        for _ in 0..100 {
            let click = world.click(workspace, Class::Human).await;
            expected.insert(delivery_id(&click, &endpoint.to_string()).to_string());
        }
        let before = round * 100;
        receiver.receives_at_least(before + 11).await;
        dispatcher.kill().await;
        dispatcher = start(&world).await;
    }
    eventually("every click arrived", async || {
        let arrived: HashSet<String> =
            receiver.requests().iter().map(|request| request.delivery().to_owned()).collect();
        let missing = expected.difference(&arrived).count();
        if missing == 0 { Ok(()) } else { Err(missing) }
    })
    .await;
    world.done().await;
    let mut bodies = HashMap::new();
    let requests = receiver.requests();
    for request in &requests {
        assert!(expected.contains(request.delivery()), "no event has this id: {request:?}");
        let body = bodies.entry(request.delivery()).or_insert(&request.body);
        assert_eq!(*body, &request.body, "two bodies under one id");
    }
    // Each of three kills repeats at most the requests in flight to one endpoint, and the unwritten outcomes.
    let repeats = requests.len() - expected.len();
    assert!(repeats <= 3 * 2 * 32, "{repeats} repeats");
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_a_killed_dispatcher_are_released_before_they_expire() {
    let world = World::new().await;
    let receiver =
        Receiver::start(|_, number| if number < 8 { Answer::Silence } else { Answer::Status(200) }).await;
    let workspace = world.workspace("business").await;
    // Eight endpoints, because a new one gets one request at a time.
    for _ in 0..8 {
        world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    }
    let first = world.dispatcher().await;
    world.click(workspace, Class::Human).await;
    receiver.receives(8).await;
    let second = world.dispatcher().await;
    world.dispatchers(2).await;
    first.kill().await;
    // The takeover takes about two seconds. The leases last for ten minutes, longer than this waits.
    world.done().await;
    let requests = receiver.requests();
    let ids: HashSet<&str> = requests.iter().map(|request| request.delivery()).collect();
    assert_eq!((ids.len(), requests.len()), (8, 16), "each was in flight once, and is sent once more");
    assert_eq!(world.number("SELECT count(*) FROM dispatchers").await, 1);
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_taken_over_by_another_dispatcher_is_not_sent() {
    const AT_ONCE: usize = 4;
    const ENDPOINTS: usize = AT_ONCE + 2;
    let world = World::new().await;
    let (release, released) = watch::channel(false);
    let receiver = Receiver::start(move |_, number| {
        if number < ENDPOINTS { Answer::Status(200) } else { Answer::Held(released.clone(), 200) }
    })
    .await;
    let workspace = world.workspace("business").await;
    for _ in 0..ENDPOINTS {
        world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    }
    // For endpoints that have answered, more deliveries are claimed than the account may have in flight. They wait for
    // at most half of the margin.
    let dispatcher = world
        .dispatcher_with(|config| {
            config.tuning.per_endpoint = 1;
            config.tuning.per_account = AT_ONCE;
            config.tuning.lease_margin = 4 * PATIENCE;
        })
        .await;
    world.click(workspace, Class::Human).await;
    receiver.receives_at_least(ENDPOINTS).await;
    world.done().await;
    world.click(workspace, Class::Human).await;
    receiver.receives_at_least(ENDPOINTS + AT_ONCE).await;
    eventually("the other two are claimed", async || {
        match world.number("SELECT count(*) FROM webhook_deliveries WHERE lease_token IS NULL").await {
            0 => Ok(()),
            count => Err(count),
        }
    })
    .await;
    // Only those that have waited for 250 ms are rechecked.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let in_flight: Vec<Uuid> =
        receiver.requests()[ENDPOINTS..].iter().map(|request| request.delivery().parse().unwrap()).collect();
    let taken = sqlx::query(
        "UPDATE webhook_deliveries SET lease_token = gen_random_uuid(), lease_until = now() + interval '1 hour'
         WHERE delivery_id <> ALL ($1)",
    )
    .bind(in_flight)
    .execute(&world.pool)
    .await
    .unwrap();
    assert_eq!(taken.rows_affected(), 2);
    let last = world.click(workspace, Class::Human).await;
    release.send_replace(true);
    // After the two, because an endpoint's deliveries are sent in order.
    receiver.receives_at_least(ENDPOINTS + AT_ONCE + ENDPOINTS).await;
    let requests = receiver.requests();
    assert!(requests[ENDPOINTS + AT_ONCE..].iter().all(|one| one.json()["data"]["click_id"] == *last));
    eventually("only the other dispatcher's are left", async || match world.pending().await {
        2 => Ok(()),
        count => Err(count),
    })
    .await;
    dispatcher.stop().await;
    assert_eq!(receiver.count(), ENDPOINTS + AT_ONCE + ENDPOINTS);
}

/// Starts a dispatcher whose leases expire while a test waits, and whose attempts do not end on a busy machine.
async fn start(world: &World) -> crate::world::Dispatcher {
    world.dispatcher_with(|config| config.tuning.attempt_deadline = Duration::from_secs(60)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_dispatcher_finishes_attempts_in_flight_and_releases_the_rest() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Late(Duration::from_millis(300), 200)).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher_with(|config| config.tuning.per_endpoint = 4).await;
    for _ in 0..40 {
        world.click(workspace, Class::Human).await;
    }
    receiver.receives_at_least(1).await;
    dispatcher.stop().await;
    let leased: i64 =
        sqlx::query_scalar("SELECT count(*) FROM webhook_deliveries WHERE lease_token IS NOT NULL")
            .fetch_one(&world.pool)
            .await
            .unwrap();
    assert_eq!(leased, 0);

    let dispatcher = world.dispatcher().await;
    receiver.receives_at_least(40).await;
    world.done().await;
    let ids: HashSet<String> =
        receiver.requests().iter().map(|request| request.delivery().to_owned()).collect();
    assert_eq!((ids.len(), receiver.requests().len()), (40, 40), "stopping repeats nothing");
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_takes_over_what_a_stopped_dispatcher_still_finishes() {
    let world = World::new().await;
    let (release, released) = watch::channel(false);
    let receiver = Receiver::start(move |_, _| Answer::Held(released.clone(), 200)).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let leaving = start(&world).await;
    world.click(workspace, Class::Human).await;
    receiver.receives(1).await;
    let other = start(&world).await;
    world.dispatchers(2).await;
    let stopped = tokio::spawn(leaving.stop());
    // A dispatcher that is gone is taken over after two seconds, or later on a busy machine.
    tokio::time::sleep(Duration::from_secs(4)).await;
    release.send(true).unwrap();
    stopped.await.unwrap();
    world.done().await;
    assert_eq!(receiver.count(), 1, "the stopped dispatcher delivered it");
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_dispatchers_deliver_each_event_once() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    for number in 0..8 {
        world.endpoint(workspace, &receiver.url(&format!("/{number}")), &["click.created"]).await;
    }
    let first = world.dispatcher().await;
    for _ in 0..20 {
        world.click(workspace, Class::Human).await;
    }
    let second = world.dispatcher().await;
    for _ in 0..20 {
        world.click(workspace, Class::Human).await;
    }
    receiver.receives_at_least(8 * 40).await;
    first.stop().await;
    for _ in 0..10 {
        world.click(workspace, Class::Human).await;
    }
    receiver.receives_at_least(8 * 50).await;
    second.stop().await;
    let ids: HashSet<String> =
        receiver.requests().iter().map(|request| request.delivery().to_owned()).collect();
    assert_eq!((ids.len(), receiver.requests().len()), (8 * 50, 8 * 50));
}

#[tokio::test(flavor = "multi_thread")]
async fn readyz_lists_every_check() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    eventually("both engines and the reader are ready", async || {
        let (_, report) = tests::readyz(&dispatcher.operations_url).await;
        let checks = ["kafka", "postgres", "enqueue"];
        let ready = checks.iter().all(|check| report["checks"][check]["ready"] == true);
        if ready && report["ready"] == true { Ok(()) } else { Err(report) }
    })
    .await;
    dispatcher.stop().await;
}
