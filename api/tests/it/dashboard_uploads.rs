//! Uploads of files to import: repeated, interrupted and concurrent ones, and the order of imports.

use futures_util::future::join_all;
use futures_util::stream;
use reqwest::{Body, Method};
use serde_json::json;
use sqlx::Connection as _;

use crate::dashboard::Browser;
use crate::dashboard_import::{count, done, import, numbers, send, slow_down_imports};
use crate::server::{Answer, Server, answer, config, text};

fn file(rows: usize, slug: &str) -> String {
    let rows = (0..rows).map(|row| format!("https://example.com/{row},{slug}-{row}\n"));
    "destination,slug\n".to_owned() + &rows.collect::<String>()
}

async fn send_named(browser: &Browser, key: &str, query: &str, file: impl Into<Body>) -> Answer {
    let path = browser.path(&format!("/links/import{query}"));
    let request = browser.request(Method::POST, &path).header("content-type", "text/csv");
    answer(request.header("idempotency-key", key).body(file)).await
}

async fn imports(server: &Server) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM link_imports")
        .fetch_one(&mut server.engines.postgres().await)
        .await
        .unwrap()
}

/// Creates another workspace of the account.
async fn second_workspace(owner: &Browser) -> Browser {
    let body = json!({"name": "Second", "kind": "personal"});
    let made = owner.send(Method::POST, "/app/api/workspaces", Some(body)).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let mut second = owner.clone();
    second.workspace = text(&made.body["id"]);
    second
}

#[tokio::test]
async fn a_file_sent_twice_under_a_key_is_imported_once() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    // Without slugs, a row that is imported twice creates two links.
    let rows = "destination\n".to_owned() + &"https://example.com\n".repeat(30);
    let many = join_all((0..8).map(|_| send_named(&owner, "k", "", rows.clone()))).await;
    for sent in &many {
        assert_eq!(
            (sent.status.as_u16(), &sent.body["import_id"]),
            (200, &many[0].body["import_id"]),
            "{}",
            sent.body
        );
    }
    let first = done(&owner, send_named(&owner, "k", "", rows.clone()).await).await.body;
    assert_eq!((numbers(&first), &first["import_id"]), ([30, 30, 0], &many[0].body["import_id"]));
    assert_eq!(count(&server).await, 30);

    for (query, rows) in [("", file(1, "other")), ("?dry_run=true", rows.clone())] {
        let refused = send_named(&owner, "k", query, rows).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (409, &json!("IDEMPOTENCY_CONFLICT")));
    }
    let link = owner.request(Method::POST, &owner.path("/links")).header("idempotency-key", "k");
    let refused = answer(link.json(&json!({"name": "a", "destination": "https://example.com"}))).await;
    assert_eq!(refused.status, 409, "a key belongs to one operation");
    assert_eq!(send_named(&owner, "a b", "", rows.clone()).await.status, 400);
    tests::eventually("the repeated uploads are removed", async || match imports(&server).await {
        1 => Ok(()),
        more => Err(more),
    })
    .await;
    let second = second_workspace(&owner).await;
    done(&second, send_named(&second, "k", "", rows.clone()).await).await;
    assert_eq!(count(&server).await, 60, "each workspace has its own keys");
    sqlx::query("UPDATE idempotency_keys SET created_at = now() - interval '24 hours'")
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();
    done(&owner, send_named(&owner, "k", "", rows).await).await;
    assert_eq!(count(&server).await, 90, "a key expires after a day");
}

#[tokio::test]
async fn an_interrupted_upload_leaves_nothing() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    // Large enough that some pieces are already stored.
    let whole = file(100_000, "row");
    let (half, _) = whole.split_at(whole.len() / 2);
    // More often than the limit of imports at a time.
    for _ in 0..11 {
        let chunks = [Ok(half.to_owned()), Err(std::io::Error::other("the browser has left"))];
        let path = owner.path("/links/import");
        let request = owner.request(Method::POST, &path).header("content-type", "text/csv");
        let request = request.header("idempotency-key", "k").body(Body::wrap_stream(stream::iter(chunks)));
        assert!(request.send().await.is_err());
        tests::eventually("the interrupted upload is removed", async || match imports(&server).await {
            0 => Ok(()),
            some => Err(some),
        })
        .await;
    }
    let report = done(&owner, send_named(&owner, "k", "", file(3, "row")).await).await.body;
    assert_eq!(numbers(&report), [3, 3, 0]);
    assert_eq!(count(&server).await, 3);
}

#[tokio::test]
async fn an_account_has_at_most_10_imports_under_concurrency() {
    let server = Server::start().await;
    let instance = Server::serve(server.engines.clone(), config(&server.engines)).await;
    let owner = Browser::set_up(&server).await;
    let other = owner.of_other_account(&server, "eve@example.com", "business").await;
    let second = second_workspace(&owner).await;
    // No link can be created, so no import finishes.
    let mut postgres = server.engines.postgres().await;
    let mut lock = postgres.begin().await.unwrap();
    sqlx::query("LOCK TABLE links IN EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
    let sent = (0..20).map(|number| {
        let mut browser = if number % 2 == 0 { owner.clone() } else { second.clone() };
        if number % 3 == 0 {
            browser.at(&instance);
        }
        async move { send(&browser, "", file(1, &format!("file-{number}"))).await }
    });
    let sent = join_all(sent).await;
    let accepted = sent.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(accepted, 10, "{:?}", sent.iter().map(|answer| answer.status).collect::<Vec<_>>());
    for refused in sent.iter().filter(|answer| answer.status != 200) {
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (429, &json!("RATE_LIMITED")));
        assert_eq!(refused.headers["retry-after"], "30");
    }
    assert_eq!(send(&other, "", file(1, "theirs")).await.status, 200, "another account has its own limit");
    lock.rollback().await.unwrap();
    tests::eventually("all accepted imports are done", async || match count(&server).await {
        11 => Ok(()),
        links => Err(links),
    })
    .await;
    let next = import(&second, false, file(1, "next")).await;
    assert_eq!(numbers(&next.body), [1, 1, 0]);
}

#[tokio::test]
async fn an_account_has_at_most_100_workspaces_under_concurrency() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let account: schemas::id::AccountId = server.account.parse().unwrap();
    sqlx::query(
        "INSERT INTO workspaces (id, account_id, name, kind)
         SELECT gen_random_uuid(), $1, 'w', 'personal' FROM generate_series(1, 94)",
    )
    .bind(account.uuid())
    .execute(&mut server.engines.postgres().await)
    .await
    .unwrap();
    let instance = Server::serve(server.engines.clone(), config(&server.engines)).await;
    let made = join_all((0..20).map(|number| {
        let mut browser = owner.clone();
        if number % 2 == 0 {
            browser.at(&instance);
        }
        async move {
            let body = json!({"name": format!("new {number}"), "kind": "personal"});
            browser.send(Method::POST, "/app/api/workspaces", Some(body)).await
        }
    }));
    let made = made.await;
    assert_eq!(made.iter().filter(|answer| answer.status == 201).count(), 5);
    for refused in made.iter().filter(|answer| answer.status != 201) {
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("PLAN_LIMIT")));
    }
    let listed = owner.send(Method::GET, "/app/api/workspaces", None).await.body;
    assert_eq!(listed["workspaces"].as_array().unwrap().len(), 100);
    let other = owner.of_other_account(&server, "eve@example.com", "free").await;
    second_workspace(&other).await;
}

#[tokio::test]
async fn a_small_import_does_not_wait_for_large_ones() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    slow_down_imports(&server.engines).await;
    let mut large = Vec::new();
    for name in ["a", "b"] {
        large.push(send(&owner, "", file(8_000, name)).await);
    }
    for dry_run in [true, false] {
        let small = import(&owner, dry_run, file(10, "small")).await.body;
        assert_eq!(numbers(&small), [10, 10, 0]);
        for sent in &large {
            let path = format!("/links/import/{}", text(&sent.body["import_id"]));
            let report = owner.get(&path).await.body;
            assert_eq!(report["done"], false, "{report}");
        }
    }
    for sent in large {
        assert_eq!(numbers(&done(&owner, sent).await.body), [8_000, 8_000, 0]);
    }
    assert_eq!(count(&server).await, 16_010);
}

#[tokio::test]
async fn a_failing_import_delays_no_other_and_resumes() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let mut postgres = server.engines.postgres().await;
    for statement in [
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'cannot'; END $$",
        "CREATE TRIGGER fail BEFORE INSERT ON links FOR EACH ROW WHEN (NEW.slug = 'row-1200') EXECUTE FUNCTION fail()",
    ] {
        sqlx::query(statement).execute(&mut postgres).await.unwrap();
    }
    let failing = send(&owner, "", file(2_000, "row")).await;
    for name in ["b", "c"] {
        assert_eq!(numbers(&import(&owner, false, file(700, name)).await.body), [700, 700, 0]);
    }
    let path = format!("/links/import/{}", text(&failing.body["import_id"]));
    tests::eventually("the rows before the failure are done", async || {
        let report = owner.get(&path).await.body;
        if numbers(&report) == [1_000, 1_000, 0] { Ok(()) } else { Err(report) }
    })
    .await;
    assert_eq!(owner.get(&path).await.body["done"], false);
    sqlx::query("DROP TRIGGER fail ON links").execute(&mut postgres).await.unwrap();
    assert_eq!(numbers(&done(&owner, failing).await.body), [2_000, 2_000, 0]);
    assert_eq!(count(&server).await, 3_400, "each row once");
}
