//! Which characters texts may have.

use reqwest::Method;
use serde_json::{Value, json};

use crate::dashboard::Browser;
use crate::dashboard_import::import;
use crate::server::{Answer, Server, text};

const URL: &str = "https://example.com";

async fn create_link(server: &Server) -> Value {
    server.create_link(json!({"name": "a", "destination": URL, "external_id": "old"})).await
}

/// Gives a text that people read to everything that takes one. Returns what each answered: a status, and the body.
async fn give(server: &Server, owner: &Browser, given: &str, link: &Value) -> Vec<(String, u64, Value)> {
    let path = format!("/api/links/{}", text(&link["id"]));
    let email = format!("{}@example.com", uuid::Uuid::now_v7());
    let endpoint =
        json!({"url": "https://hooks.example.com", "events": ["link.created"], "description": given});
    let with_key = [
        (Method::POST, "/api/links", json!({"name": given, "destination": URL})),
        (Method::POST, "/api/links", json!({"name": "a", "destination": URL, "tags": ["b", given]})),
        (Method::PUT, "/api/links/upsert", json!({"external_id": "new", "name": given, "destination": URL})),
        (Method::PUT, "/api/links/upsert", json!({"external_id": "old", "name": given})),
        (Method::PATCH, &path, json!({"name": format!("{given} {given}")})),
        (Method::PATCH, &path, json!({"tags": [given]})),
        (Method::POST, "/api/webhooks", endpoint),
    ];
    let mut answers = Vec::new();
    let mut note = |what: String, answer: Answer| {
        answers.push((what, u64::from(answer.status.as_u16()), answer.body));
    };
    for (method, path, body) in with_key {
        note(format!("{method} {path} {body}"), server.send(method, path, Some(body)).await);
    }
    let workspaces = "/app/api/workspaces";
    let body = json!({"name": given, "kind": "organization"});
    note(workspaces.to_owned(), owner.send(Method::POST, workspaces, Some(body)).await);
    let members = "/app/api/members";
    let body = json!({"email": email, "name": given, "role": "viewer"});
    note(members.to_owned(), owner.send(Method::POST, members, Some(body)).await);
    note("keys".to_owned(), owner.post("/keys", json!({"name": given, "scope": "read"})).await);
    let bulk = json!({"links": [{"name": given, "destination": URL}]});
    let bulk = server.send(Method::POST, "/api/links/bulk", Some(bulk)).await.body["results"][0].clone();
    answers.push(("bulk".to_owned(), bulk["status"].as_u64().unwrap(), bulk));
    for file in [format!("name,destination\n{given},{URL}\n"), format!("destination,tags\n{URL},{given}\n")] {
        let report = import(owner, false, file.clone()).await.body;
        let status =
            if report["created"] == 1 { 201 } else { report["results"][0]["status"].as_u64().unwrap() };
        answers.push((file, status, report));
    }
    answers
}

#[tokio::test]
async fn an_invisible_character_is_rejected_and_named() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let link = create_link(&server).await;
    for (given, code) in [("a\u{200b}b", "U+200B"), ("so\u{ad}ft", "U+00AD"), ("\u{202e}gpj.exe", "U+202E")] {
        for (what, status, body) in give(&server, &owner, given, &link).await {
            assert_eq!(status, 400, "{what}: {body}");
            assert!(body.to_string().contains(&format!("invisible character {code}")), "{what}: {body}");
        }
        // Ids and addresses, which programs compare.
        for (method, path, body, field) in [
            (
                Method::POST,
                "/api/links",
                json!({"name": "a", "destination": format!("{URL}/{given}")}),
                "destination",
            ),
            (
                Method::POST,
                "/api/links",
                json!({"name": "a", "destination": URL, "external_id": given}),
                "external_id",
            ),
            (
                Method::PUT,
                "/api/links/upsert",
                json!({"name": "a", "destination": URL, "external_id": given}),
                "external_id",
            ),
            (
                Method::POST,
                "/api/webhooks",
                json!({"url": format!("https://hooks.example.com/{given}"), "events": ["link.created"]}),
                "url",
            ),
        ] {
            let refused = server.send(method, path, Some(body.clone())).await;
            assert_eq!(refused.status, 400, "{body}: {}", refused.body);
            assert_eq!(refused.body["details"][0]["field"], field, "{body}");
            assert!(text(&refused.body["details"][0]["message"]).contains(code), "{}", refused.body);
        }
        let member = json!({"email": format!("{given}@example.com"), "role": "viewer"});
        let refused = owner.send(Method::POST, "/app/api/members", Some(member)).await;
        assert_eq!((refused.status.as_u16(), &refused.body["details"][0]["field"]), (400, &json!("email")));
    }
    let path = format!("/api/links/{}", text(&link["id"]));
    let after = server.send(Method::GET, &path, None).await.body;
    assert_eq!((&after["name"], &after["updated_at"]), (&json!("a"), &link["updated_at"]));
}

#[tokio::test]
async fn what_scripts_and_emoji_need_is_accepted_and_kept() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let link = create_link(&server).await;
    for given in [
        "می\u{200c}خواهم",
        "👨\u{200d}👩\u{200d}👧",
        "🏴\u{e0067}\u{e0062}\u{e0073}\u{e0063}\u{e0074}\u{e007f}",
        "❤\u{fe0f}",
        "\u{6dd}١",
    ] {
        for (what, status, body) in give(&server, &owner, given, &link).await {
            assert!(matches!(status, 200 | 201), "{what}: {body}");
        }
        let path = format!("/api/links/{}", text(&link["id"]));
        let after = server.send(Method::GET, &path, None).await.body;
        assert_eq!((&after["name"], &after["tags"]), (&json!(format!("{given} {given}")), &json!([given])));
    }
}

#[tokio::test]
async fn a_text_from_before_a_rule_blocks_no_change_of_another_field() {
    let server = Server::start().await;
    let link = create_link(&server).await;
    let path = format!("/api/links/{}", text(&link["id"]));
    let id: schemas::id::LinkId = text(&link["id"]).parse().unwrap();
    let old = json!({
        "name": "so\u{ad}ft",
        "destination": "https:\\\\example.com/\u{200b}",
        "external_id": "order\u{200b}1",
        "tags": ["\u{202e}b", " ", "c", "c "],
    });
    sqlx::query("UPDATE links SET name = $2, destination = $3, external_id = $4, tags = $5 WHERE id = $1")
        .bind(id.uuid())
        .bind(text(&old["name"]))
        .bind(text(&old["destination"]))
        .bind(text(&old["external_id"]))
        .bind(old["tags"].as_array().unwrap().iter().map(text).collect::<Vec<_>>())
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();

    let listed = server.send(Method::GET, "/api/links?tag=%E2%80%AEb&q=so%C2%ADft", None).await;
    assert_eq!(listed.body["links"][0]["id"], link["id"], "{}", listed.body);
    let mut other = old.clone();
    other["redirect_status"] = json!(301);
    let changed = server.send(Method::PATCH, &path, Some(other)).await;
    assert_eq!((changed.status.as_u16(), &changed.body["redirect_status"]), (200, &json!(301)));
    let mut other = old.clone();
    other["is_active"] = json!(false);
    let upserted = server.send(Method::PUT, "/api/links/upsert", Some(other)).await;
    assert_eq!((upserted.status.as_u16(), &upserted.body["is_active"]), (200, &json!(false)));
    for (field, value) in old.as_object().unwrap() {
        assert_eq!(&upserted.body[field], value, "as it was");
        let mut changed = value.clone();
        match &mut changed {
            Value::Array(tags) => tags.truncate(2),
            value => *value = json!(format!("{}x", text(value))),
        }
        let refused = server.send(Method::PATCH, &path, Some(json!({ field: changed }))).await;
        assert_eq!((refused.status.as_u16(), &refused.body["details"][0]["field"]), (400, &json!(field)));
    }
    let good = json!({"name": "soft", "destination": URL, "tags": ["b", " c "]});
    let changed = server.send(Method::PATCH, &path, Some(good)).await;
    assert_eq!((changed.status.as_u16(), &changed.body["tags"]), (200, &json!(["b", "c"])));

    let endpoint = json!({"url": "https://hooks.example.com", "events": ["link.created"]});
    let endpoint = server.send(Method::POST, "/api/webhooks", Some(endpoint)).await.body;
    let (url, description) = ("https://hooks.example.com\\\u{200b}", "so\u{ad}ft");
    sqlx::query("UPDATE webhook_endpoints SET url = $1, description = $2")
        .bind(url)
        .bind(description)
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();
    let path = format!("/api/webhooks/{}", text(&endpoint["id"]));
    let other = json!({"url": url, "description": description, "events": ["link.updated"]});
    let changed = server.send(Method::PATCH, &path, Some(other)).await;
    assert_eq!((changed.status.as_u16(), &changed.body["events"]), (200, &json!(["link.updated"])));
    let other = json!({"description": "so\u{ad}fter"});
    assert_eq!(server.send(Method::PATCH, &path, Some(other)).await.status, 400);
}

#[tokio::test]
async fn a_slug_from_before_a_reserved_word_blocks_no_change_of_another_field() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let link = create_link(&server).await;
    let path = format!("/api/links/{}", text(&link["id"]));
    let id: schemas::id::LinkId = text(&link["id"]).parse().unwrap();
    sqlx::query("UPDATE links SET slug = 'API' WHERE id = $1")
        .bind(id.uuid())
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();

    let other = json!({"slug": "API", "redirect_status": 301});
    let changed = server.send(Method::PATCH, &path, Some(other)).await;
    assert_eq!((changed.status.as_u16(), &changed.body["redirect_status"]), (200, &json!(301)));
    let other = json!({"external_id": "old", "slug": "API", "is_active": false});
    let upserted = server.send(Method::PUT, "/api/links/upsert", Some(other)).await;
    assert_eq!((upserted.status.as_u16(), &upserted.body["is_active"]), (200, &json!(false)));
    assert_eq!(upserted.body["slug"], "API", "as it was");

    for slug in ["api", "Api", "App", "READYZ", "metricS"] {
        let new = json!({"external_id": "new", "slug": slug, "name": "a", "destination": URL});
        for (method, path, body) in [
            (Method::PATCH, &*path, json!({ "slug": slug })),
            (Method::PUT, "/api/links/upsert", json!({"external_id": "old", "slug": slug})),
            (Method::PUT, "/api/links/upsert", new.clone()),
            (Method::POST, "/api/links", new.clone()),
        ] {
            let refused = server.send(method, path, Some(body.clone())).await;
            let detail = json!({"field": "slug", "message": "Slug is reserved."});
            assert_eq!((refused.status.as_u16(), &refused.body["details"][0]), (400, &detail), "{body}");
        }
        let bulk = json!({"links": [new.clone()]});
        let bulk = server.send(Method::POST, "/api/links/bulk", Some(bulk)).await.body;
        assert_eq!(bulk["results"][0]["error"]["message"], "Slug is reserved.", "{bulk}");
        let report =
            import(&owner, false, format!("destination,slug,expires_at\n{URL},{slug},soon\n")).await.body;
        let message = "Expires at must be a time such as 2027-01-31T12:00:00Z. Slug is reserved.";
        assert_eq!(report["results"][0]["message"], message, "{report}");
        let available = owner.get(&format!("/slugs/{slug}")).await.body;
        assert_eq!(available, json!({"available": false, "reason": "reserved"}), "{slug}");
    }
    let changed = server.send(Method::PATCH, &path, Some(json!({"slug": "apis"}))).await;
    assert_eq!((changed.status.as_u16(), &changed.body["slug"]), (200, &json!("apis")));
}
