//! `POST /v1/clicks`, as external edges use it.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::Utc;
use ingest::Config;
use reqwest::Response;
use schemas::id::{EdgeTokenId, WorkspaceId};
use schemas::message::{Class, EdgeToken, Link, Message as _};
use schemas::topic;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tests::engines::{Isolated, isolated};
use tests::eventually;
use tests::log::records;
use uuid::Uuid;

use crate::edge::{
    BROWSER, Edge, KEY, SpoolDir, click_id_keys, clicks, client, config, link, live, publish, publish_bytes,
};
use crate::program::Broker;

const TOKEN: &str = "hop_edge_0123456789";

/// A visitor's address, which must not appear in any message or answer.
const ADDRESS: &str = "203.0.113.77";

fn token(text: &str, workspace_id: Option<WorkspaceId>) -> EdgeToken {
    EdgeToken {
        version: Default::default(),
        edge_token_id: EdgeTokenId::from_uuid(Uuid::now_v7()),
        token_sha256: Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect(),
        workspace_id,
        revoked_at: None,
    }
}

fn publish_token(isolated: &Isolated, token: &EdgeToken) {
    publish_bytes(&isolated.kafka(), &isolated.topic(topic::LINKS), &token.key(), &token.encode());
}

/// Starts an edge with these links and a token for all workspaces.
async fn edge(isolated: &Isolated, spool: &SpoolDir, links: &[&Link]) -> Edge {
    publish_token(isolated, &token(TOKEN, None));
    let links: Vec<_> = links.iter().map(|link| live(link)).collect();
    publish(isolated, &links);
    Edge::start(isolated, spool).await
}

fn item(slug: &str, event_id: &str) -> Value {
    json!({
        "slug": slug,
        "occurred_at": schemas::time::text(Utc::now() - chrono::Duration::hours(1)),
        "ip": ADDRESS,
        "user_agent": BROWSER,
        "event_id": event_id,
    })
}

async fn send(edge: &Edge, token: &str, body: &Value) -> Response {
    let request = client().post(format!("http://{}/v1/clicks", edge.address)).json(body);
    request.header("authorization", format!("Bearer {token}")).send().await.unwrap()
}

async fn body(answer: Response) -> Value {
    let text = answer.text().await.unwrap();
    assert!(!text.contains(ADDRESS), "{text}");
    serde_json::from_str(&text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_click_limit_applies_to_redirects_only() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish_token(&isolated, &token(TOKEN, None));
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let mut config = config(&isolated.kafka_brokers, &isolated.topic_prefix, spool.path());
    config.clicks_per_minute = 1;
    let edge = Edge::start_as(config).await;
    edge.is_ready().await;
    // An hour of clicks behind one shared address, sent at once.
    let items: Vec<Value> = (0..20).map(|number| item("s", &number.to_string())).collect();
    send_until_accepted(&edge, TOKEN, &json!(items)).await;
    edge.stop().await;
    let clicks = clicks(&isolated, 20).await;
    assert!(clicks.iter().all(|(_, click)| click.class == Class::Human), "{clicks:?}");
}

/// Sends items until they are accepted, and returns the answer.
async fn send_until_accepted(edge: &Edge, token: &str, items: &Value) -> Value {
    eventually("the items are accepted", async || {
        let answer = send(edge, token, items).await;
        assert!(answer.headers().contains_key("x-request-id"));
        let (status, retry) = (answer.status(), answer.headers().contains_key("retry-after"));
        let body = body(answer).await;
        assert!(status == 202 || status == 503 && retry, "{status}: {body}");
        if status == 202 { Ok(body) } else { Err(body) }
    })
    .await
}

/// Sends items that are all accepted, and returns their click ids.
async fn accepted(edge: &Edge, items: &Value) -> Vec<String> {
    let body = send_until_accepted(edge, TOKEN, items).await;
    let results = body["results"].as_array().unwrap();
    results
        .iter()
        .enumerate()
        .map(|(index, result)| {
            assert_eq!((&result["index"], &result["status"]), (&json!(index), &json!("accepted")), "{body}");
            result["click_id"].as_str().unwrap().to_owned()
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_clicks_are_on_the_topic_before_the_answer() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let by_slug = link("spring", "https://a.example/?utm_source=own&utm_term=shoes");
    let by_id = link("autumn", "https://a.example/");
    let edge = edge(&isolated, &spool, &[&by_slug, &by_id]).await;

    let mut first = item("spring", "e-1");
    first["referrer"] = json!("https://News.Example/a?secret=1");
    first["url"] = json!("https://s.example/spring?utm_source=mail&click_id=theirs#top");
    let mut second = item("", "e-2");
    second["slug"] = Value::Null;
    second["link_id"] = json!(by_id.id.to_string());
    second["user_agent"] = json!("curl/8.14.1");
    let ids = accepted(&edge, &json!([first, second])).await;

    // Without waiting: they have arrived.
    let isolated_too = isolated.clone();
    let found = tokio::task::spawn_blocking(move || records(&isolated_too, topic::CLICKS)).await.unwrap();
    assert_eq!(found.len(), 2);
    let click = |id: &str| {
        let record = found.iter().find(|record| record.key == id).unwrap();
        assert!(!String::from_utf8_lossy(&record.value).contains(ADDRESS));
        schemas::message::Click::decode(&record.value).unwrap()
    };
    let (first_click, second_click) = (click(&ids[0]), click(&ids[1]));
    assert_eq!(schemas::time::text(first_click.occurred_at), first["occurred_at"].as_str().unwrap());
    assert_eq!((first_click.class, second_click.class), (Class::Human, Class::Bot));
    assert_eq!(first_click.referrer.as_deref(), Some("news.example"));
    assert_eq!(first_click.utm_source.as_deref(), Some("mail"));
    assert_eq!(first_click.utm_term.as_deref(), Some("shoes"));
    assert_eq!(first_click.external_click_id.as_deref(), Some("theirs"));
    assert_eq!((first_click.slug.as_str(), second_click.slug.as_str()), ("spring", "autumn"));
    assert_eq!((first_click.link_id, second_click.link_id), (by_slug.id, by_id.id));
    assert!(first_click.again && second_click.again);
    let verified = click_id_keys().verify(&ids[0]).unwrap();
    assert_eq!((verified.link_id, verified.occurred_at), (by_slug.id, first_click.occurred_at));
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_item_keeps_its_click_id_and_partition() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let first = edge(&isolated, &spool, &[&link("s", "https://a.example/")]).await;
    let items = Value::Array((0..20).map(|number| item("s", &format!("e-{number}"))).collect());
    let ids = accepted(&first, &items).await;
    assert_eq!(accepted(&first, &items).await, ids);
    first.stop().await;

    // Restarted with a new first key.
    let rotated = Config {
        click_id_keys: format!("2:{},1:{KEY}", KEY.replace('1', "2")).parse().unwrap(),
        ..config(&isolated.kafka_brokers, &isolated.topic_prefix, spool.path())
    };
    let second = Edge::start_as(rotated).await;
    second.is_ready().await;
    assert_eq!(accepted(&second, &items).await, ids);
    second.stop().await;

    let sent = clicks(&isolated, 60).await;
    let places: BTreeSet<(&str, i32)> =
        sent.iter().map(|(partition, click)| (click.click_id.as_str(), *partition)).collect();
    assert_eq!(places.len(), ids.len(), "each in one partition, and no other click");
    assert!(ids.iter().all(|id| places.iter().any(|(place, _)| place == id)));
    assert!(places.iter().map(|(_, partition)| partition).collect::<BTreeSet<_>>().len() > 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_item_has_a_result_and_a_duplicate_has_the_same_id() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let edge = edge(&isolated, &spool, &[&link("s", "https://a.example/")]).await;
    let good = item("s", "e-1");
    let with = |field: &str, value: Value| {
        let mut item = item("s", "e-2");
        item[field] = value;
        item
    };
    let future = schemas::time::text(Utc::now() + chrono::Duration::minutes(6));
    let old = schemas::time::text(Utc::now() - chrono::Duration::days(11));
    let items = json!([
        good,
        item("nothing", "e-3"),
        good,
        with("ip", json!(format!("{ADDRESS}.5"))),
        with("occurred_at", json!(future)),
        with("occurred_at", json!(old)),
        with("click_id", json!("theirs")),
        ADDRESS,
    ]);
    let body = send_until_accepted(&edge, TOKEN, &items).await;
    let results = body["results"].as_array().unwrap();
    let result = |index: usize| (results[index]["status"].as_str().unwrap(), results[index]["code"].as_str());
    assert_eq!(result(0), ("accepted", None));
    assert_eq!(results[2]["click_id"], results[0]["click_id"]);
    assert_eq!(result(1), ("unknown", Some("NOT_FOUND")));
    for index in [3, 6, 7] {
        assert_eq!(result(index), ("rejected", Some("BAD_REQUEST")), "{body}");
    }
    for index in [4, 5] {
        assert_eq!(result(index), ("rejected", Some("INVALID_DATE")), "{body}");
    }
    let sent = clicks(&isolated, 1).await;
    assert!(sent.iter().all(|(_, click)| results[0]["click_id"] == click.click_id.as_str()));
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_token_cannot_name_links_of_another_workspace() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let own = link("own", "https://a.example/");
    let other = Link {
        workspace_id: WorkspaceId::from_uuid(Uuid::from_u128(8)),
        ..link("other", "https://a.example/")
    };
    publish_token(&isolated, &token("of one", Some(own.workspace_id)));
    let edge = edge(&isolated, &spool, &[&own, &other]).await;
    let mut by_id = item("", "e-3");
    by_id["slug"] = Value::Null;
    by_id["link_id"] = json!(other.id.to_string());
    let items = json!([item("own", "e-1"), item("other", "e-2"), by_id, item("nothing", "e-4")]);
    let body = send_until_accepted(&edge, "of one", &items).await;
    assert_eq!(body["results"][0]["status"], "accepted");
    // The same result as for a link that does not exist.
    for index in [1, 2] {
        let mut as_absent = body["results"][3].clone();
        as_absent["index"] = json!(index);
        assert_eq!(body["results"][index], as_absent);
    }
    assert_eq!(accepted(&edge, &items.as_array().unwrap()[..3].into()).await.len(), 3);
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_is_rejected_like_an_invalid_one() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let revoked = token("soon revoked", None);
    publish_token(&isolated, &revoked);
    let edge = edge(&isolated, &spool, &[&link("s", "https://a.example/")]).await;
    let one = item("s", "e-1");
    send_until_accepted(&edge, "soon revoked", &one).await;
    publish_token(&isolated, &EdgeToken { revoked_at: Some(Utc::now()), ..revoked });
    eventually("the token is rejected", async || {
        match send(&edge, "soon revoked", &one).await.status().as_u16() {
            401 => Ok(()),
            other => Err(other),
        }
    })
    .await;

    let url = format!("http://{}/v1/clicks", edge.address);
    let mut answers = Vec::new();
    for value in
        [None, Some("Bearer soon revoked"), Some("Bearer nobody's"), Some("Bearer "), Some("Basic eDp5")]
    {
        let mut request = client().post(&url).json(&one);
        if let Some(value) = value {
            request = request.header("authorization", value);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 401);
        answers.push(body(answer).await);
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(answers[0]["code"], "UNAUTHORIZED");
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_request_is_rejected_completely() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let edge = edge(&isolated, &spool, &[&link("s", "https://a.example/")]).await;
    let url = format!("http://{}/v1/clicks", edge.address);
    let post = async |media_type: &str, body: Vec<u8>| {
        let request = client().post(&url).header("authorization", format!("Bearer {TOKEN}"));
        let answer = request.header("content-type", media_type).body(body).send().await.unwrap();
        let (status, request_id) = (answer.status().as_u16(), answer.headers().contains_key("x-request-id"));
        assert!(request_id);
        let body: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        assert_eq!(body["statusCode"], status);
        (status, body["code"].as_str().unwrap().to_owned())
    };
    for malformed in [&b""[..], b"[]", b"[", b"7", b"null", b"\xff", b"{} {}"] {
        assert_eq!(post("application/json", malformed.to_vec()).await, (400, "BAD_REQUEST".to_owned()));
    }
    let many = Value::Array(vec![item("s", "e"); 1_001]).to_string();
    assert_eq!(post("application/json", many.into_bytes()).await.0, 400);
    assert_eq!(post("text/plain", b"{}".to_vec()).await, (415, "UNSUPPORTED_MEDIA_TYPE".to_owned()));
    let large = vec![b' '; 1024 * 1024 + 1];
    assert_eq!(post("application/json", large).await, (413, "PAYLOAD_TOO_LARGE".to_owned()));
    let send = |query: &str| client().post(format!("{url}{query}")).json(&item("s", "e"));
    let valid = |query: &str| send(query).bearer_auth(TOKEN);
    for (request, status, code) in [
        (valid("?nonsense=1"), 400, "BAD_REQUEST"),
        (valid("").header("content-encoding", "gzip"), 415, "UNSUPPORTED_ENCODING"),
        (valid("").bearer_auth("other"), 401, "UNAUTHORIZED"),
        (client().put(&url).bearer_auth(TOKEN), 405, "METHOD_NOT_ALLOWED"),
    ] {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), status);
        assert_eq!(answer.headers().get("allow").is_some(), status == 405);
        assert_eq!(body(answer).await["code"], code);
    }
    assert_eq!(valid("").send().await.unwrap().status(), 202);
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_kafka_a_request_fails_and_can_be_repeated() {
    let (broker, spool) = (Broker::start(&link("s", "https://a.example/")), SpoolDir::new());
    let token = token(TOKEN, None);
    publish_bytes(&broker.client(), topic::LINKS.name, &token.key(), &token.encode());
    let edge = Edge::start_with(&broker.address(), "", &spool).await;
    edge.is_ready().await;
    let before = accepted(&edge, &item("s", "e-0")).await;

    broker.cluster.broker_down(1).unwrap();
    let items = json!([item("s", "e-1"), item("s", "e-2")]);
    let answer = tokio::time::timeout(Duration::from_secs(60), send(&edge, TOKEN, &items)).await.unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.headers()["retry-after"].to_str().unwrap().parse::<u32>().unwrap() >= 1);
    assert_eq!(body(answer).await["code"], "UNAVAILABLE");

    broker.cluster.broker_up(1).unwrap();
    let ids: BTreeSet<String> = accepted(&edge, &items).await.into_iter().chain(before).collect();
    // Each may have arrived more than once, but is marked as a possible repeat and has one of these ids.
    let sent = clicks(&broker.isolated(), 3).await;
    assert!(sent.iter().all(|(_, click)| click.again));
    assert_eq!(sent.into_iter().map(|(_, click)| click.click_id).collect::<BTreeSet<_>>(), ids);
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_that_has_not_read_the_links_answers_503() {
    let spool = SpoolDir::new();
    // Nothing listens on port 1.
    let edge = Edge::start_with("127.0.0.1:1", "", &spool).await;
    let answer = send(&edge, TOKEN, &item("s", "e-1")).await;
    assert_eq!(answer.status(), 503);
    assert!(answer.headers().contains_key("retry-after"));
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_of_a_blocked_link_is_unknown() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let blocked = Link { is_blocked: true, ..link("s", "https://a.example/") };
    let edge = edge(&isolated, &spool, &[&blocked]).await;
    let answer = send_until_accepted(&edge, TOKEN, &json!([item("s", "one")])).await;
    assert_eq!(answer["results"][0]["status"], "unknown", "{answer}");
    edge.stop().await;
}
