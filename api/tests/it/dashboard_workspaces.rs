//! The operations of a workspace for members, and those that only the dashboard has.

use chrono::{TimeDelta, Utc};
use reqwest::Method;
use schemas::id::LinkId;
use schemas::message::{Class, Click, Message as _};
use schemas::row::{ClickRow, write_conversion};
use serde_json::{Value, json};

use crate::dashboard::Browser;
use crate::server::{Server, text};
use crate::stats_model::{
    DAYS, Model, Query, conversion, midnight_before, store_conversions, store_rows, within_a_day,
};

#[tokio::test]
async fn members_change_links_on_every_plan() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let free = owner.of_other_account(&server, "eve@example.com", "free").await;
    let key = server.create_key(&free.workspace, "read,write").await;
    let body =
        |number: usize| json!({"name": format!("link {number}"), "destination": "https://example.com"});
    let mut last = Value::Null;
    for number in 0..25 {
        let created = free.post("/links", body(number)).await;
        assert_eq!(created.status, 201, "{}", created.body);
        last = created.body;
    }
    let full = free.post("/links", body(25)).await;
    assert_eq!((full.status.as_u16(), &full.body["code"]), (403, &json!("PLAN_LIMIT")));
    let path = free.path(&format!("/links/{}", text(&last["id"])));
    let changed = free.send(Method::PATCH, &path, Some(json!({"name": "new"}))).await;
    assert_eq!((changed.status.as_u16(), &changed.body["name"]), (200, &json!("new")));
    let refused = server.send_as(&key, Method::POST, "/api/links", Some(body(0))).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("PLAN_REQUIRED")));
    assert_eq!(free.send(Method::DELETE, &path, None).await.status, 204);
    for (method, below) in [(Method::GET, "/webhooks"), (Method::POST, "/webhooks")] {
        let refused = free
            .send(
                method,
                &free.path(below),
                Some(json!({"url": "https://example.com", "events": ["click.created"]})),
            )
            .await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("PLAN_REQUIRED")));
    }
    assert_eq!(free.get("/usage").await.body["used"]["links"], 24);
}

#[tokio::test]
async fn members_see_more_fields_of_links() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let body = json!({
        "name": "a", "destination": "https://example.com", "tags": ["b", "a"], "expires_at": "2030-01-01T00:00:00Z"
    });
    let link = owner.post("/links", body).await.body;
    let link_id: LinkId = text(&link["id"]).parse().unwrap();
    let at = schemas::time::to_millis(Utc::now()) - TimeDelta::minutes(1);
    let (mut rows, mut conversions) = (Vec::new(), Vec::new());
    for (number, class) in [Class::Human, Class::Human, Class::Bot].into_iter().enumerate() {
        let mut click = Click::decode(include_bytes!("../../../schemas/fixtures/click.v1.json")).unwrap();
        (click.link_id, click.workspace_id) = (link_id, server.workspace.parse().unwrap());
        (click.click_id, click.occurred_at, click.class) = (format!("click-{number}"), at, class);
        let row = ClickRow { click, src: 1 << 16, koff: number as u64, broker_ts: at };
        write_conversion(&conversion(&row, at), &mut conversions);
        rows.push(row);
    }
    store_rows(&server, &rows).await;
    store_conversions(&server, conversions).await;
    for (query, counted) in [("", 2), ("&class=bot", 1), ("&class=preview", 0), ("&class=all", 3)] {
        for sort in ["-created_at", "-total_clicks"] {
            let item = owner.get(&format!("/links?sort={sort}{query}")).await.body["links"][0].clone();
            assert_eq!(
                (&item["conversions"], &item["total_clicks"]),
                (&json!(counted), &json!(counted)),
                "{query}"
            );
        }
    }
    for sort in ["-created_at", "-total_clicks"] {
        let item = owner.get(&format!("/links?sort={sort}")).await.body["links"][0].clone();
        assert_eq!(item["tags"], json!(["b", "a"]));
        assert_eq!(
            (&item["is_locked"], &item["expires_at"]),
            (&json!(false), &json!("2030-01-01T00:00:00.000Z"))
        );
        let item =
            server.send(Method::GET, &format!("/api/links?sort={sort}"), None).await.body["links"][0].clone();
        assert!(["tags", "is_locked", "conversions"].iter().all(|field| item.get(field).is_none()), "{item}");
    }
    assert_eq!(owner.get("/tags").await.body, json!({"tags": ["a", "b"]}));
    for (slug, expected) in [
        ("free-slug", json!({"available": true, "reason": null})),
        (link["slug"].as_str().unwrap(), json!({"available": false, "reason": "taken"})),
        ("app", json!({"available": false, "reason": "reserved"})),
        ("APP", json!({"available": false, "reason": "reserved"})),
        ("a%20b", json!({"available": false, "reason": "malformed"})),
    ] {
        assert_eq!(owner.get(&format!("/slugs/{slug}")).await.body, expected, "{slug}");
    }
    // A slug is unique on its host, so it is taken for other accounts, too.
    let other = owner.of_other_account(&server, "eve@example.com", "free").await;
    let seen = other.get(&format!("/slugs/{}", text(&link["slug"]))).await.body;
    assert_eq!(seen["reason"], "taken");
    assert_eq!(other.get("/tags").await.body, json!({"tags": []}));
}

#[tokio::test]
async fn a_key_is_created_shown_once_used_and_revoked() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let created = owner
        .post("/keys", json!({"name": " CI ", "scope": "read,write", "expires_at": "2099-01-01T00:00:00Z"}))
        .await;
    assert_eq!(created.status, 201, "{}", created.body);
    let (id, key) = (text(&created.body["id"]), text(&created.body["key"]));
    assert_eq!((&created.body["name"], &created.body["prefix"]), (&json!("CI"), &json!(key[..13])));
    let shown = async || {
        let keys = owner.get("/keys").await.body;
        assert!(!keys.to_string().contains(&key), "shown once");
        keys["keys"].as_array().unwrap().iter().find(|one| one["id"] == json!(id)).unwrap().clone()
    };
    let before = shown().await;
    assert_eq!((&before["last_used_at"], &before["revoked_at"]), (&Value::Null, &Value::Null));
    assert_eq!(before["expires_at"], "2099-01-01T00:00:00.000Z");
    assert_eq!(server.send_as(&key, Method::GET, "/api/usage", None).await.status, 200);
    assert!(shown().await["last_used_at"].is_string());
    assert_eq!(owner.send(Method::DELETE, &owner.path(&format!("/keys/{id}")), None).await.status, 204);
    assert_eq!(server.send_as(&key, Method::GET, "/api/usage", None).await.status, 401);
    assert!(shown().await["revoked_at"].is_string());
    for (field, body) in [
        ("name", json!({"name": "a\nb", "scope": "read"})),
        ("scope", json!({"name": "a", "scope": "write"})),
        ("expires_at", json!({"name": "a", "scope": "read", "expires_at": "2020-01-01T00:00:00Z"})),
        ("expires_at", json!({"name": "a", "scope": "read", "expires_at": "soon"})),
    ] {
        let refused = owner.post("/keys", body).await;
        assert_eq!((refused.status.as_u16(), &refused.body["details"][0]["field"]), (400, &json!(field)));
    }
}

#[tokio::test]
async fn a_workspace_has_a_hundred_keys_that_are_listed_in_pages() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let insert = "INSERT INTO api_keys (id, workspace_id, key_sha256, display_prefix, scope, name, expires_at,
                                        revoked_at)
                  SELECT gen_random_uuid(), $1, sha256($2 || number::text::bytea), 'hop_live_xxxx', 'read', 'old',
                         CASE number % 2 WHEN 0 THEN now() END, CASE number % 2 WHEN 1 THEN now() END
                  FROM generate_series(1, 950) AS number";
    let workspace: schemas::id::WorkspaceId = owner.workspace.parse().unwrap();
    let ended = sqlx::query(insert)
        .bind(workspace.uuid())
        .bind(workspace.uuid().as_bytes().to_vec())
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();
    assert_eq!(ended.rows_affected(), 950, "expired and revoked keys, which do not count");
    let body = || json!({"name": "a", "scope": "read"});
    let mut created = Vec::new();
    // The server's own key is one of them. Two at a time, so that the last two meet.
    while created.len() < 99 {
        let (one, other) = tokio::join!(owner.post("/keys", body()), owner.post("/keys", body()));
        let mut statuses = [one.status.as_u16(), other.status.as_u16()];
        statuses.sort_unstable();
        let expected = if created.len() == 98 { [201, 403] } else { [201, 201] };
        assert_eq!(statuses, expected, "after {}", created.len());
        created.extend([one, other].into_iter().filter(|answer| answer.status == 201));
    }
    let refused = owner.post("/keys", body()).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("PLAN_LIMIT")));
    let id = text(&created[0].body["id"]);
    assert_eq!(owner.send(Method::DELETE, &owner.path(&format!("/keys/{id}")), None).await.status, 204);
    assert_eq!(owner.post("/keys", body()).await.status, 201);

    let mut listed = std::collections::HashSet::new();
    let mut path = "/keys?limit=100".to_owned();
    let mut sizes = Vec::new();
    loop {
        let page = owner.get(&path).await.body;
        let keys = page["keys"].as_array().unwrap();
        sizes.push(keys.len());
        listed.extend(keys.iter().map(|key| text(&key["id"])));
        let Some(next) = page["next_cursor"].as_str() else { break };
        path = format!("/keys?limit=100&cursor={next}");
    }
    assert_eq!((sizes, listed.len()), (vec![100; 10], 1_000));
    assert_eq!(owner.get("/keys?cursor=x").await.status, 400);
}

#[tokio::test]
async fn a_key_created_without_a_name_is_called_api_key() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    for body in [json!({"scope": "read"}), json!({"scope": "read", "name": " "})] {
        let created = owner.post("/keys", body).await;
        assert_eq!((created.status.as_u16(), &created.body["name"]), (201, &json!("API key")));
    }
    let create = ["create-key", "--workspace", &owner.workspace, "--scope", "read"];
    server.admin(&create).await;
    server.admin(&[&create[..], &["--name", "CI"]].concat()).await;
    let listed = owner.get("/keys").await.body;
    let names: Vec<&Value> = listed["keys"].as_array().unwrap().iter().map(|key| &key["name"]).collect();
    assert_eq!(names[..4], ["CI", "API key", "API key", "API key"]);
}

#[tokio::test]
async fn a_sparkline_counts_human_clicks_of_30_days() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let model = Model::create(&server, 31, 900).await;
    crate::stats_model::close(&server, 3..DAYS, 1).await;
    let (one, other) = (model.link_id(1), model.link_id(3));
    let foreign = schemas::id::LinkId::from_uuid(uuid::Uuid::now_v7());
    let path = format!("/sparklines?ids={one},{other},{foreign}");
    let (today, answer) = within_a_day(async |_| owner.get(&path).await).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for (place, id) in [(1, one.to_string()), (3, other.to_string())] {
        let days: Vec<usize> = (0..30)
            .rev()
            .map(|back| {
                let start = midnight_before(today, back);
                let end = start + TimeDelta::days(1);
                model.clicks(Query { link: Some(place), class: Some(Class::Human), start, end }).count()
            })
            .collect();
        assert!(days.iter().sum::<usize>() > 0);
        assert_eq!(answer.body["series"][&id], json!(days));
    }
    assert_eq!(answer.body["series"][foreign.to_string()], json!(vec![0; 30]));
    for bad in ["", "?ids=", "?ids=nonsense", &format!("?ids={}", vec![one.to_string(); 101].join(","))] {
        assert_eq!(owner.get(&format!("/sparklines{bad}")).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn a_download_url_needs_no_headers() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let _model = Model::create(&server, 32, 50).await;
    let path = owner.path("/clicks?class=all&format=csv&start_date=2000-01-01");
    let answer = owner.bare(Method::GET, &path).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/csv; charset=utf-8");
    assert!(answer.headers()["content-disposition"].to_str().unwrap().starts_with("attachment"));
    assert_eq!(answer.text().await.unwrap().lines().count(), 51);
    assert_eq!(owner.get("/clicks?format=nonsense").await.status, 400);
}

#[tokio::test]
async fn only_the_dashboard_enables_a_disabled_endpoint() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let body = json!({"url": "https://example.com/hook", "events": ["click.created"]});
    let endpoint = owner.post("/webhooks", body).await.body;
    let id = text(&endpoint["id"]);
    sqlx::query(
        "UPDATE webhook_endpoints SET status = 'disabled', disabled_reason = 'tired', \
        consecutive_exhausted = 15",
    )
    .execute(&mut server.engines.postgres().await)
    .await
    .unwrap();
    assert_eq!(owner.get(&format!("/webhooks/{id}")).await.body["disabled_reason"], "tired");
    let path = format!("/api/webhooks/{id}/enable");
    assert_eq!(server.send(Method::POST, &path, Some(json!({}))).await.status, 404, "not with a key");
    let enabled = owner.post(&format!("/webhooks/{id}/enable"), json!({})).await;
    assert_eq!(
        (enabled.status.as_u16(), &enabled.body["status"]),
        (200, &json!("enabled")),
        "{}",
        enabled.body
    );
    assert_eq!(enabled.body["consecutive_exhausted"], 0);
    let again = owner.post(&format!("/webhooks/{id}/enable"), json!({})).await;
    assert_eq!(again.body, enabled.body);
}
