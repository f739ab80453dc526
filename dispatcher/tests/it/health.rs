//! The last success and the last failure of an endpoint.

use chrono::{DateTime, Utc};
use schemas::id::EndpointId;
use schemas::message::Class;
use tests::eventually;
use tests::receiver::{Answer, Receiver};

use crate::world::World;

type Moments = (Option<DateTime<Utc>>, Option<DateTime<Utc>>);

/// Last success and last failure of an endpoint.
async fn moments(world: &World, endpoint: EndpointId) -> Moments {
    sqlx::query_as("SELECT last_success_at, last_failure_at FROM webhook_health WHERE endpoint_id = $1")
        .bind(endpoint.uuid())
        .fetch_optional(&world.pool)
        .await
        .unwrap()
        .unwrap_or_default()
}

async fn wait_for(world: &World, endpoint: EndpointId, name: &str, is_there: fn(Moments) -> bool) -> Moments {
    eventually(name, async || match moments(world, endpoint).await {
        moments if is_there(moments) => Ok(moments),
        moments => Err(moments),
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_success_and_failure_are_stored_including_4xx() {
    let world = World::new().await;
    let receiver =
        Receiver::start(|_, number| Answer::Status(if number == 1 || number == 2 { 400 } else { 200 })).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    let begun = Utc::now();

    world.click(workspace, Class::Human).await;
    let first = wait_for(&world, endpoint, "a success", |(success, _)| success.is_some()).await;
    assert!(first.0 >= Some(begun) && first.1.is_none());

    for _ in 0..2 {
        world.click(workspace, Class::Human).await;
    }
    eventually("two are rejected", async || match world.failures(endpoint).await.len() {
        2 => Ok(()),
        count => Err(count),
    })
    .await;
    // It is stored together with the failure, so the test does not wait.
    let failing = moments(&world, endpoint).await;
    assert!(failing.0 == first.0 && failing.1 > failing.0, "{failing:?}");
    assert_eq!(world.state(endpoint).await, ("enabled".to_owned(), 0));

    world.click(workspace, Class::Human).await;
    let healthy =
        wait_for(&world, endpoint, "it succeeds again", |(success, failure)| success > failure).await;
    assert_eq!(healthy.1, failing.1);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_success_before_a_stop_is_stored() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    for clicks in 1..=20 {
        world.click(workspace, Class::Human).await;
        receiver.receives(clicks).await;
    }
    let before_last = receiver.requests()[18].at;
    dispatcher.stop().await;
    let (success, _) = moments(&world, endpoint).await;
    assert!(success.unwrap() > DateTime::<Utc>::from(before_last));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_health_of_a_deleted_endpoint_is_removed() {
    let world = World::new().await;
    let workspace = world.workspace("business").await;
    let kept = world.endpoint(workspace, "https://hooks.example/", &["click.created"]).await;
    sqlx::query(
        "INSERT INTO webhook_health (endpoint_id, last_success_at) VALUES (gen_random_uuid(), now()), ($1, now())",
    )
    .bind(kept.uuid())
    .execute(&world.pool)
    .await
    .unwrap();
    let dispatcher = world.dispatcher().await;
    eventually("it is removed", async || match world.number("SELECT count(*) FROM webhook_health").await {
        1 => Ok(()),
        count => Err(count),
    })
    .await;
    assert!(moments(&world, kept).await.0.is_some());
    dispatcher.stop().await;
}
