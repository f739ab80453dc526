//! Many links in one request.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Answer, Server, answer};

async fn bulk(server: &Server, links: Value) -> Answer {
    server.send(Method::POST, "/api/v1/links/bulk", Some(json!({ "links": links }))).await
}

fn statuses(answer: &Answer) -> Vec<u64> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let results = answer.body["results"].as_array().unwrap();
    for (place, result) in results.iter().enumerate() {
        assert_eq!(result["index"], place);
        let (inside, absent) = if result["status"] == 201 { ("link", "error") } else { ("error", "link") };
        assert!(result[inside].is_object() && result.get(absent).is_none(), "{result}");
    }
    results.iter().map(|result| result["status"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn each_entry_has_its_outcome() {
    let server = Server::start().await;
    server.create_link(json!({"name": "a", "destination": "https://example.com", "slug": "taken"})).await;
    let answer = bulk(
        &server,
        json!([
            {"name": "a", "destination": "https://example.com"},
            {"name": "b", "destination": "https://example.com", "slug": "taken"},
            {"name": "c", "destination": "https://example.com", "slug": "mine", "external_id": "x"},
            {"name": "d", "destination": "https://example.com", "slug": "mine"},
            {"name": "e", "destination": "https://example.com", "external_id": "x"},
            {"name": "f"},
            {"name": "g", "destination": "https://example.com", "nope": 1},
            {"name": null, "destination": "https://example.com"},
            7,
            {"name": "h", "destination": "https://example.com", "tags": ["t"]},
        ]),
    )
    .await;
    assert_eq!(statuses(&answer), [201, 409, 201, 409, 409, 400, 400, 400, 400, 201]);
    let results = &answer.body["results"];
    for (index, code) in [
        (1, "SLUG_TAKEN"),
        (3, "SLUG_TAKEN"),
        (4, "EXTERNAL_ID_TAKEN"),
        (5, "BAD_REQUEST"),
        (6, "BAD_REQUEST"),
        (7, "BAD_REQUEST"),
        (8, "BAD_REQUEST"),
    ] {
        assert_eq!(results[index]["error"]["code"], code, "{index}");
        assert_eq!(results[index]["error"]["statusCode"], results[index]["status"]);
    }
    assert_eq!(results[5]["error"]["details"][0]["field"], "destination");
    assert_eq!(results[9]["link"]["tags"], json!(["t"]));
    assert_eq!(results[0]["link"]["total_clicks"], 0);
    let listed = server.send(Method::GET, "/api/links", None).await.body;
    assert_eq!(listed["links"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn a_request_has_1_to_100_entries() {
    let server = Server::start().await;
    let link = json!({"name": "a", "destination": "https://example.com"});
    for body in [
        json!({"links": []}),
        json!({"links": vec![&link; 101]}),
        json!({"links": {}}),
        json!({"links": null}),
        json!({}),
        json!([]),
        json!({"links": [link], "nope": 1}),
    ] {
        let refused = server.send(Method::POST, "/api/links/bulk", Some(body)).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!("BAD_REQUEST")));
    }
    assert_eq!(statuses(&bulk(&server, json!(vec![&link; 100])).await), [201; 100]);
    let duplicate = "{\"links\":[{\"name\":\"a\",\"name\":\"b\",\"destination\":\"https://example.com\"}]}";
    let request = server
        .request(Method::POST, "/api/links/bulk")
        .bearer_auth(&server.key)
        .header("content-type", "application/json")
        .body(duplicate);
    assert_eq!(statuses(&answer(request).await), [400], "a field twice");
}

#[tokio::test]
async fn the_cap_may_be_reached_within_a_request() {
    let server = Server::start_with_cap(3).await;
    let link = json!({"name": "a", "destination": "https://example.com"});
    let refused_one = json!({"name": "a"});
    let answer = bulk(
        &server,
        json!([link, refused_one, link, link, link, {"name": "b", "destination": "https://example.com"}]),
    )
    .await;
    assert_eq!(statuses(&answer), [201, 400, 201, 201, 403, 403]);
    assert_eq!(answer.body["results"][5]["error"]["code"], "PLAN_LIMIT");
}

#[tokio::test]
async fn crossing_requests_create_each_slug_once() {
    let server = Server::start().await;
    let slugs: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
    let link = |slug: &String| json!({"name": "a", "destination": "https://example.com", "slug": slug});
    let there: Vec<Value> = slugs.iter().map(link).collect();
    let back: Vec<Value> = slugs.iter().rev().map(link).collect();
    let requests = (0..6).map(|n| bulk(&server, json!(if n % 2 == 0 { &there } else { &back })));
    let answers = join_all(requests).await;
    let created: usize =
        answers.iter().map(|answer| statuses(answer).iter().filter(|status| **status == 201).count()).sum();
    assert_eq!(created, 40, "each slug once");
}
