//! When an endpoint is disabled, and when it is not.

use schemas::message::Class;
use tests::eventually;
use tests::receiver::{Answer, Receiver};

use crate::world::{SOON, World};

#[tokio::test(flavor = "multi_thread")]
async fn fifteen_exhausted_deliveries_in_a_row_disable_an_endpoint_and_only_it() {
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
    eventually("fourteen are exhausted", SOON, async || match world.state(dead).await {
        (status, 14) if status == "enabled" => Ok(()),
        state => Err(state),
    })
    .await;
    assert_eq!(receiver.requests_to("/dead").len(), 14 * 5);
    world.click(workspace, Class::Human).await;
    eventually("the fifteenth disables it", SOON, async || match world.state(dead).await {
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

    // The sixteenth goes to the endpoint that is alive, and to it alone.
    world.click(workspace, Class::Human).await;
    eventually("the living endpoint has them all", SOON, async || {
        match receiver.requests_to("/alive").len() {
            16 => Ok(()),
            count => Err(count),
        }
    })
    .await;
    assert_eq!(receiver.requests_to("/dead").len(), 15 * 5);
    assert_eq!(world.state(alive).await, ("enabled".to_owned(), 0));
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_in_between_starts_the_count_again() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, number| Answer::Status(if number < 10 { 500 } else { 200 })).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    for exhausted in 1..=2 {
        world.click(workspace, Class::Human).await;
        eventually("one more is exhausted", SOON, async || match world.state(endpoint).await {
            (_, count) if count == exhausted => Ok(()),
            state => Err(state),
        })
        .await;
    }
    world.click(workspace, Class::Human).await;
    eventually("the count is zero again", SOON, async || match world.state(endpoint).await {
        (_, 0) => Ok(()),
        state => Err(state),
    })
    .await;
    assert_eq!(receiver.requests().len(), 11);
    dispatcher.stop().await;
}
