//! Conversions over HTTP.

use chrono::Utc;
use reqwest::Method;
use serde_json::json;
use tests::log::records;

use crate::server::{Answer, Server, answer, text};

async fn convert(server: &Server, body: &serde_json::Value) -> Answer {
    answer(server.request(Method::POST, "/api/conversions").json(body)).await
}

#[tokio::test]
async fn a_click_converts_once_also_when_fifty_ask_at_once() {
    let server = Server::start().await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let link_id = text(&link["id"]).parse().unwrap();
    let click_id = server.click_ids().mint(link_id, Utc::now(), [1; 10]);
    let body = json!({"click_id": click_id, "external_user_id": "u1", "user_name": "Ada", "user_email": "a@b.example"});
    let asking = (0..50).map(|_| convert(&server, &body));
    let answers = futures_util::future::join_all(asking).await;
    let (made, refused): (Vec<&Answer>, Vec<&Answer>) =
        answers.iter().partition(|answer| answer.status == 201);
    assert_eq!((made.len(), refused.len()), (1, 49));
    assert!(refused.iter().all(|answer| answer.status == 409), "{refused:?}");
    let (made, refused) = (made[0], refused[0]);
    assert_eq!(made.body["success"], true);
    let fields: Vec<&String> = made.body["conversion"].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["id", "click_id", "external_user_id", "user_name", "user_email", "created_at"]);
    assert_eq!(refused.body["code"], "CONVERSION_EXISTS");
    let listed =
        server.send(Method::GET, &format!("/api/links/{}/conversions", text(&link["id"])), None).await.body;
    assert_eq!(listed["conversions"].as_array().unwrap().len(), 1);

    let told =
        tests::eventually("the topic has the conversion", std::time::Duration::from_secs(20), async || {
            let told = records(&server.engines, schemas::topic::CONVERSIONS);
            if told.is_empty() { Err("nothing") } else { Ok(told) }
        })
        .await;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].json()["click_id"], json!(click_id));
    let text = String::from_utf8(told[0].value.clone()).unwrap();
    assert!(!text.contains("Ada") && !text.contains("a@b.example"), "no personal field leaves Postgres");
}

#[tokio::test]
async fn what_is_no_click_of_a_living_link_does_not_convert() {
    let server = Server::start().await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let link_id = text(&link["id"]).parse().unwrap();
    let click_id = server.click_ids().mint(link_id, Utc::now(), [1; 10]);
    for (body, status) in [
        (json!({}), 400),
        (json!({"click_id": ""}), 400),
        (json!({"click_id": null}), 400),
        (json!({"click_id": 7}), 400),
        (json!({"click_id": click_id, "nope": 1}), 400),
        (json!({"click_id": click_id, "user_name": "a\u{0}b"}), 400),
        (json!({"click_id": "forged"}), 404),
        (json!({"click_id": click_id.replace('A', "B")}), 404),
    ] {
        let refused = convert(&server, &body).await;
        assert_eq!(refused.status, status, "{body}");
        assert_eq!(refused.body["statusCode"], status);
        assert!(refused.body["message"].is_string());
    }
    server.send(Method::DELETE, &format!("/api/links/{}", text(&link["id"])), None).await;
    assert_eq!(convert(&server, &json!({"click_id": click_id})).await.status, 404);
}
