//! The operator's commands, run as a program.

use std::collections::HashMap;
use std::process::{Output, Stdio};

use devstack::{Kind, Options};
use reqwest::Method;
use schemas::grants::User;
use serde_json::{Value, json};
use tests::engines::{Isolated, isolated_on};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::dashboard::Browser;
use crate::server::{Server, text};

/// Runs `api admin …` on these engines, with further variables and with `input` on standard input.
pub(crate) async fn run(
    engines: &Isolated,
    variables: &[(&str, &str)],
    arguments: &[&str],
    input: &str,
) -> Output {
    let hex = |byte: u8| format!("1:{}", format!("{byte:02x}").repeat(32));
    let mut child = Command::new(env!("CARGO_BIN_EXE_api"))
        .env_clear()
        .envs(engines.variables_of(User::Api))
        .envs([
            ("HOPLINE_PUBLIC_URL", "https://go.example"),
            ("HOPLINE_CLICK_ID_KEYS", &hex(0x11)),
            ("HOPLINE_SECRET_KEYS", &hex(0x22)),
            ("USER", "grace"),
        ])
        .envs(variables.iter().copied())
        .arg("admin")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads no input may have exited already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes()).await;
    child.wait_with_output().await.unwrap()
}

/// Runs a command that must succeed and returns its JSON.
pub(crate) async fn succeed(
    engines: &Isolated,
    variables: &[(&str, &str)],
    arguments: &[&str],
    input: &str,
) -> Value {
    let output = run(engines, variables, &[&["--json"], arguments].concat(), input).await;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const PASSWORD: &str = "correct horse battery";

#[tokio::test]
async fn operators_find_accounts_workspaces_keys_links_and_changes() {
    let server = Server::start().await;
    let run = async |arguments: &[&str]| succeed(&server.engines, &[], arguments, "").await;
    let ids = |list: &Value, id: &str| -> Vec<String> {
        list.as_array().unwrap().iter().map(|entry| text(&entry[id])).collect()
    };
    let created = run(&["create-account", "--name", "Corner shop", "--plan", "business"]).await;
    let (account, workspace) = (text(&created["account_id"]), text(&created["workspace_id"]));
    let key = run(&["create-key", "--workspace", &workspace, "--scope", "read"]).await;
    run(&["revoke-key", "--key-id", &text(&key["key_id"])]).await;

    let accounts = run(&["list-accounts"]).await;
    let found = ids(&accounts["accounts"], "account_id");
    assert!(found.len() == 2 && found[1] == account, "{accounts}");
    assert_eq!(accounts["accounts"][1]["plan"], "business");
    let all = run(&["list-workspaces"]).await;
    assert_eq!(ids(&all["workspaces"], "workspace_id"), [server.workspace.clone(), workspace.clone()]);
    let one = run(&["list-workspaces", "--account", &account]).await;
    assert_eq!(ids(&one["workspaces"], "workspace_id"), [workspace.as_str()]);
    let keys = run(&["list-keys", "--workspace", &workspace]).await;
    assert_eq!(ids(&keys["keys"], "key_id"), [text(&key["key_id"])]);
    assert!(keys["keys"][0]["revoked_at"].is_string(), "{keys}");
    assert!(!keys.to_string().contains(&text(&key["key"])), "no key is shown");
    assert_eq!(run(&["list-keys"]).await["keys"].as_array().unwrap().len(), 2);

    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let slug = text(&link["slug"]);
    let found = run(&["find-link", "--slug", &slug]).await;
    assert_eq!(
        (&found["link_id"], &found["workspace_id"], &found["destination"]),
        (&link["id"], &json!(server.workspace), &json!("https://example.com"))
    );
    let missing = super::admin::run(&server.engines, &[], &["find-link", "--slug", "none"], "").await;
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no link has the slug none"));

    let trail = run(&["audit-trail", "--limit", "2"]).await;
    let actions: Vec<String> = ids(&trail["entries"], "action");
    assert_eq!(actions, ["revoke-key", "create-key"]);
    let later = run(&["audit-trail", "--since", "2100-01-01T00:00:00Z"]).await;
    assert_eq!(later, json!({"entries": []}));
}

#[tokio::test]
async fn every_command_is_audited_without_secrets() {
    let engines = tests::engines::isolated().await;
    let run = async |arguments: &[&str], input: &str| succeed(&engines, &[], arguments, input).await;
    let created = run(&["create-account", "--name", "Corner shop", "--plan", "business"], "").await;
    let account = text(&created["account_id"]);
    let workspace = text(
        &run(
            &["create-workspace", "--account", &account, "--name", "Marketing", "--kind", "organization"],
            "",
        )
        .await["workspace_id"],
    );
    let user = run(
        &["create-user", "--account", &account, "--email", "Ada@example.com", "--password-stdin"],
        &format!("{PASSWORD}\n"),
    )
    .await;
    let key = run(&["create-key", "--workspace", &workspace, "--scope", "read,write"], "").await;
    run(&["revoke-key", "--key-id", &text(&key["key_id"])], "").await;
    let plan = run(&["set-plan", "--account", &account, "--plan", "agency"], "").await;
    assert_eq!(
        plan,
        json!({
            "account_id": account, "plan": "agency", "former_plan": "business", "locked": 0, "unlocked": 0,
        })
    );
    let token = run(&["create-edge-token", "--workspace", &workspace], "").await;
    run(&["revoke-edge-token", "--edge-token-id", &text(&token["edge_token_id"])], "").await;

    let rows: Vec<(String, String, String, Value)> =
        sqlx::query_as("SELECT actor, action, subject, details FROM audit_trail ORDER BY id")
            .fetch_all(&mut engines.postgres().await)
            .await
            .unwrap();
    let trail: Vec<(&str, &str)> =
        rows.iter().map(|(_, action, subject, _)| (action.as_str(), subject.as_str())).collect();
    let (key_id, token_id) = (text(&key["key_id"]), text(&token["edge_token_id"]));
    assert_eq!(
        trail,
        [
            ("create-account", account.as_str()),
            ("create-workspace", &workspace),
            ("create-user", &text(&user["user_id"])),
            ("create-key", &key_id),
            ("revoke-key", &key_id),
            ("set-plan", &account),
            ("create-edge-token", &token_id),
            ("revoke-edge-token", &token_id),
        ]
    );
    assert!(rows.iter().all(|(actor, ..)| actor == "operator grace"));
    let all = format!("{rows:?}");
    for secret in [&text(&key["key"]), &text(&token["edge_token"]), PASSWORD, "argon2"] {
        assert!(!all.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn postgres_logs_no_email_address() {
    let options = Options::throw_away("postgres").unwrap();
    let log = options.log.clone();
    let postgres = Kind::Postgres.start(options).await.unwrap();
    let [kafka, clickhouse] = ["KAFKA_BROKERS", "CLICKHOUSE_URL"].map(|name| std::env::var(name).unwrap());
    let server = Server::start_on(isolated_on(&kafka, &clickhouse, postgres.url()).await).await;
    let create =
        ["create-user", "--account", &server.account, "--email", "Ada@example.com", "--password-stdin"];
    for succeeds in [true, false] {
        let created = run(&server.engines, &[], &create, PASSWORD).await;
        assert_eq!(created.status.success(), succeeds, "{}", String::from_utf8_lossy(&created.stderr));
    }
    let logged = std::fs::read_to_string(log).unwrap();
    assert!(logged.contains("ready to accept connections"), "{logged}");
    assert!(!logged.to_lowercase().contains("ada@example.com"), "{logged}");
}

#[tokio::test]
async fn a_members_password_is_hashed_and_an_email_is_unique() {
    let server = Server::start().await;
    let create = async |account: &str, email: &str, input: &str| {
        let arguments = ["create-user", "--account", account, "--email", email, "--password-stdin"];
        run(&server.engines, &[], &arguments, input).await
    };
    assert!(create(&server.account, "ada@example.com", PASSWORD).await.status.success());
    let (role, hash): (String, String) =
        sqlx::query_as("SELECT role, password_hash FROM users WHERE email = 'ada@example.com'")
            .fetch_one(&mut server.engines.postgres().await)
            .await
            .unwrap();
    assert_eq!(role, "editor");
    assert!(hash.starts_with("$argon2id$") && !hash.contains(PASSWORD));

    let unknown = server.account.replace("acc_0", "acc_1");
    for (account, email, input, code, fault) in [
        (&server.account, "ADA@Example.com", PASSWORD, 1, "--email: another member has the address"),
        (&server.account, "ada", PASSWORD, 64, "--email: must have an @"),
        (
            &server.account,
            "eve@example.com",
            "short",
            64,
            "--password-stdin: the password must have at least 12",
        ),
        (&server.account, "eve@example.com", "", 64, "--password-stdin: the password must have at least 12"),
        (&unknown, "eve@example.com", PASSWORD, 1, "--account: there is no account acc_1"),
    ] {
        let refused = create(account, email, input).await;
        let stderr = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(fault), "{fault:?} is not in {stderr}");
        assert!(!stderr.contains(PASSWORD));
    }
    let users: i64 = sqlx::query_scalar("SELECT count(*) FROM users")
        .fetch_one(&mut server.engines.postgres().await)
        .await
        .unwrap();
    assert_eq!(users, 2, "the owner and Ada");
}

#[tokio::test]
async fn a_wrong_command_names_the_argument_at_fault() {
    let engines = tests::engines::isolated().await;
    let id = |prefix: &str| format!("{prefix}_00000000000000000000000001");
    let (account, workspace) = (id("acc"), id("wsp"));
    for (arguments, code, fault) in [
        (&["create-account", "--name", "x", "--plan", "gold"][..], 64, "--plan"),
        (&["create-account", "--name", " ", "--plan", "pro"], 64, "--name: must have 1 to 200 characters"),
        (&["create-workspace", "--account", "acc_1", "--name", "x", "--kind", "personal"], 64, "--account"),
        (
            &["create-workspace", "--account", &account, "--name", "x", "--kind", "personal"],
            1,
            "--account: there is no account acc_",
        ),
        (&["create-user", "--account", &account, "--email", "a@b.example"], 64, "--password-stdin"),
        (&["create-key", "--workspace", &account, "--scope", "read"], 64, "--workspace"),
        (
            &["create-key", "--workspace", &workspace, "--scope", "read"],
            1,
            "--workspace: there is no workspace wsp_",
        ),
        (&["create-key", "--workspace", &workspace, "--scope", "write"], 64, "--scope"),
        (
            &["create-key", "--workspace", &workspace, "--scope", "read", "--expires-at", "soon"],
            64,
            "--expires-at",
        ),
        (&["revoke-key", "--key-id", &id("key")], 1, "--key-id: there is no key key_"),
        (&["set-plan", "--account", &account, "--plan", "Pro"], 64, "--plan"),
        (&["set-plan", "--account", &account, "--plan", "pro"], 1, "--account: there is no account acc_"),
        (&["create-edge-token", "--workspace", &workspace], 1, "--workspace: there is no workspace wsp_"),
        (
            &["revoke-edge-token", "--edge-token-id", &id("edg")],
            1,
            "--edge-token-id: there is no edge token edg_",
        ),
        (&["enable-endpoint", "--id", &id("whe")], 1, "--id: there is no webhook endpoint whe_"),
        (&["enable-endpoint", "--id", "whe_"], 64, "--id"),
        (&["show-account", "--account", &account], 1, "--account: there is no account acc_"),
        (&["no-such-command"], 64, "no-such-command"),
    ] {
        let refused = run(&engines, &[], arguments, "").await;
        let stderr = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(fault), "{arguments:?}: {fault:?} is not in {stderr}");
        assert!(refused.stdout.is_empty(), "{arguments:?}");
    }
    let trail: i64 = sqlx::query_scalar("SELECT count(*) FROM audit_trail")
        .fetch_one(&mut engines.postgres().await)
        .await
        .unwrap();
    assert_eq!(trail, 0, "rejected commands leave no entry");
}

#[tokio::test]
async fn every_command_shows_an_example_in_its_help() {
    let engines = tests::engines::isolated().await;
    for command in [
        "create-account",
        "create-workspace",
        "create-user",
        "create-key",
        "revoke-key",
        "set-plan",
        "create-edge-token",
        "revoke-edge-token",
        "enable-endpoint",
        "show-account",
        "reset-password",
        "setup-token",
    ] {
        let help = run(&engines, &[], &[command, "--help"], "").await;
        assert!(help.status.success());
        let help = String::from_utf8(help.stdout).unwrap();
        assert!(help.contains(&format!("Example: api admin {command}")), "{help}");
        assert!(help.contains("--json"), "{help}");
    }
}

#[tokio::test]
async fn an_enabled_endpoint_receives_new_events() {
    let server = Server::start().await;
    let body = json!({"url": "https://hooks.example.com/in", "events": ["click.created"]});
    let endpoint = text(&server.send(Method::POST, "/api/webhooks", Some(body)).await.body["id"]);
    let enable = async || server.admin(&["enable-endpoint", "--id", &endpoint]).await;
    type State = (String, Option<String>, i32, i64, bool, i64);
    let state = async || -> State {
        sqlx::query_as(
            "SELECT status, disabled_reason, consecutive_exhausted, epoch, enabled_from > created_at, version
             FROM webhook_endpoints, endpoints_version",
        )
        .fetch_one(&mut server.engines.postgres().await)
        .await
        .unwrap()
    };
    let before = state().await;
    assert_eq!(enable().await, json!({"endpoint_id": endpoint, "status": "enabled", "changed": false}));
    assert_eq!(state().await, before, "an enabled endpoint keeps its state");

    sqlx::query(
        "UPDATE webhook_endpoints
         SET status = 'disabled', disabled_reason = 'dead', consecutive_exhausted = 15",
    )
    .execute(&mut server.engines.postgres().await)
    .await
    .unwrap();
    assert_eq!(enable().await["changed"], true);
    let (.., epoch, _, version) = before;
    assert_eq!(state().await, ("enabled".to_owned(), None, 0, epoch + 1, true, version + 1));
}

#[tokio::test]
async fn an_account_is_shown_with_members_workspaces_and_usage() {
    let server = Server::start().await;
    server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let arguments =
        ["create-user", "--account", &server.account, "--email", "ada@example.com", "--password-stdin"];
    succeed(&server.engines, &[], &arguments, PASSWORD).await;
    let shown = server.admin(&["show-account", "--account", &server.account]).await;
    assert_eq!((&shown["account_id"], &shown["plan"]), (&json!(server.account), &json!("business")));
    assert_eq!(shown["limits"], json!({"links": null, "requests_per_minute": null, "retention_days": 1_095}));
    assert_eq!(shown["used"], json!({"links": 1}));
    let members: Vec<(&Value, &Value)> = shown["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| (&member["role"], &member["email"]))
        .collect();
    assert_eq!(members, [(&json!("owner"), &Value::Null), (&json!("editor"), &json!("ada@example.com"))]);
    assert_eq!(shown["workspaces"][0]["workspace_id"], json!(server.workspace));
    assert_eq!(shown["workspaces"][0]["links"], 1);

    let plain = run(&server.engines, &[], &["show-account", "--account", &server.account], "").await;
    let plain = String::from_utf8(plain.stdout).unwrap();
    assert!(plain.contains(&format!("account_id: {}\n", server.account)), "{plain}");
    assert!(plain.contains("email: ada@example.com"), "{plain}");
}

#[tokio::test]
async fn a_password_reset_ends_all_sessions() {
    let server = Server::start().await;
    let mut browser = Browser::set_up(&server).await;
    let arguments = ["reset-password", "--email", "ADA@example.com", "--password-stdin"];
    succeed(&server.engines, &[], &arguments, "another good one\n").await;
    assert_eq!(browser.send(Method::GET, "/app/api/session", None).await.status, 401);
    assert_eq!(browser.sign_in("ada@example.com", crate::dashboard::PASSWORD).await.status, 401);
    assert_eq!(browser.sign_in("ada@example.com", "another good one").await.status, 200);
    let unknown = ["reset-password", "--email", "eve@example.com", "--password-stdin"];
    assert!(!run(&server.engines, &[], &unknown, "another good one\n").await.status.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publish_links_runs_beside_changes() {
    // More links than `publish-links` publishes in one transaction.
    const LINKS: usize = 600;
    let server = Server::start().await;
    let admin = async |arguments: &[&str]| succeed(&server.engines, &[], arguments, "").await;
    let tokens = [admin(&["create-edge-token"]).await, admin(&["create-edge-token"]).await];
    admin(&["revoke-edge-token", "--edge-token-id", &text(&tokens[1]["edge_token_id"])]).await;
    let mut links = Vec::new();
    for _ in 0..LINKS / 100 {
        let body = json!({ "links": vec![json!({ "name": "a", "destination": "https://a.example/" }); 100] });
        let made = server.send(Method::POST, "/api/links/bulk", Some(body)).await;
        links.extend(made.body["results"].as_array().unwrap().iter().map(|made| text(&made["link"]["id"])));
    }
    for id in &links[..10] {
        assert_eq!(server.send(Method::DELETE, &format!("/api/links/{id}"), None).await.status, 204);
    }
    let (before, count) = latest(&server).await;
    assert_eq!((before.len(), count), (LINKS + 2, LINKS + 2 + 1 + 10));

    let changes = async {
        for (number, id) in links[10..60].iter().enumerate() {
            let body = json!({ "name": format!("changed {number}") });
            let path = format!("/api/links/{id}");
            assert_eq!(server.send(Method::PATCH, &path, Some(body)).await.status, 200);
        }
    };
    let (published, ()) = tokio::join!(admin(&["publish-links"]), changes);
    assert_eq!(
        published,
        json!({ "published": { "edge_tokens": 2, "links": LINKS - 10, "deleted_links": 10 } })
    );
    let (after, all) = latest(&server).await;
    assert_eq!(all, count + LINKS + 2 + 50);
    for (key, record) in &after {
        let mut expected = before[key].clone();
        match links.iter().position(|id| id == key) {
            // The revision of a deleted link is not kept, so its record has the highest one.
            Some(0..10) => expected["revision"] = json!(i64::MAX),
            // Compaction keeps the last record, which must be the change.
            Some(10..60) => expected["revision"] = json!(2),
            _ => {}
        }
        assert_eq!(record, &expected, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restore_published_links_replace_later_changes() {
    let server = Server::start().await;
    let admin = async |arguments: &[&str]| succeed(&server.engines, &[], arguments, "").await;
    let body = json!({ "name": "a", "destination": "https://a.example/" });
    let id = text(&server.send(Method::POST, "/api/links", Some(body)).await.body["id"]);
    let patch = async |destination: &str| {
        let body = json!({ "destination": destination });
        let changed = server.send(Method::PATCH, &format!("/api/links/{id}"), Some(body)).await;
        assert_eq!(changed.status, 200);
    };
    // Postgres is restored without these three changes.
    for lost in ["https://b.example/", "https://c.example/", "https://d.example/"] {
        patch(lost).await;
    }
    server.all_published().await;
    let restored = "UPDATE links SET revision = 1, destination = 'https://a.example/'";
    sqlx::query(restored).execute(&mut server.engines.postgres().await).await.unwrap();

    admin(&["publish-links", "--restored"]).await;
    let (after, _) = latest(&server).await;
    assert_eq!(after[&id]["destination"], "https://a.example/");
    assert!(after[&id]["revision"].as_u64().unwrap() > 4, "{after:?}");
    patch("https://e.example/").await;
    let (changed, _) = latest(&server).await;
    assert!(changed[&id]["revision"].as_u64() > after[&id]["revision"].as_u64());
}

/// Returns the last record of each key of topic `links`, and the number of records.
async fn latest(server: &Server) -> (HashMap<String, Value>, usize) {
    server.all_published().await;
    let records = tests::log::records(&server.engines, schemas::topic::LINKS);
    let latest = records.iter().map(|record| (record.key.clone(), record.json())).collect();
    (latest, records.len())
}
