//! The failure log, redelivery and test events over HTTP. The dispatcher has its own tests; these tests fill its tables
//! themselves.

use reqwest::Method;
use schemas::id::EndpointId;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::server::{Server, text};

/// Creates an endpoint in the workspace of a key.
async fn create_as(server: &Server, key: &str) -> EndpointId {
    let body = json!({"url": "https://hooks.example.com/in", "events": ["click.created"]});
    let created = server.send_as(key, Method::POST, "/api/webhooks", Some(body)).await;
    assert_eq!(created.status, 201, "{}", created.body);
    text(&created.body["id"]).parse().unwrap()
}

async fn create(server: &Server) -> EndpointId {
    create_as(server, &server.key).await
}

/// Writes a failed attempt, as the dispatcher does, this number of minutes ago; returns its delivery's id.
async fn fail(server: &Server, endpoint: EndpointId, minutes_ago: i32) -> Uuid {
    let delivery = Uuid::now_v7();
    let mut postgres = server.engines.postgres().await;
    sqlx::query(
        "INSERT INTO webhook_failures (id, endpoint_id, delivery_id, event, attempt, status_code, response_body,
                                       duration_ms, attempted_at, next_attempt_at)
         VALUES (gen_random_uuid(), $1, $2, 'click.created', 1, 500, 'no', 7,
                 date_trunc('minute', now()) - make_interval(mins => $3), now() + interval '10 seconds')",
    )
    .bind(endpoint.uuid())
    .bind(delivery)
    .bind(minutes_ago)
    .execute(&mut postgres)
    .await
    .unwrap();
    sqlx::query(
        "INSERT INTO webhook_failed_deliveries (delivery_id, endpoint_id, workspace_id, event, body, created_at,
                                                attempts, failed_at)
         SELECT $2, id, workspace_id, 'click.created', 'body', now(), 1,
                date_trunc('minute', now()) - make_interval(mins => $3)
         FROM webhook_endpoints WHERE id = $1",
    )
    .bind(endpoint.uuid())
    .bind(delivery)
    .bind(minutes_ago)
    .execute(&mut postgres)
    .await
    .unwrap();
    delivery
}

/// Runs a statement with an endpoint's id.
async fn run(server: &Server, statement: &'static str, id: Uuid) {
    sqlx::query(statement).bind(id).execute(&mut server.engines.postgres().await).await.unwrap();
}

/// Returns the ids of the deliveries that wait for the dispatcher, in order.
async fn queued(server: &Server) -> Vec<Uuid> {
    sqlx::query_scalar("SELECT delivery_id FROM webhook_deliveries ORDER BY delivery_id")
        .fetch_all(&mut server.engines.postgres().await)
        .await
        .unwrap()
}

async fn redeliver(server: &Server, endpoint: EndpointId, body: Value) -> Value {
    let path = format!("/api/webhooks/{endpoint}/redeliver");
    let answer = server.send(Method::POST, &path, Some(body)).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    answer.body
}

#[tokio::test]
async fn failed_attempts_of_seven_days_are_paged_newest_first() {
    let server = Server::start().await;
    let (endpoint, other) = (create(&server).await, create(&server).await);
    fail(&server, other, 0).await;
    let mut expected = Vec::new();
    // Three of one instant, and one on either side of the limit of seven days.
    for minutes in [1, 1, 1, 2, 3, 7 * 24 * 60 - 5] {
        expected.push(fail(&server, endpoint, minutes).await);
    }
    fail(&server, endpoint, 7 * 24 * 60 + 5).await;

    let path = format!("/api/webhooks/{endpoint}/failures");
    let mut listed = Vec::new();
    let mut next = format!("{path}?limit=2");
    loop {
        let page = server.send(Method::GET, &next, None).await;
        assert_eq!(page.status, 200, "{}", page.body);
        listed.extend(page.body["failures"].as_array().unwrap().clone());
        match page.body["next_cursor"].as_str() {
            Some(cursor) => next = format!("{path}?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    let ids: Vec<Uuid> = listed.iter().map(|one| text(&one["delivery_id"]).parse().unwrap()).collect();
    assert_eq!(ids.len(), 6, "none twice, none left out");
    assert_eq!(ids[3..], expected[3..]);
    assert!(expected[..3].iter().all(|id| ids[..3].contains(id)));

    let whole = server.send(Method::GET, &path, None).await.body;
    assert_eq!((whole["failures"].as_array().unwrap(), &whole["next_cursor"]), (&listed, &Value::Null));
    for bad in ["limit=0", "limit=101", "limit=x", "cursor=", "cursor=AAAA", "start_date=2026-01-01"] {
        let refused = server.send(Method::GET, &format!("{path}?{bad}"), None).await;
        assert_eq!(refused.status, 400, "{bad}: {}", refused.body);
    }
}

#[tokio::test]
async fn a_failed_attempt_shows_its_reason_and_a_later_arrival() {
    let server = Server::start().await;
    let endpoint = create(&server).await;
    let delivery = fail(&server, endpoint, 1).await;
    let path = format!("/api/webhooks/{endpoint}/failures");
    let shown = server.send(Method::GET, &path, None).await.body["failures"][0].clone();
    for (field, value) in [
        ("delivery_id", json!(delivery)),
        ("event", json!("click.created")),
        ("attempt", json!(1)),
        ("max_attempts", json!(5)),
        ("status_code", json!(500)),
        ("error_class", Value::Null),
        ("response_body", json!("no")),
        ("duration_ms", json!(7)),
        ("delivered_at", Value::Null),
    ] {
        assert_eq!(shown[field], value, "{field}");
    }
    assert!(text(&shown["attempted_at"]).ends_with("Z") && shown["next_attempt_at"].is_string());
    assert_eq!(shown.as_object().unwrap().len(), 11);

    run(
        &server,
        "UPDATE webhook_failed_deliveries SET delivered_at = now() WHERE delivery_id = $1",
        delivery,
    )
    .await;
    run(
        &server,
        "UPDATE webhook_failures SET status_code = NULL, error_class = 'timeout', next_attempt_at = NULL
         WHERE delivery_id = $1",
        delivery,
    )
    .await;
    let shown = server.send(Method::GET, &path, None).await.body["failures"][0].clone();
    assert!(shown["delivered_at"].is_string());
    assert_eq!((&shown["status_code"], &shown["error_class"]), (&Value::Null, &json!("timeout")));
    assert_eq!(shown["next_attempt_at"], Value::Null);
}

#[tokio::test]
async fn a_test_event_ignores_subscriptions() {
    let server = Server::start().await;
    let endpoint = create(&server).await;
    let path = format!("/api/webhooks/{endpoint}/test");
    let answer = server.send(Method::POST, &path, None).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let id: Uuid = text(&answer.body["delivery_id"]).parse().unwrap();
    let row: (Uuid, String, Vec<u8>, i64, i16) =
        sqlx::query_as("SELECT delivery_id, event, body, epoch, attempts FROM webhook_deliveries")
            .fetch_one(&mut server.engines.postgres().await)
            .await
            .unwrap();
    assert_eq!((row.0, row.1.as_str(), row.3, row.4), (id, "endpoint.test", 1, 0));
    let body: Value = serde_json::from_slice(&row.2).unwrap();
    let now = chrono::Utc::now();
    let created: chrono::DateTime<chrono::Utc> = text(&body["created_at"]).parse().unwrap();
    assert!((now - created).num_seconds().abs() < 60 && text(&body["created_at"]).len() == 24);
    assert_eq!(
        body,
        json!({"id": id, "event": "endpoint.test", "created_at": body["created_at"],
               "data": {"endpoint_id": endpoint}})
    );

    run(&server, "UPDATE webhook_endpoints SET status = 'disabled' WHERE id = $1", endpoint.uuid()).await;
    let refused = server.send(Method::POST, &path, None).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!("BAD_REQUEST")));
    assert_eq!(queued(&server).await, [id]);
}

#[tokio::test]
async fn failed_deliveries_are_redelivered_by_id() {
    let server = Server::start().await;
    let (endpoint, other) = (create(&server).await, create(&server).await);
    let (one, two) = (fail(&server, endpoint, 1).await, fail(&server, endpoint, 2).await);
    let (old, foreign) = (fail(&server, endpoint, 7 * 24 * 60 + 5).await, fail(&server, other, 1).await);
    run(&server, "UPDATE webhook_failed_deliveries SET delivered_at = now() WHERE delivery_id = $1", two)
        .await;

    let ids = json!({"delivery_ids": [one, one, two, old, foreign, Uuid::now_v7()]});
    assert_eq!(redeliver(&server, endpoint, ids.clone()).await, json!({"queued": 2}));
    assert_eq!(redeliver(&server, endpoint, ids.clone()).await, json!({"queued": 0}), "already queued");
    let mut expected = vec![one, two];
    expected.sort();
    assert_eq!(queued(&server).await, expected);

    run(&server, "UPDATE webhook_endpoints SET status = 'disabled' WHERE id = $1", endpoint.uuid()).await;
    let path = format!("/api/webhooks/{endpoint}/redeliver");
    let refused = server.send(Method::POST, &path, Some(ids)).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!("BAD_REQUEST")));
}

#[tokio::test]
async fn failed_deliveries_are_redelivered_by_time_unless_they_arrived() {
    let server = Server::start().await;
    let endpoint = create(&server).await;
    let mut ids = Vec::new();
    for minutes in [10, 20, 30, 40] {
        ids.push(fail(&server, endpoint, minutes).await);
    }
    let arrived = fail(&server, endpoint, 20).await;
    run(&server, "UPDATE webhook_failed_deliveries SET delivered_at = now() WHERE delivery_id = $1", arrived)
        .await;
    let minute: chrono::DateTime<chrono::Utc> = sqlx::query_scalar(
        "SELECT failed_at + interval '10 minutes' FROM webhook_failed_deliveries WHERE delivery_id = $1",
    )
    .bind(ids[0])
    .fetch_one(&mut server.engines.postgres().await)
    .await
    .unwrap();
    let ago = |minutes: i64| (minute - chrono::TimeDelta::minutes(minutes)).to_rfc3339();

    // The range includes its start and excludes its end.
    let range = json!({"start_date": ago(30), "end_date": ago(10)});
    assert_eq!(redeliver(&server, endpoint, range.clone()).await, json!({"queued": 2}));
    assert_eq!(redeliver(&server, endpoint, range).await, json!({"queued": 0}));
    assert_eq!(redeliver(&server, endpoint, json!({"end_date": ago(35)})).await, json!({"queued": 1}));
    assert_eq!(redeliver(&server, endpoint, json!({"end_date": "2020-01-01"})).await, json!({"queued": 0}));
    assert_eq!(redeliver(&server, endpoint, json!({"start_date": "2020-01-01"})).await, json!({"queued": 1}));
    ids.sort();
    assert_eq!(queued(&server).await, ids);
}

#[tokio::test]
async fn many_failed_deliveries_need_several_redeliveries() {
    let server = Server::start().await;
    let endpoint = create(&server).await;
    run(
        &server,
        "INSERT INTO webhook_failed_deliveries (delivery_id, endpoint_id, workspace_id, event, body, created_at,
                                                attempts, failed_at)
         SELECT gen_random_uuid(), id, workspace_id, 'click.created', 'body', now(), 1, now() - n * interval '1 second'
         FROM webhook_endpoints, generate_series(1, 50010) n WHERE id = $1",
        endpoint.uuid(),
    )
    .await;
    let all = json!({"start_date": "2020-01-01"});
    assert_eq!(redeliver(&server, endpoint, all.clone()).await, json!({"queued": 50_000}));
    assert_eq!(redeliver(&server, endpoint, all.clone()).await, json!({"queued": 10}));
    assert_eq!(redeliver(&server, endpoint, all).await, json!({"queued": 0}));
}

#[tokio::test]
async fn an_invalid_redelivery_names_its_field() {
    let server = Server::start().await;
    let endpoint = create(&server).await;
    let path = format!("/api/webhooks/{endpoint}/redeliver");
    let id = Uuid::now_v7();
    for (body, field) in [
        (json!({}), "delivery_ids"),
        (json!({"delivery_ids": []}), "delivery_ids"),
        (json!({"delivery_ids": ["x"]}), "delivery_ids"),
        (json!({"delivery_ids": id}), "delivery_ids"),
        (json!({"delivery_ids": [id], "end_date": "2026-01-01"}), "delivery_ids"),
        (json!({"start_date": "2026-02-30"}), "start_date"),
        (json!({"start_date": "2026-11-02", "end_date": "2026-11-01"}), "start_date"),
        (json!({"end_date": 7}), "end_date"),
        (json!({"since": "2026-11-01"}), "since"),
    ] {
        let refused = server.send(Method::POST, &path, Some(body.clone())).await;
        assert_eq!(refused.status, 400, "{body}");
        assert_eq!(refused.body["details"][0]["field"], field, "{body}: {}", refused.body);
    }
    let missing = server.send(Method::POST, &path, None).await;
    assert_eq!(missing.status, 415);
}

#[tokio::test]
async fn a_deleted_endpoint_hides_its_deliveries() {
    let server = Server::start().await;
    let endpoint = create(&server).await;
    let delivery = fail(&server, endpoint, 1).await;
    redeliver(&server, endpoint, json!({"delivery_ids": [delivery]})).await;
    let path = format!("/api/webhooks/{endpoint}");
    assert_eq!(server.send(Method::DELETE, &path, None).await.status, 204);
    assert_eq!(queued(&server).await, [delivery], "the dispatcher removes them");
    for (method, below, body) in [
        (Method::GET, "/failures", None),
        (Method::GET, &format!("/deliveries/{delivery}"), None),
        (Method::POST, "/test", None),
        (Method::POST, "/redeliver", Some(json!({"delivery_ids": [delivery]}))),
    ] {
        assert_eq!(server.send(method, &format!("{path}{below}"), body).await.status, 404, "{below}");
    }
}

#[tokio::test]
async fn no_page_of_the_failure_log_reads_the_whole_log() {
    let server = Server::start().await;
    let endpoint = create(&server).await;
    run(
        &server,
        "INSERT INTO webhook_failures (id, endpoint_id, delivery_id, event, attempt, status_code, duration_ms,
                                       attempted_at)
         SELECT gen_random_uuid(), CASE WHEN n % 20 = 0 THEN $1 ELSE gen_random_uuid() END, gen_random_uuid(),
                'click.created', 1, 500, 7, now() - n * interval '1 second'
         FROM generate_series(1, 40000) n",
        endpoint.uuid(),
    )
    .await;
    let mut postgres = server.engines.postgres().await;
    sqlx::query("VACUUM ANALYZE webhook_failures").execute(&mut postgres).await.unwrap();
    let scans = async || -> (i64, i64) {
        sqlx::query_as(
            "SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'webhook_failures'",
        )
        .fetch_one(&mut server.engines.postgres().await)
        .await
        .unwrap()
    };
    let before = scans().await;
    let path = format!("/api/webhooks/{endpoint}/failures?limit=100");
    let first = server.send(Method::GET, &path, None).await.body;
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = server.send(Method::GET, &format!("{path}&cursor={cursor}"), None).await.body;
    assert_eq!(second["failures"].as_array().unwrap().len(), 100);
    let after = tests::eventually("the statistics are complete", async || {
        let after = scans().await;
        if after.1 >= before.1 + 2 { Ok(after) } else { Err(after) }
    })
    .await;
    assert_eq!(after.0, before.0, "a page read the whole table");
}
