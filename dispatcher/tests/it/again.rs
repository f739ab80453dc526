//! Clicks that an edge sends again after it was killed.

use chrono::TimeDelta;
use schemas::message::{Class, Click};
use tests::eventually;
use tests::receiver::{Answer, Receiver};

use crate::world::{SOON, World};

async fn arrived(receiver: &Receiver, expected: usize) {
    eventually("as many deliveries as events", SOON, async || match receiver.requests().len() {
        count if count == expected => Ok(()),
        count => Err(count),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_click_sent_again_after_its_delivery_makes_no_second_one() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    let clicks: Vec<Click> = (0..5).map(|_| World::new_click(workspace, Class::Human)).collect();
    for click in &clicks {
        world.publish_click(click).await;
    }
    arrived(&receiver, 5).await;
    world.done().await;

    let again = |click: &Click| Click { again: true, ..click.clone() };
    for click in &clicks {
        world.publish_click(&again(click)).await;
    }
    // One that never arrived before.
    world.publish_click(&again(&World::new_click(workspace, Class::Human))).await;
    world.fanned_out().await;
    arrived(&receiver, 6).await;
    world.done().await;

    // Whoever has not read the first copies knows too.
    dispatcher.stop().await;
    let dispatcher = world.dispatcher().await;
    for click in &clicks {
        world.publish_click(&again(click)).await;
    }
    world.click(workspace, Class::Human).await;
    world.fanned_out().await;
    arrived(&receiver, 7).await;
    world.done().await;
    assert_eq!(receiver.requests().len(), 7);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_old_copies_the_second_is_known_by_the_end_of_the_first() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    // Too old for the topic to be searched.
    let occurred_at = chrono::Utc::now() - TimeDelta::hours(30);
    let click = Click { again: true, occurred_at, ..World::new_click(workspace, Class::Human) };
    world.publish_click(&click).await;
    arrived(&receiver, 1).await;
    world.done().await;
    world.publish_click(&click).await;
    world.click(workspace, Class::Human).await;
    world.fanned_out().await;
    arrived(&receiver, 2).await;
    world.done().await;
    assert_eq!(receiver.requests().len(), 2);
    assert_eq!(world.number("SELECT count(*) FROM webhook_finished").await, 1);
    dispatcher.stop().await;
}
