//! The limits of the rows of one endpoint, and of one account.

use std::time::Duration;

use schemas::message::Class;
use tests::eventually;
use tests::receiver::{Answer, Receiver};

use crate::world::{Workspace, World};

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
                config.tuning.retry_base = Duration::from_secs(600);
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
async fn the_queues_of_an_account_are_full_together() {
    let world = World::new().await;
    let (dead, healthy) = (
        Receiver::start(|_, _| Answer::Status(503)).await,
        Receiver::start(|_, _| Answer::Status(200)).await,
    );
    let workspace = world.workspace("business").await;
    let workspaces = [workspace, world.another_workspace(workspace).await, world.workspace("business").await];
    for (workspace, endpoints) in workspaces.into_iter().zip([7, 7, 1]) {
        for _ in 0..endpoints {
            world.endpoint(workspace, &dead.url("/"), &["click.created"]).await;
        }
    }
    let dispatcher = world
        .dispatcher_with(|config| {
            config.webhook_queue_limit = 4;
            config.tuning.retry_base = Duration::from_secs(600);
        })
        .await;
    // No queue has 4 deliveries, but the account's 14 queues have more than 40 together.
    for _ in 0..3 {
        for workspace in workspaces {
            world.click(workspace, Class::Human).await;
        }
    }
    let full = async |workspace: Workspace| {
        let query = "SELECT count(*) FROM webhook_health h JOIN webhook_endpoints e ON e.id = h.endpoint_id
                     WHERE h.is_full AND e.workspace_id = $1";
        let count: i64 =
            sqlx::query_scalar(query).bind(workspace.id.uuid()).fetch_one(&world.pool).await.unwrap();
        count
    };
    eventually("the account's queues are full", async || {
        match (full(workspaces[0]).await, full(workspaces[1]).await) {
            (7, 7) => Ok(()),
            counts => Err(counts),
        }
    })
    .await;
    eventually("all deliveries wait", async || match world.pending().await {
        45 => Ok(()),
        count => Err(count),
    })
    .await;
    assert_eq!(full(workspaces[2]).await, 0, "another account's queue");

    // A queue that has less than its share takes events.
    world.endpoint(workspace, &healthy.url("/"), &["click.created"]).await;
    world.click(workspace, Class::Human).await;
    healthy.receives(1).await;
    eventually("the others dropped it", async || {
        match world.number("SELECT sum(dropped)::bigint FROM webhook_health").await {
            7 => Ok(()),
            count => Err(count),
        }
    })
    .await;
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoints_of_an_account_share_what_is_kept_of_failures() {
    let world = World::new().await;
    let (many, few) = ("http://127.0.0.1:1/many", "http://127.0.0.1:1/few");
    let account = world.workspace("business").await;
    let other = world.workspace("business").await;
    for (workspace, url, endpoints) in [
        (account, many, 7),
        (world.another_workspace(account).await, many, 5),
        (other, many, 1),
        (world.another_workspace(other).await, few, 11),
    ] {
        for _ in 0..endpoints {
            world.endpoint(workspace, url, &["click.created"]).await;
        }
    }
    for rows in [
        "INSERT INTO webhook_failures
         SELECT gen_random_uuid(), id, gen_random_uuid(), 'click.created', 1, 404, NULL, 'no', 1,
                now() - make_interval(secs => n), NULL
         FROM webhook_endpoints, generate_series(1, 60) AS n WHERE n = 1 OR url LIKE '%/many'",
        "INSERT INTO webhook_failed_deliveries
         SELECT gen_random_uuid(), id, workspace_id, 'click.created', '', now(), now() - make_interval(secs => n),
                404, NULL, 1
         FROM webhook_endpoints, generate_series(1, 60) AS n WHERE n = 1 OR url LIKE '%/many'",
    ] {
        sqlx::query(rows).execute(&world.pool).await.unwrap();
    }
    let dispatcher = world
        .dispatcher_with(|config| {
            config.webhook_failure_limit = 4;
            config.webhook_queue_limit = 7;
        })
        .await;
    // Twelve endpoints of one account have equal parts. Of another account, eleven have little, so the twelfth has as
    // much as one may.
    for (rows, part, most) in [
        ("webhook_failures", 400 / 12, 40),
        ("webhook_failures WHERE response_body = 'no'", 40 / 12, 4),
        ("webhook_failed_deliveries", 70 / 12, 7),
    ] {
        let expected = [vec![1; 11], vec![part; 12], vec![most]].concat();
        let query = format!("SELECT count(*) FROM {rows} GROUP BY endpoint_id ORDER BY 1");
        eventually(rows, async || {
            let kept: Vec<i64> =
                sqlx::query_scalar(sqlx::AssertSqlSafe(&*query)).fetch_all(&world.pool).await.unwrap();
            if kept == expected { Ok(()) } else { Err(kept) }
        })
        .await;
    }
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
