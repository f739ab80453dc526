//! Operators block links and hosts, suspend, export and delete accounts, and reseal secrets.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use reqwest::Method;
use schemas::topic;
use serde_json::{Value, json};
use tests::eventually;
use tests::log::records;

use crate::admin::{run, succeed};
use crate::dashboard::Browser;
use crate::server::{Answer, Server, text};

const PASSWORD: &str = "correct horse battery";

fn code(answer: &Answer) -> (u16, String) {
    (answer.status.as_u16(), text(&answer.body["code"]))
}

async fn link(server: &Server, destination: &str, slug: &str) -> String {
    let body = json!({"name": slug, "destination": destination, "slug": slug});
    text(&server.create_link(body).await["id"])
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

async fn shown(server: &Server, id: &str) -> Value {
    server.send(Method::GET, &format!("/api/links/{id}"), None).await.body
}

/// Returns the last record of a link on topic `links`.
async fn record(server: &Server, id: &str) -> Value {
    server.all_published().await;
    let records = records(&server.engines, topic::LINKS);
    records.into_iter().rfind(|record| record.key == id).unwrap().json()
}

#[tokio::test]
async fn a_blocked_links_slug_stays_reserved() {
    let server = Server::start().await;
    let id = link(&server, "https://a.example/", "spring").await;
    let path = format!("/api/links/{id}");
    let block = async |reason: &str| server.admin(&["block-link", "--id", &id, "--reason", reason]).await;
    assert_eq!(block("Phishing").await, json!({"link_id": id, "is_blocked": true, "changed": true}));
    assert_eq!(block("Phishing").await["changed"], false);
    let blocked = shown(&server, &id).await;
    assert_eq!((&blocked["is_blocked"], &blocked["blocked_reason"]), (&json!(true), &json!("Phishing")));
    assert_eq!(record(&server, &id).await["is_blocked"], true);
    let listed = server.admin(&["list-blocked"]).await;
    assert_eq!(
        (&listed["links"][0]["link_id"], &listed["links"][0]["reason"]),
        (&json!(id), &json!("Phishing"))
    );
    let edit = server.send(Method::PATCH, &path, Some(json!({"name": "b"}))).await;
    assert_eq!(code(&edit), (403, "LINK_BLOCKED".to_owned()));

    assert_eq!(server.admin(&["unblock-link", "--id", &id]).await["is_blocked"], false);
    assert_eq!(record(&server, &id).await.get("is_blocked"), None);
    assert_eq!(server.send(Method::PATCH, &path, Some(json!({"name": "b"}))).await.status, 200);

    block("Phishing").await;
    assert_eq!(server.send(Method::DELETE, &path, None).await.status, 204);
    let again = json!({"name": "c", "destination": "https://b.example", "slug": "spring"});
    let taken = server.send(Method::POST, "/api/links", Some(again)).await;
    assert_eq!(code(&taken), (409, "SLUG_TAKEN".to_owned()), "reserved for 90 days");
    let unknown = run(&server.engines, &[], &["unblock-link", "--id", &id], "").await;
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("there is no link"));
}

#[tokio::test]
async fn a_blocked_host_blocks_links_to_it_and_rejects_new_ones() {
    let server = Server::start().await;
    let evil = link(&server, "https://login.ev%69l.example/", "one").await;
    let other = link(&server, "https://notevil.example/", "two").await;
    let block = async |host: &str| server.admin(&["block-destination", "--host", host]).await;
    let blocked = block("EVIL.example").await;
    assert_eq!(
        blocked,
        json!({"host": "evil.example", "changed": true, "links_blocked": 1, "links_unblocked": 0})
    );
    assert_eq!(block("evil.example").await["changed"], false);
    let is_blocked = async |id: &str| shown(&server, id).await["is_blocked"].clone();
    assert_eq!((is_blocked(&evil).await, is_blocked(&other).await), (json!(true), json!(false)));

    let to = |host: &str| json!({"name": "a", "destination": format!("https://{host}/")});
    let create = server.send(Method::POST, "/api/links", Some(to("a.evil.example"))).await;
    assert_eq!(code(&create), (400, "BAD_REQUEST".to_owned()));
    let bulk = json!({"links": [to("evil.example."), to("fine.example")]});
    let bulk = server.send(Method::POST, "/api/links/bulk", Some(bulk)).await.body;
    assert_eq!((&bulk["results"][0]["status"], &bulk["results"][1]["status"]), (&json!(400), &json!(201)));
    let change = json!({"destination": "https://evil.example"});
    let change = server.send(Method::PATCH, &format!("/api/links/{other}"), Some(change)).await;
    assert_eq!(change.status, 400);

    // A link that was blocked by its id, too, stays blocked.
    server.admin(&["block-link", "--id", &evil, "--reason", "Phishing"]).await;
    let unblocked = server.admin(&["unblock-destination", "--host", "evil.example"]).await;
    assert_eq!(unblocked["links_unblocked"], 1);
    assert_eq!(is_blocked(&evil).await, true);
    server.admin(&["unblock-link", "--id", &evil]).await;
    assert_eq!(is_blocked(&evil).await, false);
    eventually("new links are created", async || {
        match server.send(Method::POST, "/api/links", Some(to("evil.example"))).await.status.as_u16() {
            201 => Ok(()),
            status => Err(status),
        }
    })
    .await;
    let bad = run(&server.engines, &[], &["block-destination", "--host", "https://evil.example/"], "").await;
    assert!(!bad.status.success());
}

#[tokio::test]
async fn a_suspended_account_does_nothing_until_it_is_resumed() {
    let server = Server::start().await;
    let mut owner = Browser::set_up(&server).await;
    let id = link(&server, "https://a.example/", "spring").await;
    let account = text(&server.admin(&["list-accounts"]).await["accounts"][0]["account_id"]);
    let suspend = ["suspend-account", "--account", &account, "--reason", "Unpaid"];
    let suspended = server.admin(&suspend).await;
    assert_eq!(suspended, json!({"account_id": account, "status": "suspended", "changed": true, "links": 1}));
    assert_eq!(server.admin(&suspend).await["changed"], false);
    assert_eq!(record(&server, &id).await["is_blocked"], true);
    assert_eq!(server.admin(&["list-blocked"]).await["accounts"][0]["reason"], "Unpaid");
    let refused = (403, "ACCOUNT_SUSPENDED".to_owned());
    assert_eq!(code(&server.send(Method::GET, "/api/links", None).await), refused);
    assert_eq!(code(&owner.get("/links").await), refused);
    let session = owner.send(Method::GET, "/app/api/session", None).await;
    assert_eq!(code(&session), refused);
    let mut other = Browser::new(&server);
    assert_eq!(code(&other.sign_in("ada@example.com", PASSWORD).await), refused);
    assert_eq!(other.sign_in("ada@example.com", "wrong wrong wrong").await.status, 401, "reveals nothing");

    let resumed = server.admin(&["resume-account", "--account", &account]).await;
    assert_eq!((&resumed["status"], &resumed["links"]), (&json!("active"), &json!(1)));
    assert_eq!(record(&server, &id).await.get("is_blocked"), None);
    assert_eq!(shown(&server, &id).await["is_blocked"], false);
    assert_eq!(owner.get("/links").await.status, 200);
    assert_eq!(owner.sign_in("ada@example.com", PASSWORD).await.status, 200);
}

#[tokio::test]
async fn a_former_slug_is_free_for_its_own_workspace_only() {
    let server = Server::start().await;
    let created = server.admin(&["create-account", "--name", "Other", "--plan", "business"]).await;
    let other = server.create_key(&text(&created["workspace_id"]), "read,write").await;
    let id = link(&server, "https://a.example/", "spring").await;
    let path = format!("/api/links/{id}");
    let body = |slug: &str| json!({"name": "a", "destination": "https://b.example/", "slug": slug});
    let take =
        async |key: &str, slug: &str| server.send_as(key, Method::POST, "/api/links", Some(body(slug))).await;
    server.send(Method::PATCH, &path, Some(json!({"slug": "summer"}))).await;
    assert_eq!(code(&take(&other, "spring").await), (409, "SLUG_TAKEN".to_owned()), "renamed away");
    let bulk = json!({"links": [body("spring")]});
    let bulk = server.send_as(&other, Method::POST, "/api/links/bulk", Some(bulk)).await.body;
    assert_eq!(bulk["results"][0]["status"], 409);
    let own = text(&take(&other, "autumn").await.body["id"]);
    let change = Some(json!({"slug": "spring"}));
    let change = server.send_as(&other, Method::PATCH, &format!("/api/links/{own}"), change).await;
    assert_eq!(change.status, 409);

    assert_eq!(server.send(Method::DELETE, &path, None).await.status, 204);
    assert_eq!(take(&other, "summer").await.status, 409, "deleted");
    assert_eq!(take(&server.key, "summer").await.status, 201, "its own workspace");
    assert_eq!(take(&server.key, "spring").await.status, 201);
    let holds = "UPDATE former_slugs SET until = now() - interval '1 second'";
    sqlx::query(holds).execute(&mut server.engines.postgres().await).await.unwrap();
    let third = link(&server, "https://a.example/", "winter").await;
    assert_eq!(server.send(Method::DELETE, &format!("/api/links/{third}"), None).await.status, 204);
    sqlx::query(holds).execute(&mut server.engines.postgres().await).await.unwrap();
    assert_eq!(take(&other, "winter").await.status, 201, "after 90 days");
    assert!(server.admin(&["sweep"]).await["removed"]["former_slugs"].as_u64().unwrap() >= 2);
}

#[tokio::test]
async fn an_account_is_exported_and_deleted_completely() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let other = owner.of_other_account(&server, "eve@example.com", "business").await;
    let account = text(&server.admin(&["list-accounts"]).await["accounts"][1]["account_id"]);
    let workspace = other.workspace.clone();
    let key = server.create_key(&workspace, "read,write").await;
    server.admin(&["create-edge-token", "--workspace", &workspace]).await;
    let body =
        json!({"name": "Secret plan", "destination": "https://eve.example/", "slug": "eves", "tags": ["t"]});
    let request = server.request(Method::POST, "/api/links").bearer_auth(&key).json(&body);
    let link = crate::server::answer(request.header("idempotency-key", "k")).await.body;
    let hook = json!({"url": "https://hooks.eve.example/", "events": ["click.created"]});
    let hook = server.send_as(&key, Method::POST, "/api/webhooks", Some(hook)).await;
    assert_eq!(hook.status, 201, "{}", hook.body);
    let file = "destination\nhttps://eve.example/imported\n";
    assert_eq!(crate::dashboard_import::import(&other, false, file).await.body["created"], 1);
    let id: schemas::id::LinkId = text(&link["id"]).parse().unwrap();
    let click = server.click_ids().mint(id, chrono::Utc::now(), [7; 10]);
    let conversion = json!({"click_id": click, "user_email": "buyer@example.com"});
    let conversion = server.send_as(&key, Method::POST, "/api/conversions", Some(conversion)).await;
    assert_eq!(conversion.status, 201, "{}", conversion.body);

    let folder = std::env::temp_dir().join(format!("hopline-export-{}", uuid::Uuid::now_v7()));
    let to = folder.display().to_string();
    let exported = server.admin(&["export-account", "--account", &account, "--to", &to]).await;
    let rows = json!({
        "members": 2, "workspaces": 1, "keys": 1, "links": 2, "conversions": 1, "webhooks": 1, "clicks": 0
    });
    assert_eq!(exported["rows"], rows);
    let links = std::fs::read_to_string(folder.join("links.jsonl")).unwrap();
    assert!(links.lines().any(|line| line.contains("Secret plan")), "{links}");
    assert_eq!(mode(&folder), 0o700);
    for file in std::fs::read_dir(&folder).unwrap() {
        let file = file.unwrap().path();
        assert_eq!(mode(&file), 0o600, "{}", file.display());
        let text = std::fs::read_to_string(file).unwrap();
        assert!(!["sealed", "sha256", "password"].iter().any(|secret| text.contains(secret)), "{text}");
    }
    std::fs::remove_dir_all(&folder).unwrap();

    server.admin(&["block-link", "--id", &text(&link["id"]), "--reason", "Phishing by Mallory"]).await;
    let wrong =
        run(&server.engines, &[], &["delete-account", "--account", &account, "--confirm", "x"], "").await;
    assert!(!wrong.status.success());
    let deleted = server.admin(&["delete-account", "--account", &account, "--confirm", "Other"]).await;
    assert_eq!(
        (&deleted["deleted"]["links"], &deleted["deleted"]["users"]),
        (&json!(2), &json!(2)),
        "{deleted}"
    );
    assert_eq!(server.send_as(&key, Method::GET, "/api/links", None).await.status, 401);
    assert_eq!(record(&server, &id.to_string()).await["id"], id.to_string());
    server.all_published().await;

    // Search every table of Postgres for the account's ids and its members' text. Only the ids of deleted links and the
    // audit trail stay.
    let account_uuid = account.parse::<schemas::id::AccountId>().unwrap().uuid().to_string();
    let workspace_uuid = workspace.parse::<schemas::id::WorkspaceId>().unwrap().uuid().to_string();
    let mut connection = server.engines.postgres().await;
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT table_name::text FROM information_schema.tables
         WHERE table_schema = current_schema() AND table_type = 'BASE TABLE'",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert!(tables.len() > 20, "{tables:?}");
    for table in tables {
        let words: &[&str] = match table.as_str() {
            "deleted_links" => &["eve", "Secret"],
            // The other account's owner invited this member.
            "audit_trail" => &["eve.example", "Secret plan", "buyer@", "Mallory"],
            _ => &[&account_uuid, &workspace_uuid, "eve@", "eve.example", "Secret plan", "buyer@", "Mallory"],
        };
        for word in words {
            let sql = format!("SELECT count(*) FROM {table} t WHERE position($1 in t::text) > 0");
            let found: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                .bind(word)
                .fetch_one(&mut connection)
                .await
                .unwrap();
            assert_eq!(found, 0, "{word} is in {table}");
        }
    }
    // The email address is free again, and the slug stays reserved.
    assert_eq!(
        owner.with_member(&server, "eve@example.com", "editor").await.0.get("/links").await.status,
        200
    );
    let again = json!({"name": "a", "destination": "https://b.example/", "slug": "eves"});
    assert_eq!(server.send(Method::POST, "/api/links", Some(again)).await.status, 409);
    let trail = server.admin(&["audit-trail", "--account", &account]).await;
    let entries = trail["entries"].as_array().unwrap();
    assert!(entries.iter().any(|entry| entry["action"] == "delete-account"), "{trail}");
}

#[tokio::test]
async fn personal_fields_of_conversions_expire_with_their_click() {
    let server = Server::start().await;
    let id: schemas::id::LinkId = link(&server, "https://a.example/", "spring").await.parse().unwrap();
    let click = server.click_ids().mint(id, chrono::Utc::now(), [7; 10]);
    let body = json!({
        "click_id": click, "external_user_id": "buyer-77", "user_name": "Ada", "user_email": "ada@example.com"
    });
    let convert = async || server.send(Method::POST, "/api/conversions", Some(body.clone())).await;
    assert_eq!(convert().await.status, 201);
    let removed =
        async || server.admin(&["sweep"]).await["removed"]["conversions_without_personal_fields"].clone();
    assert_eq!(removed().await, 0);
    let age = async |days: i32| {
        sqlx::query(
            "UPDATE conversions SET clicked_at = date_trunc('day', now(), 'UTC') \
            - make_interval(days => $1, secs => 1)",
        )
        .bind(days)
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();
    };
    // The plan keeps clicks for 1,095 days.
    age(1_094).await;
    assert_eq!(removed().await, 0);
    age(1_095).await;
    assert_eq!(removed().await, 1);
    let (left, digests): (String, i64) =
        sqlx::query_as("SELECT c::text, count(*) OVER () FROM conversions c WHERE length(click_sha256) = 32")
            .fetch_one(&mut server.engines.postgres().await)
            .await
            .unwrap();
    assert!(
        digests == 1 && !["Ada", "ada@", "buyer-77", &click].iter().any(|word| left.contains(word)),
        "{left}"
    );
    assert_eq!(code(&convert().await), (409, "CONVERSION_EXISTS".to_owned()));
}

#[tokio::test]
async fn reseal_moves_secrets_to_the_current_key() {
    let server = Server::start().await;
    let hook = json!({"url": "https://hooks.example/", "events": ["click.created"]});
    let hook = server.send(Method::POST, "/api/webhooks", Some(hook)).await.body;
    let path = format!("/api/webhooks/{}/rotate-secret", text(&hook["id"]));
    server.send(Method::POST, &path, None).await;
    let hex = |id: u8, byte: u8| format!("{id}:{}", format!("{byte:02x}").repeat(32));
    let both = format!("{},{}", hex(9, 0x33), hex(1, 0x22));
    let keys = [("HOPLINE_SECRET_KEYS", both.as_str())];
    assert_eq!(
        succeed(&server.engines, &keys, &["reseal"], "").await,
        json!({"resealed": {"endpoints": 1, "members": 0}})
    );
    assert_eq!(
        succeed(&server.engines, &keys, &["reseal"], "").await,
        json!({"resealed": {"endpoints": 0, "members": 0}})
    );
    let ids: (i16, i16) =
        sqlx::query_as("SELECT secret_key_id, previous_secret_key_id FROM webhook_endpoints")
            .fetch_one(&mut server.engines.postgres().await)
            .await
            .unwrap();
    assert_eq!(ids, (9, 9));
}
