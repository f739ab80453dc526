//! The failure log, redelivery from it, and test events.

use schemas::id::EndpointId;
use schemas::message::Class;
use tests::eventually;
use tests::receiver::{Answer, Receiver};
use uuid::Uuid;

use crate::world::{SECRET, World};

async fn redeliver(world: &World, endpoint: EndpointId, ids: Option<Vec<Uuid>>, hours_back: i32) -> i64 {
    sqlx::query_scalar("SELECT webhook_redeliver($1, $2, now() - make_interval(hours => $3), now())")
        .bind(endpoint.uuid())
        .bind(ids)
        .bind(hours_back)
        .fetch_one(&world.pool)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn redelivery_by_id_or_time_keeps_id_and_body() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, number| Answer::Status(if number < 3 { 404 } else { 200 })).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    for _ in 0..3 {
        world.click(workspace, Class::Human).await;
    }
    eventually("three are rejected", async || match world.failures(endpoint).await.len() {
        3 => Ok(()),
        count => Err(count),
    })
    .await;
    world.done().await;
    let refused = receiver.requests();

    let one: Uuid = refused[0].delivery().parse().unwrap();
    assert_eq!(redeliver(&world, endpoint, Some(vec![one, Uuid::now_v7()]), 0).await, 1);
    world.done().await;
    // Only the other two, because the first has arrived.
    assert_eq!(redeliver(&world, endpoint, None, 1).await, 2);
    world.done().await;
    assert_eq!(redeliver(&world, endpoint, None, 1).await, 0);
    let again = receiver.requests().split_off(3);
    assert_eq!(again.len(), 3);
    for request in &again {
        let first = refused.iter().find(|first| first.delivery() == request.delivery()).unwrap();
        assert_eq!(first.body, request.body);
        assert!(request.is_signed_with(SECRET));
    }
    // A redelivery by id includes deliveries that have arrived, but none of another endpoint.
    assert_eq!(redeliver(&world, EndpointId::from_uuid(Uuid::now_v7()), Some(vec![one]), 0).await, 0);
    assert_eq!(redeliver(&world, endpoint, Some(vec![one]), 0).await, 1);
    world.done().await;
    assert_eq!(receiver.requests().len(), 7);
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_and_their_requests_are_removed_after_seven_days() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(404)).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    for _ in 0..2 {
        world.click(workspace, Class::Human).await;
    }
    eventually("two are rejected", async || match world.failures(endpoint).await.len() {
        2 => Ok(()),
        count => Err(count),
    })
    .await;
    dispatcher.stop().await;
    for statement in [
        "UPDATE webhook_failures SET attempted_at = now() - interval '7 days 1 minute'
         WHERE id = (SELECT min(id::text)::uuid FROM webhook_failures)",
        "UPDATE webhook_failed_deliveries SET failed_at = now() - interval '7 days 1 minute'
         WHERE delivery_id IN (SELECT delivery_id FROM webhook_failures WHERE attempted_at < now() - interval '1 day')",
        "INSERT INTO webhook_finished VALUES (gen_random_uuid(), now() - interval '25 hours'), \
            (gen_random_uuid(), now())",
    ] {
        sqlx::query(statement).execute(&world.pool).await.unwrap();
    }
    assert_eq!(redeliver(&world, endpoint, None, 24 * 30).await, 1);
    sqlx::query("DELETE FROM webhook_deliveries").execute(&world.pool).await.unwrap();

    // The first round of a new dispatcher removes expired rows.
    let dispatcher = world.dispatcher().await;
    for (table, count) in [
        ("attempts", "SELECT count(*) FROM webhook_failures"),
        ("requests", "SELECT count(*) FROM webhook_failed_deliveries"),
        ("finished", "SELECT count(*) FROM webhook_finished"),
    ] {
        eventually(table, async || match world.number(count).await {
            1 => Ok(()),
            left => Err(left),
        })
        .await;
    }
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_each_attempt_and_the_request_once() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, number| match number {
        0..2 => Answer::Full(503, ("x-any", "1".to_owned()), vec![0xff; 10_000]),
        _ => Answer::Status(200),
    })
    .await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    world.click(workspace, Class::Human).await;
    eventually("two have failed", async || match world.failures(endpoint).await.len() {
        2 => Ok(()),
        count => Err(count),
    })
    .await;
    world.done().await;
    dispatcher.stop().await;
    let failures = world.failures(endpoint).await;
    assert!(failures.iter().all(|failure| failure.1 == Some(503) && failure.3.len() <= 4096));
    let complete = "SELECT count(*) FROM webhook_failures
                    WHERE next_attempt_at > attempted_at AND duration_ms BETWEEN 0 AND 15000";
    assert_eq!(world.number(complete).await, 2);
    let body: (Vec<u8>, bool) =
        sqlx::query_as("SELECT body, delivered_at IS NOT NULL FROM webhook_failed_deliveries")
            .fetch_one(&world.pool)
            .await
            .unwrap();
    assert_eq!(body, (receiver.requests()[0].body.to_vec(), true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_event_goes_through_the_same_queue() {
    let world = World::new().await;
    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &receiver.url("/"), &["link.created"]).await;
    let dispatcher = world.dispatcher().await;
    let id = Uuid::now_v7();
    // As the API does it.
    sqlx::query(
        "INSERT INTO webhook_deliveries
             (delivery_id, endpoint_id, workspace_id, epoch, event, body, created_at, is_remembered, due_at)
         SELECT $1, id, workspace_id, epoch, 'endpoint.test', $3, now(), true, now()
         FROM webhook_endpoints WHERE id = $2 AND status = 'enabled'",
    )
    .bind(id)
    .bind(endpoint.uuid())
    .bind(format!(r#"{{"id":"{id}","event":"endpoint.test"}}"#).into_bytes())
    .execute(&world.pool)
    .await
    .unwrap();
    world.done().await;
    let requests = receiver.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].is_signed_with(SECRET));
    assert_eq!(requests[0].header("x-service-event"), "endpoint.test");
    assert_eq!(requests[0].delivery(), id.to_string());
    let remembered: (Uuid, Option<Uuid>, Option<i16>) =
        sqlx::query_as("SELECT delivery_id, delivered_to, attempts FROM webhook_finished")
            .fetch_one(&world.pool)
            .await
            .unwrap();
    assert_eq!(remembered, (id, Some(endpoint.uuid()), Some(1)), "the API can show its success");
    dispatcher.stop().await;
}
