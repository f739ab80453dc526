//! The position at which a dispatcher continues: the one in Postgres, unless the log does not have that offset.

use std::collections::HashSet;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use schemas::message::{Class, Message as _};
use schemas::topic;
use tests::engines::http_client;
use tests::eventually;
use tests::receiver::{Answer, Receiver};

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
async fn has_jumped(dispatcher: &Dispatcher, reason: &str) {
    let url = format!("{}/metrics", dispatcher.operations_url);
    eventually("the jump is counted", async || {
        let metrics = http_client().get(&url).send().await.unwrap().text().await.unwrap();
        let line = format!("hopline_webhook_position_jumps_total{{reason=\"{reason}\"}}");
        if metrics.contains(&line) { Ok(()) } else { Err(metrics) }
    })
    .await;
}

/// Deletes and recreates the topic of clicks.
async fn make_anew(world: &World) {
    let admin: AdminClient<DefaultClientContext> = world.isolated.kafka().create().unwrap();
    let name = world.isolated.topic(topic::CLICKS);
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
    admin.delete_topics(&[&name], &options).await.unwrap().remove(0).unwrap();
    let new = NewTopic::new(&name, topic::CLICKS.partitions, TopicReplication::Fixed(1));
    let new = topic::CLICKS.config.iter().fold(new, |new, (key, value)| new.set(key, value));
    // Kafka deletes the former topic with a delay.
    eventually("the topic is made anew", async || {
        admin.create_topics([&new], &options).await.unwrap().remove(0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_and_not_kafka_says_where_to_go_on() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    for _ in 0..3 {
        world.click(workspace, Class::Human).await;
    }
    eventually("three arrive", async || match receiver.requests().len() {
        3 => Ok(()),
        count => Err(count),
    })
    .await;
    dispatcher.stop().await;

    // As after a restore from a backup: Kafka's committed offsets are ahead of the database's.
    sqlx::query("UPDATE webhook_offsets SET next_offset = 0").execute(&world.pool).await.unwrap();
    let dispatcher = world.dispatcher().await;
    eventually("the three arrive again", async || match receiver.requests().len() {
        6 => Ok(()),
        count => Err(count),
    })
    .await;
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
    assert_eq!(arrived(&world, &receiver).await, 11, "the first partition goes on at its end");
    has_jumped(&dispatcher, "beyond-end").await;
    click_in(&world, workspace, 0).await;
    assert_eq!(arrived(&world, &receiver).await, 12);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_positions_in_postgres_the_committed_offsets_say_where_to_go_on() {
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

    // Its log has the stored offset, and no record of it was read.
    make_anew(&world).await;
    for _ in 0..5 {
        click_in(&world, workspace, 0).await;
    }
    let dispatcher = world.dispatcher().await;
    assert_eq!(arrived(&world, &receiver).await, 8);
    has_jumped(&dispatcher, "other-topic").await;

    make_anew(&world).await;
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
