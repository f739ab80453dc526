//! Redirects of links that come from topic `links` or from Postgres.

use ingest::Config;
use schemas::message::Link;
use schemas::topic;
use sqlx::{AssertSqlSafe, Executor as _};
use tests::engines::{Isolated, isolated};
use uuid::Uuid;

use crate::edge::{Edge, SpoolDir, config, deleted, link, live, location, publish, publish_bytes};

#[tokio::test(flavor = "multi_thread")]
async fn a_link_on_the_topic_redirects_and_a_deleted_one_does_not() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let before = link("before", "https://a.example/before");
    let gone = link("gone", "https://a.example/gone");
    publish(&isolated, &[live(&before), live(&gone), deleted(&gone, 2)]);

    let edge = Edge::start(&isolated, &spool).await;
    // A ready edge has read the whole topic, so this needs no waiting.
    assert_eq!(edge.get("/before").await.status(), 302);
    assert_eq!(edge.get("/gone").await.status(), 404);

    let after = link("after", "https://a.example/after");
    publish(&isolated, &[live(&after), deleted(&before, 2)]);
    edge.answers("/after", 302).await;
    edge.answers("/before", 404).await;
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_records_on_the_topic_are_skipped() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let topic = isolated.topic(topic::LINKS);
    publish_bytes(&isolated.kafka(), &topic, "poison", b"\xff\xfe");
    publish_bytes(&isolated.kafka(), &topic, "later", br#"{"v":99}"#);
    publish_bytes(&isolated.kafka(), &topic, "edge_token:edg_1", b"{}");
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let edge = Edge::start(&isolated, &spool).await;
    assert_eq!(edge.get("/s").await.status(), 302);
    let (status, report) = edge.readyz().await;
    let detail = "ok, but skipped 1 records of an unknown version and 2 unreadable ones";
    assert_eq!((status, &report["checks"]["links"]["detail"]), (200, &detail.into()));
    edge.stop().await;
}

/// Inserts a link into Postgres only, and creates a role that may only read links; returns the role's URL.
async fn insert_into_postgres(isolated: &Isolated, link: &Link) -> String {
    let mut postgres = isolated.postgres().await;
    let role = format!("r{}", Uuid::now_v7().simple());
    let (id, workspace, slug, destination) =
        (link.id.uuid(), link.workspace_id.uuid(), &link.slug, &link.destination);
    for statement in [
        format!("CREATE ROLE {role} LOGIN PASSWORD 'reader'"),
        format!("GRANT SELECT ON links TO {role}"),
        format!("INSERT INTO accounts (id, name, plan) VALUES ('{id}', 'A', 'business')"),
        format!("INSERT INTO users (id, account_id, role) VALUES ('{id}', '{id}', 'owner')"),
        format!(
            "INSERT INTO workspaces (id, account_id, name, kind) VALUES ('{workspace}', '{id}', 'W', 'personal')"
        ),
        format!(
            "INSERT INTO links (id, workspace_id, user_id, slug, name, destination, created_at, updated_at)
             VALUES ('{id}', '{workspace}', '{id}', '{slug}', 'L', '{destination}', now(), now())"
        ),
    ] {
        postgres.execute(AssertSqlSafe(statement)).await.unwrap();
    }
    let mut url = reqwest::Url::parse(&isolated.database_url).unwrap();
    url.set_username(&role).unwrap();
    url.set_password(Some("reader")).unwrap();
    url.into()
}

async fn edge_with_lookup(isolated: &Isolated, spool: &SpoolDir, url: &str) -> Edge {
    let config = Config {
        lookup_database: Some(url.parse().unwrap()),
        ..config(&isolated.kafka_brokers, &isolated.topic_prefix, spool.path())
    };
    let edge = Edge::start_as(config).await;
    edge.is_ready().await;
    edge
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unread_link_is_looked_up_and_the_topic_wins() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let new = Link { append_click_id: false, ..link("new", "https://a.example/") };
    let url = insert_into_postgres(&isolated, &new).await;
    let edge = edge_with_lookup(&isolated, &spool, &url).await;
    assert_eq!(edge.get("/absent").await.status(), 404);
    // Only Postgres has it. On a busy machine a lookup may time out, so this retries.
    edge.answers("/new", 302).await;
    let answer = edge.get("/new").await;
    assert!(location(&answer).starts_with("https://a.example/?click_id="), "{}", location(&answer));

    // Postgres still has the first revision, like a replica that lags behind.
    publish(&isolated, &[deleted(&new, 2)]);
    edge.answers("/new", 404).await;
    assert_eq!(edge.get("/new").await.status(), 404);
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_lookup_leaves_known_links_working() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let mut nobody = reqwest::Url::parse(&isolated.database_url).unwrap();
    nobody.set_username("nobody").unwrap();
    // Nothing listens on port 1.
    for url in ["postgres://nobody@127.0.0.1:1/none", nobody.as_str()] {
        let edge = edge_with_lookup(&isolated, &spool, url).await;
        assert_eq!(edge.get("/unknown").await.status(), 404);
        assert_eq!(edge.get("/s").await.status(), 302);
        edge.stop().await;
    }
}
