//! Clicks that a killed edge sends again, marked as possible repeats.

use schemas::message::{Class, Click};
use tests::receiver::{Answer, Receiver};

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_click_sent_again_keeps_its_delivery_id() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    let click = World::new_click(workspace, Class::Human);
    let again = Click { again: true, ..click.clone() };
    for (copy, requests) in [(&click, 1), (&again, 2), (&again, 2), (&click, 2)] {
        world.publish_click(copy).await;
        world.enqueued().await;
        world.done().await;
        assert_eq!(receiver.requests().len(), requests);
    }
    let requests = receiver.requests();
    assert_eq!(requests[0].delivery(), requests[1].delivery());
    assert_eq!(requests[0].body, requests[1].body);
    assert_eq!(world.number("SELECT count(*) FROM webhook_finished").await, 1);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_click_sent_again_gets_no_second_waiting_delivery() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Silence).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    let click = World::new_click(workspace, Class::Human);
    for again in [false, true] {
        world.publish_click(&Click { again, ..click.clone() }).await;
        world.enqueued().await;
        assert_eq!(world.pending().await, 1);
    }
    dispatcher.kill().await;
}
