//! Disabling of endpoints.

use std::time::Duration;

use schemas::message::Class;
use tests::eventually;
use tests::receiver::{Answer, Receiver};
use tokio::sync::watch;

use crate::world::World;

/// Returns the notices to the owner of the only endpoint, in order.
async fn notices(world: &World) -> Vec<i32> {
    sqlx::query_scalar(
        "SELECT consecutive_exhausted FROM webhook_notices ORDER BY created_at, consecutive_exhausted",
    )
    .fetch_all(&world.pool)
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn fifteen_exhausted_deliveries_disable_only_their_endpoint() {
    let world = World::new().await;
    let receiver =
        Receiver::start(|request, _| Answer::Status(if request.path == "/dead" { 500 } else { 200 })).await;
    let workspace = world.workspace("business").await;
    let dead = world.endpoint(workspace, &receiver.url("/dead"), &["click.created"]).await;
    let alive = world.endpoint(workspace, &receiver.url("/alive"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;

    for _ in 0..14 {
        world.click(workspace, Class::Human).await;
    }
    eventually("fourteen are exhausted", async || match world.state(dead).await {
        (status, 14) if status == "enabled" => Ok(()),
        state => Err(state),
    })
    .await;
    assert_eq!(receiver.requests_to("/dead").len(), 14 * 5);
    world.click(workspace, Class::Human).await;
    eventually("the fifteenth disables it", async || match world.state(dead).await {
        (status, 15) if status == "disabled" => Ok(()),
        state => Err(state),
    })
    .await;
    let reason: Option<String> =
        sqlx::query_scalar("SELECT disabled_reason FROM webhook_endpoints WHERE id = $1")
            .bind(dead.uuid())
            .fetch_one(&world.pool)
            .await
            .unwrap();
    assert!(reason.unwrap().contains("15 deliveries in a row"));
    assert_eq!(notices(&world).await, [5, 10, 15]);

    // The sixteenth goes only to the enabled endpoint.
    world.click(workspace, Class::Human).await;
    receiver.receives_at("/alive", 16).await;
    assert_eq!(receiver.requests_to("/dead").len(), 15 * 5);
    assert_eq!(world.state(alive).await, ("enabled".to_owned(), 0));
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_resets_the_streak() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, number| Answer::Status(if number < 10 { 500 } else { 200 })).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    for exhausted in 1..=2 {
        world.click(workspace, Class::Human).await;
        eventually("one more is exhausted", async || match world.state(endpoint).await {
            (_, count) if count == exhausted => Ok(()),
            state => Err(state),
        })
        .await;
    }
    world.click(workspace, Class::Human).await;
    eventually("the count is zero again", async || match world.state(endpoint).await {
        (_, 0) => Ok(()),
        state => Err(state),
    })
    .await;
    assert_eq!(receiver.requests().len(), 11);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_after_fourteen_exhausted_prevents_disabling() {
    const ATTEMPTS: usize = 14 * 5;
    let world = World::new().await;
    // The deliveries of each part have ended before the next part begins.
    let receiver =
        Receiver::start(|_, number| Answer::Status(if number == ATTEMPTS { 200 } else { 500 })).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    for (clicks, count) in [(14, 14), (1, 0), (14, 14)] {
        for _ in 0..clicks {
            world.click(workspace, Class::Human).await;
        }
        world.enqueued().await;
        eventually("the count is reached", async || match world.state(endpoint).await {
            (_, seen) if seen == count => Ok(()),
            state => Err(state),
        })
        .await;
        world.done().await;
    }
    assert_eq!(world.state(endpoint).await, ("enabled".to_owned(), 14));
    assert_eq!(notices(&world).await, [5, 10, 5, 10]);
    assert_eq!(receiver.requests().len(), ATTEMPTS + 1 + ATTEMPTS);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_404s_in_a_row_disable_nothing() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(404)).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    for _ in 0..20 {
        world.click(workspace, Class::Human).await;
    }
    eventually("each is rejected once", async || match world.failures(endpoint).await.len() {
        20 => Ok(()),
        count => Err(count),
    })
    .await;
    world.done().await;
    assert_eq!(world.state(endpoint).await, ("enabled".to_owned(), 0));
    assert_eq!(receiver.requests().len(), 20, "a 404 is final");
    assert!(notices(&world).await.is_empty());
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_dispatchers_disable_an_endpoint_once() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(500)).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let [first, second] = [world.dispatcher().await, world.dispatcher().await];
    for _ in 0..40 {
        world.click(workspace, Class::Human).await;
    }
    eventually("it is disabled", async || match world.state(endpoint).await {
        (status, 15) if status == "disabled" => Ok(()),
        state => Err(state),
    })
    .await;
    world.done().await;
    assert_eq!(world.state(endpoint).await, ("disabled".to_owned(), 15));
    assert_eq!(notices(&world).await, [5, 10, 15]);
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_enabled_again_gets_only_new_events_and_a_new_streak() {
    let world = World::new().await;
    let receiver = Receiver::start(|request, number| match number {
        // The fifteen that disable it. Older deliveries would be rejected, too.
        0..75 => Answer::Status(500),
        _ if request.header("x-service-event") == "link.deleted" => Answer::Status(500),
        _ => Answer::Status(200),
    })
    .await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created", "link.deleted"]).await;
    let dispatcher = world.dispatcher().await;
    for _ in 0..15 {
        world.click(workspace, Class::Human).await;
    }
    eventually("it is disabled", async || match world.state(endpoint).await {
        (status, 15) if status == "disabled" => Ok(()),
        state => Err(state),
    })
    .await;
    for _ in 0..5 {
        world.click(workspace, Class::Human).await;
    }
    world.enqueued().await;
    // A delivery that was stored before the endpoint was disabled and is not purged yet.
    let left: i64 = world
        .number(
            "WITH old AS (
                 INSERT INTO webhook_deliveries
                     (delivery_id, endpoint_id, workspace_id, epoch, event, body, created_at, attempts, due_at)
                 SELECT gen_random_uuid(), id, workspace_id, epoch, 'link.deleted', '{}', now(), 4, now()
                 FROM webhook_endpoints, generate_series(1, 3) RETURNING 1
             ) SELECT count(*) FROM old",
        )
        .await;
    assert_eq!(left, 3);
    world.enable(endpoint).await;
    let click = world.click(workspace, Class::Human).await;
    eventually("the new click arrives", async || {
        let requests = receiver.requests();
        match requests.last() {
            Some(last) if requests.len() == 76 && last.json()["data"]["click_id"] == *click => Ok(()),
            _ => Err(requests.len()),
        }
    })
    .await;
    world.done().await;
    assert_eq!(world.state(endpoint).await, ("enabled".to_owned(), 0));
    assert_eq!(receiver.requests().len(), 76);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_of_a_deleted_endpoint_or_lost_plan_are_removed() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(500)).await;
    let (deleted, unpaid) = (world.workspace("business").await, world.workspace("agency").await);
    let gone = world.endpoint(deleted, &receiver.url("/gone"), &["click.created"]).await;
    world.endpoint(unpaid, &receiver.url("/unpaid"), &["click.created"]).await;
    let dispatcher =
        world.dispatcher_with(|config| config.tuning.retry_base = Duration::from_secs(600)).await;
    for workspace in [deleted, unpaid] {
        world.click(workspace, Class::Human).await;
    }
    eventually("both have failed once", async || {
        match world.number("SELECT count(*) FROM webhook_failures").await {
            2 => Ok(()),
            count => Err(count),
        }
    })
    .await;
    sqlx::query("DELETE FROM webhook_endpoints WHERE id = $1")
        .bind(gone.uuid())
        .execute(&world.pool)
        .await
        .unwrap();
    world.set_plan(unpaid, "free").await;
    // Long before their retries are due.
    world.done().await;
    assert_eq!(receiver.requests().len(), 2);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_of_a_suspended_account_wait_and_use_no_attempt() {
    let world = World::new().await;
    let (release, released) = watch::channel(false);
    let receiver = Receiver::start(move |_, number| match number {
        0 => Answer::Held(released.clone(), 503),
        _ => Answer::Status(200),
    })
    .await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    world.click(workspace, Class::Human).await;
    receiver.receives(1).await;
    // Before the first attempt ends, so that its retry becomes due afterwards.
    world.suspend(workspace, true).await;
    release.send_replace(true);
    // The retry is neither sent nor removed.
    let postponed = "SELECT count(*) FROM webhook_deliveries WHERE due_at > now() + interval '30 seconds' \
        AND attempts = 1";
    eventually("it is postponed", async || match world.number(postponed).await {
        1 => Ok(()),
        count => Err(count),
    })
    .await;
    assert_eq!((receiver.requests().len(), world.pending().await), (1, 1));
    world.suspend(workspace, false).await;
    world.make_due().await;
    world.done().await;
    assert_eq!(receiver.requests().len(), 2);
    dispatcher.stop().await;
}
