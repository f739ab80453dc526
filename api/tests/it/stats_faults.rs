//! Statistics while ClickHouse is unreachable or slow.

use std::time::{Duration, Instant};

use chrono::Utc;
use reqwest::Method;
use serde_json::{Value, json};
use tests::engines::isolated;
use tokio::net::TcpListener;

use crate::server::{Server, config, text};

const PATHS: [&str; 8] = [
    "/api/stats",
    "/api/stats/country",
    "/api/stats/class",
    "/api/clicks",
    "{link}/stats",
    "{link}/stats/os",
    "{link}/clicks",
    "/api/links?sort=-total_clicks",
];

async fn assert_unavailable(server: &Server, link: &str) {
    for path in PATHS {
        let refused = server.send(Method::GET, &path.replace("{link}", link), None).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (503, &json!("UNAVAILABLE")), "{path}");
        assert!(refused.headers.contains_key("retry-after"), "{path}");
    }
    let csv =
        server.request(Method::GET, "/api/clicks").bearer_auth(&server.key).header("accept", "text/csv");
    assert_eq!(crate::server::answer(csv).await.status, 503, "before the first byte of the export");
}

async fn assert_unknown(server: &Server, link: &str) {
    let shown = server.send(Method::GET, link, None).await;
    assert_eq!(shown.status, 200);
    for field in ["total_clicks", "unique_clicks", "conversions", "conversion_rate", "as_of"] {
        assert_eq!(shown.body[field], Value::Null, "{field}");
    }
    let listed = server.send(Method::GET, "/api/links", None).await;
    assert_eq!((listed.status.as_u16(), &listed.body["links"][0]["total_clicks"]), (200, &Value::Null));
}

async fn link_of(server: &Server) -> String {
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    format!("/api/links/{}", text(&link["id"]))
}

#[tokio::test]
async fn without_clickhouse_statistics_are_503_and_counters_null() {
    let mut engines = isolated().await;
    // Nothing listens on port 1.
    engines.clickhouse_url = "http://127.0.0.1:1/none".to_owned();
    let server = Server::start_on(engines).await;
    let link = link_of(&server).await;
    assert_unavailable(&server, &link).await;
    assert_unknown(&server, &link).await;
    let id = text(&server.send(Method::GET, &link, None).await.body["id"]).parse().unwrap();
    let body = json!({"click_id": server.click_ids().mint(id, Utc::now(), [1; 10])});
    let made = crate::server::answer(server.request(Method::POST, "/api/conversions").json(&body)).await;
    assert_eq!(made.status, 201);
    for (query, status) in [("", 503), ("?class=human", 503), ("?class=bot", 503), ("?class=all", 200)] {
        let shown = server.send(Method::GET, &format!("{link}/conversions{query}"), None).await;
        assert_eq!(shown.status, status, "{query}: Postgres has them, but not their clicks' classes");
    }
}

#[tokio::test]
async fn a_silent_clickhouse_times_out() {
    let mut engines = isolated().await;
    // It accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    engines.clickhouse_url = format!("http://{}/none", silent.local_addr().unwrap());
    let mut config = config(&engines);
    config.stats_timeout = Duration::from_millis(300);
    config.counters_timeout = Duration::from_millis(300);
    let server = Server::serve(engines, config).await.with_account("business").await;
    let link = link_of(&server).await;
    // Without a timeout, this request would hang.
    let refused = server.send(Method::GET, "/api/stats", None).await;
    assert_eq!(refused.status, 503);
    assert_unknown(&server, &link).await;
}

#[tokio::test]
async fn a_timed_out_query_is_cancelled_in_clickhouse() {
    let engines = isolated().await;
    let mut config = config(&engines);
    config.stats_timeout = Duration::from_secs(1);
    config.counters_timeout = Duration::from_secs(1);
    let server = Server::serve(engines, config).await.with_account("business").await;
    let link = link_of(&server).await;
    // The other tests use this ClickHouse too, and may make it slow.
    tests::eventually("statistics are answered", async || {
        let shown = server.send(Method::GET, &format!("{link}/stats"), None).await;
        if shown.status == 200 { Ok(()) } else { Err(shown) }
    })
    .await;
    // The same columns, but each row is slow.
    server.engines.clickhouse("RENAME TABLE clicks TO real_clicks").await;
    let slow = "CREATE VIEW clicks SQL SECURITY DEFINER AS SELECT * FROM real_clicks WHERE sleepEachRow(3) = 0 \
        AND sleep(3) = 0";
    server.engines.clickhouse(slow).await;
    let workspace: schemas::id::WorkspaceId = server.workspace.parse().unwrap();
    let id: schemas::id::LinkId = text(&json!(link.trim_start_matches("/api/links/"))).parse().unwrap();
    let insert = format!(
        "INSERT INTO real_clicks (workspace_id, link_id, occurred_at, class, broker_ts)
         SELECT toUUID('{}'), toUUID('{}'), now(), 'human', now()",
        workspace.uuid(),
        id.uuid()
    );
    server.engines.clickhouse(&insert).await;
    let began = Instant::now();
    let refused = server.send(Method::GET, &format!("{link}/stats/os"), None).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (503, &json!("UNAVAILABLE")));
    let elapsed = began.elapsed();
    assert!(elapsed >= Duration::from_millis(900), "{elapsed:?}");
    let shown = server.send(Method::GET, &link, None).await;
    assert_eq!((shown.status.as_u16(), &shown.body["total_clicks"]), (200, &Value::Null));
    tests::eventually("no query is left", async || {
        let running = "SELECT count() FROM system.processes WHERE current_database = currentDatabase()";
        // The only one left is this query.
        match server.engines.clickhouse(running).await.trim() {
            "1" => Ok(()),
            count => Err(count.to_owned()),
        }
    })
    .await;
}

#[tokio::test]
async fn slow_conversions_are_null_and_delay_nothing() {
    let engines = isolated().await;
    let mut config = config(&engines);
    config.stats_timeout = Duration::from_secs(10);
    config.counters_timeout = Duration::from_secs(2);
    let server = Server::serve(engines, config).await.with_account("business").await;
    let link = link_of(&server).await;
    server.engines.clickhouse("RENAME TABLE conversions TO real_conversions").await;
    let slow = "CREATE VIEW conversions SQL SECURITY DEFINER AS SELECT * FROM real_conversions \
        WHERE sleepEachRow(3) = 0";
    server.engines.clickhouse(slow).await;
    let workspace: schemas::id::WorkspaceId = server.workspace.parse().unwrap();
    let id: schemas::id::LinkId = link.trim_start_matches("/api/links/").parse().unwrap();
    for number in 0..3 {
        // Each row is a separate part, so it sleeps in a separate block.
        let insert = format!(
            "INSERT INTO real_conversions SELECT toUUID('{}'), toUUID('{}'), now() - {number}, 'c{number}',
                    generateUUIDv4(), now()",
            workspace.uuid(),
            id.uuid()
        );
        server.engines.clickhouse(&insert).await;
    }
    // A report waits five seconds for them, a link at least one.
    for (path, least) in [(format!("{link}/stats"), 4), (link, 1)] {
        let (shown, elapsed) = tests::eventually("its clicks are counted", async || {
            let began = Instant::now();
            let shown = server.send(Method::GET, &path, None).await;
            let is_counted = shown.status == 200 && shown.body["total_clicks"] == 0;
            if is_counted { Ok((shown, began.elapsed())) } else { Err(shown) }
        })
        .await;
        assert_eq!(
            (&shown.body["conversions"], &shown.body["conversion_rate"]),
            (&Value::Null, &Value::Null)
        );
        assert!(elapsed > Duration::from_secs(least), "{path}: {elapsed:?}");
    }
}
