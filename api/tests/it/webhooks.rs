//! Webhook endpoints over HTTP.

use futures_util::future::join_all;
use reqwest::Method;
use schemas::id::EndpointId;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use service::config::KeyRing;

use crate::server::{Server, text};

#[tokio::test]
async fn a_secret_is_shown_once_and_stored_sealed() {
    let server = Server::start().await;
    let body = json!({"url": "https://hooks.example.com/in", "events": ["click.created", "link.created"]});
    let created = server.send(Method::POST, "/api/webhooks", Some(body)).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let secret = text(&created.body["secret"]);
    assert!(secret.starts_with("whsec_"));
    assert_eq!(created.body["click_classes"], json!(["human"]));

    let path = format!("/api/webhooks/{}", text(&created.body["id"]));
    for path in [path.as_str(), "/api/webhooks"] {
        let shown = server.send(Method::GET, path, None).await;
        assert_eq!(shown.status, 200);
        assert!(!shown.body.to_string().contains("whsec_"), "{path}");
    }
    let stored: Vec<u8> = sqlx::query_scalar("SELECT secret_sealed FROM webhook_endpoints")
        .fetch_one(&mut server.engines.postgres().await)
        .await
        .unwrap();
    assert!(!String::from_utf8_lossy(&stored).contains(&secret));

    assert_eq!(server.send(Method::DELETE, &path, None).await.status, 204);
    assert_eq!(server.send(Method::GET, &path, None).await.status, 404);
}

#[tokio::test]
async fn a_forbidden_webhook_url_is_rejected_at_creation() {
    let server = Server::start().await;
    for url in [
        "http://hooks.example.com/in",
        "https://127.0.0.1/in",
        "https://169.254.169.254/latest",
        "https://[::1]/",
        "https://2130706433/",
        "https://user:pass@hooks.example.com/",
        "https://go.example/spring",
        "ftp://hooks.example.com",
        "nonsense",
        "",
    ] {
        let body = json!({"url": url, "events": ["click.created"]});
        let refused = server.send(Method::POST, "/api/webhooks", Some(body)).await;
        assert_eq!(refused.status, 400, "{url}");
        assert_eq!(refused.body["details"][0]["field"], "url", "{url}");
    }
    for (body, field) in [
        (json!({"url": "https://hooks.example.com", "events": []}), "events"),
        (json!({"url": "https://hooks.example.com", "events": ["nope"]}), "events"),
        (
            json!({"url": "https://hooks.example.com", "events": ["click.created"], "click_classes": ["x"]}),
            "click_classes",
        ),
    ] {
        let refused = server.send(Method::POST, "/api/webhooks", Some(body)).await;
        assert_eq!((refused.status.as_u16(), &refused.body["details"][0]["field"]), (400, &json!(field)));
    }
}

#[tokio::test]
async fn a_change_of_endpoints_raises_their_version() {
    let server = Server::start().await;
    let version = async || -> i64 {
        sqlx::query_scalar("SELECT version FROM endpoints_version")
            .fetch_one(&mut server.engines.postgres().await)
            .await
            .unwrap()
    };
    let before = version().await;
    let body = json!({"url": "https://hooks.example.com/in", "events": ["click.created"]});
    let created = server.send(Method::POST, "/api/webhooks", Some(body)).await.body;
    assert_eq!(version().await, before + 1);
    let path = format!("/api/webhooks/{}", text(&created["id"]));
    server.send(Method::PATCH, &path, Some(json!({"events": ["link.created"]}))).await;
    assert_eq!(version().await, before + 2);
    server.send(Method::PATCH, &path, Some(json!({"events": ["link.created"]}))).await;
    server.send(Method::GET, &path, None).await;
    assert_eq!(version().await, before + 2, "nothing changed");
    server.send(Method::POST, &format!("{path}/rotate-secret"), None).await;
    assert_eq!(version().await, before + 3);
    server.send(Method::DELETE, &path, None).await;
    assert_eq!(version().await, before + 4);
}

#[tokio::test]
async fn only_supplied_fields_of_an_endpoint_change() {
    let server = Server::start().await;
    let path = format!("/api/webhooks/{}", text(&create(&server).await["id"]));
    let before = server.send(Method::GET, &path, None).await.body;
    let changed = server
        .send(
            Method::PATCH,
            &path,
            Some(json!({
                "url": "https://other.example.com/in",
                "description": "Orders",
                "events": ["link.deleted", "click.created"],
                "click_classes": ["human", "preview"],
            })),
        )
        .await;
    assert_eq!(changed.status, 200);
    for (field, value) in [
        ("url", json!("https://other.example.com/in")),
        ("description", json!("Orders")),
        ("events", json!(["link.deleted", "click.created"])),
        ("click_classes", json!(["human", "preview"])),
        ("status", json!("enabled")),
        ("created_at", before["created_at"].clone()),
    ] {
        assert_eq!(changed.body[field], value, "{field}");
    }
    assert_eq!(changed.body.get("secret"), None);
    assert_eq!(server.send(Method::GET, &path, None).await.body, changed.body);
    let one = server.send(Method::PATCH, &path, Some(json!({"description": ""}))).await.body;
    assert_eq!((&one["description"], &one["url"]), (&json!(""), &changed.body["url"]));
    let none = server.send(Method::PATCH, &path, Some(json!({}))).await;
    assert_eq!((none.status.as_u16(), none.body), (200, one), "an empty change changes nothing");
}

#[tokio::test]
async fn an_invalid_change_is_rejected_as_a_whole() {
    let server = Server::start().await;
    let path = format!("/api/webhooks/{}", text(&create(&server).await["id"]));
    let before = server.send(Method::GET, &path, None).await.body;
    for (body, field) in [
        (json!({"url": null}), "url"),
        (json!({"url": 7}), "url"),
        (json!({"url": "https://127.0.0.1/"}), "url"),
        (json!({"url": "https://exam\tple.com/"}), "url"),
        (json!({"url": format!("https://hooks.example.com/{}", "x".repeat(2_048))}), "url"),
        (json!({"description": null}), "description"),
        (json!({"description": "x".repeat(201)}), "description"),
        (json!({"description": "new", "events": []}), "events"),
        (json!({"events": null}), "events"),
        (json!({"events": "click.created"}), "events"),
        (json!({"events": ["link.created", "link.created"]}), "events"),
        (json!({"click_classes": []}), "click_classes"),
        (json!({"click_classes": null}), "click_classes"),
        (json!({"status": "enabled"}), "status"),
        (json!({"secret": "whsec_mine"}), "secret"),
        (json!({"id": "whe_1"}), "id"),
    ] {
        let refused = server.send(Method::PATCH, &path, Some(body.clone())).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!("BAD_REQUEST")), "{body}");
        assert_eq!(refused.body["details"][0]["field"], field, "{body}: {}", refused.body);
    }
    let refused = server.send(Method::PATCH, &path, Some(json!({"status": "enabled"}))).await.body;
    assert!(text(&refused["details"][0]["message"]).contains("dashboard"), "{refused}");
    assert_eq!(server.send(Method::GET, &path, None).await.body, before);
}

#[tokio::test]
async fn a_bad_list_of_events_is_rejected_before_the_endpoint_is_looked_up() {
    let server = Server::start().await;
    let path = format!("/api/webhooks/{}", EndpointId::from_uuid(uuid::Uuid::now_v7()));
    let status = async |body: Value| server.send(Method::PATCH, &path, Some(body)).await.status.as_u16();
    for bad in [json!({"events": []}), json!({"click_classes": ["x"]}), json!({"status": "enabled"})] {
        assert_eq!(status(bad.clone()).await, 400, "{bad}");
    }
    for unknown in [json!({"events": ["link.created"]}), json!({"url": "nonsense"})] {
        assert_eq!(status(unknown.clone()).await, 404, "{unknown}");
    }
}

#[tokio::test]
async fn a_test_of_a_disabled_or_full_endpoint_is_rejected_with_the_reason() {
    let server = Server::start().await;
    let path = format!("/api/webhooks/{}/test", text(&create(&server).await["id"]));
    let mut postgres = server.engines.postgres().await;
    for (change, status, code, reason) in [
        (
            "INSERT INTO webhook_health (endpoint_id, is_full) SELECT id, true FROM webhook_endpoints",
            429,
            "RATE_LIMITED",
            "queue is full",
        ),
        ("UPDATE webhook_endpoints SET status = 'disabled'", 400, "BAD_REQUEST", "disabled"),
    ] {
        sqlx::query(change).execute(&mut postgres).await.unwrap();
        let refused = server.send(Method::POST, &path, None).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (status, &json!(code)));
        assert!(text(&refused.body["message"]).contains(reason), "{}", refused.body);
    }
    let queued: i64 =
        sqlx::query_scalar("SELECT count(*) FROM webhook_deliveries").fetch_one(&mut postgres).await.unwrap();
    assert_eq!(queued, 0);
    for change in
        ["UPDATE webhook_endpoints SET status = 'enabled'", "UPDATE webhook_health SET is_full = false"]
    {
        sqlx::query(change).execute(&mut postgres).await.unwrap();
    }
    assert_eq!(server.send(Method::POST, &path, None).await.status, 202);
}

#[tokio::test]
async fn a_rotated_secret_is_shown_once() {
    let server = Server::start().await;
    let created = create(&server).await;
    let id = text(&created["id"]);
    let path = format!("/api/webhooks/{id}");
    let rotated = server.send(Method::POST, &format!("{path}/rotate-secret"), None).await;
    assert_eq!(rotated.status, 200);
    assert_eq!((&rotated.body["id"], &rotated.body["url"]), (&created["id"], &created["url"]));
    let (former, secret) = (text(&created["secret"]), text(&rotated.body["secret"]));
    assert!(secret.starts_with("whsec_") && secret != former);
    assert!(!server.send(Method::GET, &path, None).await.body.to_string().contains("whsec_"));

    // The dispatcher signs with both until the former one expires.
    let ring: KeyRing = format!("1:{}", "22".repeat(32)).parse().unwrap();
    let endpoint: EndpointId = id.parse().unwrap();
    let open = |(key, sealed): (i16, Vec<u8>)| {
        service::sealed::open(&ring, endpoint.uuid().as_bytes(), key, &sealed).unwrap()
    };
    let stored = async |columns: &'static str| -> (i16, Vec<u8>) {
        sqlx::query_as(columns).fetch_one(&mut server.engines.postgres().await).await.unwrap()
    };
    let present = "SELECT secret_key_id, secret_sealed FROM webhook_endpoints";
    let previous = "SELECT previous_secret_key_id, previous_secret_sealed FROM webhook_endpoints";
    assert_eq!(open(stored(present).await).expose_secret(), secret);
    assert_eq!(open(stored(previous).await).expose_secret(), former);
    let hours: f64 = sqlx::query_scalar(
        "SELECT extract(epoch FROM previous_secret_until - now())::float8 / 3600 FROM webhook_endpoints",
    )
    .fetch_one(&mut server.engines.postgres().await)
    .await
    .unwrap();
    assert!((23.9..=24.0).contains(&hours), "{hours}");

    let again = server.send(Method::POST, &format!("{path}/rotate-secret"), None).await.body;
    assert_eq!(open(stored(present).await).expose_secret(), text(&again["secret"]));
    assert_eq!(open(stored(previous).await).expose_secret(), secret, "only the last one is kept");
}

#[tokio::test]
async fn a_list_of_endpoints_is_paged_newest_first() {
    let server = Server::start().await;
    let mut created = Vec::new();
    for _ in 0..5 {
        created.push(text(&create(&server).await["id"]));
    }
    created.reverse();
    let mut listed = Vec::new();
    let mut path = "/api/webhooks?limit=2".to_owned();
    let mut pages = 0;
    loop {
        let page = server.send(Method::GET, &path, None).await.body;
        listed.extend(page["webhooks"].as_array().unwrap().iter().map(|one| text(&one["id"])));
        pages += 1;
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/webhooks?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!((listed, pages), (created, 3));
    for (query, code) in [
        ("limit=0", "INVALID_LIMIT"),
        ("limit=101", "INVALID_LIMIT"),
        ("limit=abc", "INVALID_LIMIT"),
        ("limit=", "INVALID_LIMIT"),
        ("cursor=", "BAD_REQUEST"),
        ("cursor=AAAAAAAAAAAAAAAAAAAAAAAAAAA", "BAD_REQUEST"),
        ("sort=name", "BAD_REQUEST"),
    ] {
        let refused = server.send(Method::GET, &format!("/api/webhooks?{query}"), None).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!(code)), "{query}");
    }
}

#[tokio::test]
async fn a_workspace_has_at_most_20_endpoints_under_concurrency() {
    let server = Server::start().await;
    let answers = join_all((0..30).map(|_| server.send(Method::POST, "/api/webhooks", Some(body())))).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 20);
    for refused in answers.iter().filter(|answer| answer.status != 201) {
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("PLAN_LIMIT")));
    }
    let first = server.send(Method::GET, "/api/webhooks", None).await.body;
    let path = format!("/api/webhooks/{}", text(&first["webhooks"][0]["id"]));
    assert_eq!(server.send(Method::DELETE, &path, None).await.status, 204);
    create(&server).await;
}

#[tokio::test]
async fn endpoints_need_write_access_and_their_own_workspace() {
    let server = Server::start().await;
    let path = format!("/api/webhooks/{}", text(&create(&server).await["id"]));
    let rotate = format!("{path}/rotate-secret");
    let failures = format!("{path}/failures");
    let test = format!("{path}/test");
    let redeliver = format!("{path}/redeliver");
    let operations = [
        (Method::GET, "/api/webhooks", None),
        (Method::POST, "/api/webhooks", Some(body())),
        (Method::GET, path.as_str(), None),
        (Method::PATCH, path.as_str(), Some(json!({"description": "mine"}))),
        (Method::POST, rotate.as_str(), None),
        (Method::GET, failures.as_str(), None),
        (Method::POST, test.as_str(), None),
        (Method::POST, redeliver.as_str(), Some(json!({"start_date": "2026-01-01"}))),
        (Method::DELETE, path.as_str(), None),
    ];
    let ask_all = async |key: &str, status: u16, code: &str| {
        for (method, path, body) in operations.clone() {
            let refused = server.send_as(key, method.clone(), path, body).await;
            let got = (refused.status.as_u16(), refused.body["code"].as_str());
            assert_eq!(got, (status, Some(code)), "{method} {path}");
        }
    };
    ask_all(&server.create_key(&server.workspace, "read").await, 403, "READ_ONLY_KEY").await;
    let neighbour = server.admin(&["create-account", "--name", "Neighbour", "--plan", "business"]).await;
    let neighbour = server.create_key(&text(&neighbour["workspace_id"]), "read,write").await;
    for (method, path, body) in operations.clone().into_iter().filter(|(_, path, _)| *path != "/api/webhooks")
    {
        let refused = server.send_as(&neighbour, method.clone(), path, body).await;
        assert_eq!(
            (refused.status.as_u16(), &refused.body["code"]),
            (404, &json!("NOT_FOUND")),
            "{method} {path}"
        );
    }
    let seen = server.send_as(&neighbour, Method::GET, "/api/webhooks", None).await.body;
    assert_eq!(seen, json!({"webhooks": [], "next_cursor": null}));

    server.admin(&["set-plan", "--account", &server.account, "--plan", "pro"]).await;
    ask_all(&server.key, 403, "PLAN_REQUIRED").await;
    server.admin(&["set-plan", "--account", &server.account, "--plan", "agency"]).await;
    assert_eq!(server.send(Method::GET, &path, None).await.status, 200, "no request changed it");
}

fn body() -> Value {
    json!({"url": "https://hooks.example.com/in", "events": ["click.created"]})
}

async fn create(server: &Server) -> Value {
    let created = server.send(Method::POST, "/api/webhooks", Some(body())).await;
    assert_eq!(created.status, 201, "{}", created.body);
    created.body
}
