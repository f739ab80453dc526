//! The position at which a dispatcher continues: the one in Postgres, unless the log does not have that offset.

use std::collections::HashSet;

use schemas::message::{Class, Message as _};
use schemas::topic;
use tests::receiver::{Answer, Receiver};
use tests::{eventually, metric};

use crate::world::{Dispatcher, Workspace, World};

/// Creates an endpoint that gets every click.
async fn listening(world: &World) -> (Receiver, Workspace) {
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    (receiver, workspace)
}

async fn click_in(world: &World, workspace: Workspace, partition: i32) {
    let click = World::new_click(workspace, Class::Human);
    world.publish_to(topic::CLICKS, partition, &click.encode()).await;
}

/// Waits until every event is in the queue and every delivery has arrived, and counts them.
async fn arrived(world: &World, receiver: &Receiver) -> usize {
    world.enqueued().await;
    world.done().await;
    receiver.requests().len()
}

/// Waits until a dispatcher has reported that it does not continue at a stored position.
async fn wait_for_jump(dispatcher: &Dispatcher, reason: &str) {
    let jumps = format!("hopline_webhook_position_jumps_total{{reason=\"{reason}\"}}");
    eventually("the jump is counted", async || match metric(&dispatcher.operations_url, &jumps).await {
        0.0 => Err(0),
        _ => Ok(()),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_position_in_postgres_wins() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    for _ in 0..3 {
        world.click(workspace, Class::Human).await;
    }
    receiver.receives(3).await;
    dispatcher.stop().await;

    // As after a restore from a backup: Kafka's committed offsets are ahead of the database's.
    sqlx::query("UPDATE webhook_offsets SET next_offset = 0").execute(&world.pool).await.unwrap();
    let dispatcher = world.dispatcher().await;
    receiver.receives(6).await;
    dispatcher.stop().await;
    let ids: HashSet<String> =
        receiver.requests().iter().map(|request| request.delivery().to_owned()).collect();
    assert_eq!(ids.len(), 3, "a repeat has the id of the first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_beyond_the_end_of_a_log_affects_only_its_partition() {
    let world = World::new().await;
    let (receiver, workspace) = listening(&world).await;
    let dispatcher = world.dispatcher().await;
    for partition in 0..topic::CLICKS.partitions {
        click_in(&world, workspace, partition).await;
    }
    assert_eq!(arrived(&world, &receiver).await, 6);
    dispatcher.stop().await;

    // As after Kafka lost the end of one log.
    let clicks = world.isolated.topic(topic::CLICKS);
    sqlx::query("UPDATE webhook_offsets SET next_offset = 1000 WHERE topic = $1 AND partition_id = 0")
        .bind(&clicks)
        .execute(&world.pool)
        .await
        .unwrap();
    for partition in 0..topic::CLICKS.partitions {
        click_in(&world, workspace, partition).await;
    }
    let dispatcher = world.dispatcher().await;
    assert_eq!(arrived(&world, &receiver).await, 11, "the first partition continues at its end");
    wait_for_jump(&dispatcher, "beyond-end").await;
    click_in(&world, workspace, 0).await;
    assert_eq!(arrived(&world, &receiver).await, 12);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn committed_offsets_replace_missing_positions() {
    let world = World::new().await;
    let (receiver, workspace) = listening(&world).await;
    let dispatcher = world.dispatcher().await;
    for partition in 0..topic::CLICKS.partitions {
        click_in(&world, workspace, partition).await;
    }
    assert_eq!(arrived(&world, &receiver).await, 6);
    world.committed().await;
    dispatcher.stop().await;

    sqlx::query("DELETE FROM webhook_offsets").execute(&world.pool).await.unwrap();
    click_in(&world, workspace, 0).await;
    let dispatcher = world.dispatcher().await;
    assert_eq!(arrived(&world, &receiver).await, 7, "old events are not sent again");
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_topic_is_read_from_its_start() {
    let world = World::new().await;
    let (receiver, workspace) = listening(&world).await;
    let dispatcher = world.dispatcher().await;
    for _ in 0..3 {
        click_in(&world, workspace, 0).await;
    }
    assert_eq!(arrived(&world, &receiver).await, 3);
    dispatcher.stop().await;

    // The new log has the stored offset, and none of its records was read.
    world.isolated.recreate_topic(topic::CLICKS).await;
    for _ in 0..5 {
        click_in(&world, workspace, 0).await;
    }
    let dispatcher = world.dispatcher().await;
    assert_eq!(arrived(&world, &receiver).await, 8);
    wait_for_jump(&dispatcher, "other-topic").await;

    world.isolated.recreate_topic(topic::CLICKS).await;
    click_in(&world, workspace, 0).await;
    assert_eq!(arrived(&world, &receiver).await, 9, "a running dispatcher notices");
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_former_owner_of_a_partition_inserts_nothing() {
    let world = World::new().await;
    let (receiver, workspace) = listening(&world).await;
    let dispatcher = world.dispatcher().await;
    click_in(&world, workspace, 0).await;
    assert_eq!(arrived(&world, &receiver).await, 1);

    let mut other = world.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM webhook_offsets FOR UPDATE").execute(&mut *other).await.unwrap();
    click_in(&world, workspace, 0).await;
    eventually("its transaction waits", async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                       AND wait_event_type = 'Lock' AND query LIKE 'UPDATE webhook_offsets%'";
        if world.number(waiting).await == 1 { Ok(()) } else { Err("no") }
    })
    .await;
    // As if another dispatcher had queued and delivered the second click.
    sqlx::query("UPDATE webhook_offsets SET next_offset = 2 WHERE next_offset = 1")
        .execute(&mut *other)
        .await
        .unwrap();
    other.commit().await.unwrap();
    click_in(&world, workspace, 0).await;
    assert_eq!(arrived(&world, &receiver).await, 2, "the first click and the third");
    dispatcher.stop().await;
}
