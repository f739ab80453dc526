//! The limits of the rows of one endpoint.

use schemas::message::Class;
use tests::eventually;
use tests::receiver::{Answer, Receiver};

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_drops_and_counts_only_its_own_events() {
    let world = World::new().await;
    let (dead, healthy) = (
        Receiver::start(|_, _| Answer::Status(503)).await,
        Receiver::start(|_, _| Answer::Status(200)).await,
    );
    let workspace = world.workspace("business").await;
    let full = world.endpoint(workspace, &dead.url("/"), &["click.created"]).await;
    world.endpoint(workspace, &healthy.url("/"), &["click.created"]).await;
    let start = async || {
        world
            .dispatcher_with(|config| {
                config.webhook_queue_limit = 3;
                config.tuning.retry_base = std::time::Duration::from_secs(600);
            })
            .await
    };
    let dispatcher = start().await;
    for _ in 0..3 {
        world.click(workspace, Class::Human).await;
    }
    let is_full = "SELECT count(*) FROM webhook_health WHERE is_full";
    eventually("the queue is full", async || match world.number(is_full).await {
        1 => Ok(()),
        count => Err(count),
    })
    .await;
    for _ in 0..5 {
        world.click(workspace, Class::Human).await;
    }
    let dropped =
        "SELECT coalesce(max(dropped), 0)::bigint FROM webhook_health WHERE first_dropped_at IS NOT NULL
                   AND last_dropped_at >= first_dropped_at";
    eventually("five were dropped", async || match world.number(dropped).await {
        5 => Ok(()),
        count => Err(count),
    })
    .await;
    healthy.receives(8).await;
    // A delivery is removed a moment after its receiver answered.
    eventually("three are left in the full queue", async || match world.pending().await {
        3 => Ok(()),
        count => Err(count),
    })
    .await;

    // Once there is room, events are queued again, also by a new dispatcher.
    dispatcher.stop().await;
    sqlx::query("DELETE FROM webhook_deliveries WHERE endpoint_id = $1")
        .bind(full.uuid())
        .execute(&world.pool)
        .await
        .unwrap();
    let dispatcher = start().await;
    eventually("the queue has room", async || match world.number(is_full).await {
        0 => Ok(()),
        count => Err(count),
    })
    .await;
    world.click(workspace, Class::Human).await;
    eventually("one waits", async || match world.pending().await {
        1 => Ok(()),
        count => Err(count),
    })
    .await;
    assert_eq!(world.number(dropped).await, 5);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_failure_log_keeps_the_newest_attempts_and_fewer_bodies() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Full(404, ("x-any", "1".to_owned()), b"no".to_vec())).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    world.click(workspace, Class::Human).await;
    eventually("one is rejected", async || match world.failures(endpoint).await.len() {
        1 => Ok(()),
        count => Err(count),
    })
    .await;
    dispatcher.stop().await;
    for copies in [
        "INSERT INTO webhook_failures
         SELECT gen_random_uuid(), endpoint_id, delivery_id, event, attempt, status_code, error_class, response_body,
                duration_ms, attempted_at - make_interval(secs => n), next_attempt_at
         FROM webhook_failures, generate_series(1, 60) AS n",
        "INSERT INTO webhook_failed_deliveries
         SELECT gen_random_uuid(), endpoint_id, workspace_id, event, body, created_at,
                failed_at - make_interval(secs => n), status_code, error_class, attempts
         FROM webhook_failed_deliveries, generate_series(1, 60) AS n",
    ] {
        sqlx::query(copies).execute(&world.pool).await.unwrap();
    }
    // The first round of a new dispatcher removes rows above the limits.
    let dispatcher = world
        .dispatcher_with(|config| {
            config.webhook_failure_limit = 4;
            config.webhook_queue_limit = 7;
        })
        .await;
    for (count, expected) in [
        ("SELECT count(*) FROM webhook_failures", 40),
        ("SELECT count(*) FROM webhook_failures WHERE response_body = 'no'", 4),
        ("SELECT count(*) FROM webhook_failed_deliveries", 7),
    ] {
        eventually(count, async || match world.number(count).await {
            found if found == expected => Ok(()),
            found => Err(found),
        })
        .await;
    }
    let kept =
        "SELECT extract(epoch FROM max(attempted_at) - min(attempted_at))::bigint FROM webhook_failures";
    assert_eq!(world.number(kept).await, 39, "the oldest are removed");
    dispatcher.stop().await;
}
