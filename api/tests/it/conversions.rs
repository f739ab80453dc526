//! Conversions over HTTP.

use std::cell::Cell;

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use reqwest::Method;
use schemas::id::LinkId;
use schemas::message::{Class, Click, Message as _};
use schemas::row::{ClickRow, write_conversion};
use serde_json::{Value, json};
use tests::log::records;

use crate::server::{Answer, Server, answer, text};
use crate::stats_model::{conversion, store_conversions, store_rows, within_a_day};

async fn convert(server: &Server, body: &serde_json::Value) -> Answer {
    answer(server.request(Method::POST, "/api/conversions").json(body)).await
}

#[tokio::test]
async fn fifty_concurrent_conversions_of_a_click_register_one() {
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

    let published = tests::eventually("the topic has the conversion", async || {
        let published = records(&server.engines, schemas::topic::CONVERSIONS);
        if published.is_empty() { Err("nothing") } else { Ok(published) }
    })
    .await;
    assert_eq!(published.len(), 1);
    assert_eq!(published[0].json()["click_id"], json!(click_id));
    let text = String::from_utf8(published[0].value.clone()).unwrap();
    assert!(!text.contains("Ada") && !text.contains("a@b.example"), "no personal field leaves Postgres");
}

#[tokio::test]
async fn only_clicks_of_existing_links_convert() {
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

#[tokio::test]
async fn an_account_has_100_000_conversions_a_day() {
    let server = Server::start().await;
    let arguments =
        ["create-workspace", "--account", &server.account, "--name", "Other", "--kind", "organization"];
    let other = text(&server.admin(&arguments).await["workspace_id"]);
    let other_key = server.create_key(&other, "read,write").await;
    let new_link = json!({"name": "a", "destination": "https://example.com"});
    let link = server.create_link(new_link.clone()).await;
    let of_other = server.send_as(&other_key, Method::POST, "/api/links", Some(new_link.clone())).await.body;
    let clicks = Cell::new(0);
    let click = |server: &Server, link: &Value| {
        clicks.set(clicks.get() + 1);
        let click_id =
            server.click_ids().mint(text(&link["id"]).parse().unwrap(), Utc::now(), [clicks.get(); 10]);
        json!({"click_id": click_id})
    };
    assert_eq!(convert(&server, &click(&server, &link)).await.status, 201);
    let used = async |conversions: i64, day: NaiveDate| {
        sqlx::query("UPDATE conversion_days SET conversions = $1, day = $2")
            .bind(conversions)
            .bind(day)
            .execute(&mut server.engines.postgres().await)
            .await
            .unwrap();
    };

    let (day, (taken, again, one_more, refused, of_workspace)) = within_a_day(async |day| {
        used(99_999, day).await;
        let [last, one_more] = [click(&server, &link), click(&server, &link)];
        let [taken, again] = [convert(&server, &last).await, convert(&server, &last).await];
        let refused = convert(&server, &one_more).await;
        (taken, again, one_more, refused, convert(&server, &click(&server, &of_other)).await)
    })
    .await;
    assert_eq!((taken.status.as_u16(), again.status.as_u16()), (201, 409));
    for refused in [refused, of_workspace] {
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (429, &json!("RATE_LIMITED")));
        let wait: u32 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!(wait <= 86_400, "{wait}");
    }
    used(100_000, day.pred_opt().unwrap()).await;
    assert_eq!(convert(&server, &one_more).await.status, 201, "it was not stored, and yesterday is over");
    used(100_000, day).await;
    let server = server.with_account("business").await;
    let link = server.create_link(new_link).await;
    assert_eq!(convert(&server, &click(&server, &link)).await.status, 201, "of another account");
}

/// Reads a list page by page and returns its ids.
async fn listed(server: &Server, path: &str, limit: usize) -> Vec<Value> {
    let path = format!("{path}&limit={limit}");
    let (mut ids, mut next) = (Vec::new(), path.clone());
    loop {
        let page = server.send(Method::GET, &next, None).await;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        let rows = page.body["conversions"].as_array().unwrap();
        ids.extend(rows.iter().map(|row| row["id"].clone()));
        let Some(cursor) = page.body["next_cursor"].as_str() else { return ids };
        assert_eq!(rows.len(), limit, "a page before the last is full");
        next = format!("{path}&cursor={cursor}");
    }
}

/// Returns the click of the fixture as one of a link.
fn click_at(server: &Server, link_id: LinkId, occurred_at: DateTime<Utc>) -> Click {
    let click = Click::decode(include_bytes!("../../../schemas/fixtures/click.v1.json")).unwrap();
    Click { link_id, workspace_id: server.workspace.parse().unwrap(), occurred_at, ..click }
}

#[tokio::test]
async fn the_list_agrees_with_the_statistics_by_class() {
    let server = Server::start().await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let link_id: LinkId = text(&link["id"]).parse().unwrap();
    // Newest first. Few clicks are of bots, and the newest click has not reached ClickHouse yet.
    let class_of = |number: u8| match number {
        0 => None,
        3 | 40 | 41 => Some(Class::Bot),
        20 => Some(Class::Preview),
        _ => Some(Class::Human),
    };
    let now = schemas::time::to_millis(Utc::now());
    let (mut rows, mut stored, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..45 {
        // Two clicks at each time, so that the time alone does not identify the end of a page.
        let at = now - TimeDelta::seconds(i64::from(60 + number / 2));
        let mut click = click_at(&server, link_id, at);
        click.click_id = server.click_ids().mint(link_id, at, [number; 10]);
        let made = convert(&server, &json!({"click_id": click.click_id})).await;
        ids.push((class_of(number), made.body["conversion"]["id"].clone()));
        click.class = class_of(number).unwrap_or(Class::Human);
        let row = ClickRow { click, src: 1 << 16, koff: u64::from(number), broker_ts: at };
        if class_of(number).is_some() {
            write_conversion(&conversion(&row, at), &mut stored);
            rows.push(row);
        }
    }
    store_rows(&server, &rows).await;
    store_conversions(&server, stored).await;
    for base in ["/api", &format!("/api/v1/links/{link_id}")] {
        for (query, class) in [
            ("", Some(Class::Human)),
            ("class=human", Some(Class::Human)),
            ("class=bot", Some(Class::Bot)),
            ("class=preview", Some(Class::Preview)),
            ("class=all", None),
        ] {
            let is_of_class =
                |own: Option<Class>| class.is_none() || own.unwrap_or(Class::Human) == class.unwrap();
            let mut expected: Vec<&Value> =
                ids.iter().filter(|(own, _)| is_of_class(*own)).map(|(_, id)| id).collect();
            let counted = server.send(Method::GET, &format!("{base}/stats?{query}"), None).await.body;
            let stored = ids.iter().filter(|(own, _)| own.is_some() && is_of_class(*own)).count();
            assert_eq!(counted["conversions"], stored, "{base} {query}");
            expected.sort_by_key(|id| id.to_string());
            for limit in [1, 2, 5, 100] {
                let mut shown = listed(&server, &format!("{base}/conversions?{query}"), limit).await;
                shown.sort_by_key(Value::to_string);
                assert_eq!(shown.iter().collect::<Vec<_>>(), expected, "{base} {query} {limit}");
            }
        }
    }
}

#[tokio::test]
async fn a_link_shows_at_most_as_many_conversions_as_clicks() {
    let server = Server::start().await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let at = schemas::time::to_millis(Utc::now());
    let click = Click { class: Class::Human, ..click_at(&server, text(&link["id"]).parse().unwrap(), at) };
    let row = ClickRow { click, src: 1 << 16, koff: 1, broker_ts: at };
    let mut stored = Vec::new();
    write_conversion(&conversion(&row, at), &mut stored);
    store_conversions(&server, stored).await;
    let path = format!("/api/links/{}", text(&link["id"]));
    let shown = async || {
        let link = server.send(Method::GET, &path, None).await.body;
        let stats = server.send(Method::GET, &format!("{path}/stats"), None).await.body;
        assert_eq!(link["conversion_rate"], stats["conversion_rate"]);
        [link["conversions"].clone(), stats["conversions"].clone()]
    };
    // As when the clicks were counted a moment before the conversions.
    assert_eq!(shown().await, [0, 0]);
    store_rows(&server, &[row]).await;
    assert_eq!(shown().await, [1, 1]);
}
