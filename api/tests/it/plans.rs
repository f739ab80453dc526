//! Changes of plan and their effect on links and writes, and an operator's file of plans.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tests::engines::isolated;
use tests::eventually;
use tests::log::{Record, records};

use crate::admin;
use crate::server::{Answer, Server, config, text};

/// A file of plans, removed when the test ends.
struct PlansFile(PathBuf);

impl PlansFile {
    fn new(change: impl FnOnce(&mut Value)) -> Self {
        let mut plans: Value = serde_json::from_str(include_str!("../../plans.json")).unwrap();
        change(&mut plans);
        Self::of_text(&plans.to_string())
    }

    fn of_text(text: &str) -> Self {
        let name = format!("hopline-plans-{}.json", uuid::Uuid::now_v7().simple());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for PlansFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Starts an API with the plans of a file and an account on the Business plan.
async fn start_with(plans: &PlansFile) -> Server {
    let engines = isolated().await;
    let mut config = config(&engines);
    config.plans = Some(api::Plans::read(plans.path()).unwrap());
    Server::serve(engines, config).await.with_account("business").await
}

async fn set_plan(server: &Server, plans: &PlansFile, plan: &str) -> Value {
    let arguments = ["set-plan", "--account", &server.account, "--plan", plan];
    admin::succeed(&server.engines, &[("HOPLINE_PLANS_FILE", plans.path())], &arguments, "").await
}

/// Inserts links, each a second newer than the one before, into all workspaces in turn. Their names are the numbers
/// from 1 on.
async fn insert_links(server: &Server, count: i32) {
    let inserted = sqlx::query(
        "INSERT INTO links (id, workspace_id, user_id, slug, name, destination, created_at, updated_at)
         SELECT gen_random_uuid(), w.ids[1 + n % cardinality(w.ids)], u.id, 's' || n, n, 'https://example.com',
                now() - interval '1 day' + n * interval '1 second', now()
         FROM generate_series(1, $1) n, (SELECT array_agg(id) AS ids FROM workspaces) w,
              (SELECT id FROM users WHERE role = 'owner') u",
    )
    .bind(count)
    .execute(&mut server.engines.postgres().await)
    .await
    .unwrap();
    assert_eq!(inserted.rows_affected(), u64::try_from(count).unwrap());
}

/// Returns the names of the locked links, oldest first.
async fn locked(server: &Server) -> Vec<String> {
    sqlx::query_scalar("SELECT name FROM links WHERE is_locked ORDER BY created_at, id")
        .fetch_all(&mut server.engines.postgres().await)
        .await
        .unwrap()
}

async fn endpoints_version(server: &Server) -> i64 {
    sqlx::query_scalar("SELECT version FROM endpoints_version")
        .fetch_one(&mut server.engines.postgres().await)
        .await
        .unwrap()
}

fn names(range: std::ops::RangeInclusive<i32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

#[tokio::test]
async fn a_downgrade_locks_the_newest_links_and_an_upgrade_unlocks_them() {
    let server = Server::start().await;
    let arguments =
        ["create-workspace", "--account", &server.account, "--name", "Other", "--kind", "organization"];
    server.admin(&arguments).await;
    insert_links(&server, 30).await;
    // The change must not touch another account.
    server.admin(&["create-account", "--name", "Neighbour", "--plan", "free"]).await;

    let version = endpoints_version(&server).await;
    let set = async |plan: &str| {
        let set = server.admin(&["set-plan", "--account", &server.account, "--plan", plan]).await;
        (set["locked"].as_u64().unwrap(), set["unlocked"].as_u64().unwrap())
    };
    assert_eq!(set("free").await, (5, 0));
    assert_eq!(locked(&server).await, names(26..=30));
    assert_eq!(endpoints_version(&server).await, version + 1, "a plan may exclude webhooks");
    let workspaces: i64 =
        sqlx::query_scalar("SELECT count(DISTINCT workspace_id) FROM links WHERE is_locked")
            .fetch_one(&mut server.engines.postgres().await)
            .await
            .unwrap();
    assert_eq!(workspaces, 2);
    assert_eq!(set("free").await, (0, 0), "the same plan again changes nothing");
    assert_eq!(set("starter").await, (0, 5));
    assert!(locked(&server).await.is_empty());

    // Edges get new revisions of links that still redirect; receivers get the changed fields.
    let events = eventually("every change is published", async || {
        let events = records(&server.engines, schemas::topic::LINK_EVENTS);
        if events.len() == 10 { Ok(events) } else { Err(events.len()) }
    })
    .await;
    for event in events.iter().map(Record::json) {
        assert_eq!(
            (&event["event"], &event["data"]["changed"]),
            (&json!("link.updated"), &json!(["is_locked"]))
        );
        assert!(event["data"]["is_locked"].is_boolean());
    }
    let edges: Vec<Value> =
        records(&server.engines, schemas::topic::LINKS).iter().map(Record::json).collect();
    let mut revisions: Vec<i64> = edges.iter().map(|link| link["revision"].as_i64().unwrap()).collect();
    revisions.sort_unstable();
    assert_eq!(revisions, [[2; 5], [3; 5]].concat());
    assert!(
        edges.iter().all(|link| link["is_active"] == true && link["destination"] == "https://example.com")
    );
}

#[tokio::test]
async fn deleting_a_link_unlocks_the_oldest_locked_one() {
    let plans = PlansFile::new(|plans| plans["agency"]["links"] = json!(3));
    let server = start_with(&plans).await;
    insert_links(&server, 6).await;
    let set = set_plan(&server, &plans, "agency").await;
    assert_eq!((&set["locked"], &set["former_plan"]), (&json!(3), &json!("business")));
    assert_eq!(locked(&server).await, names(4..=6));

    let links = server.send(Method::GET, "/api/links?sort=created_at", None).await.body;
    let path = |place: usize| format!("/api/links/{}", text(&links["links"][place - 1]["id"]));
    let edit =
        async |place: usize| server.send(Method::PATCH, &path(place), Some(json!({"name": "x"}))).await;
    assert_eq!(edit(5).await.body["code"], "LINK_LOCKED");
    assert_eq!(server.send(Method::GET, &path(5), None).await.body["is_locked"], true);
    assert_eq!(edit(3).await.status, 200);

    // The deletion of a locked link unlocks no other; that of an unlocked link unlocks the oldest.
    assert_eq!(server.send(Method::DELETE, &path(5), None).await.status, 204);
    assert_eq!(locked(&server).await, names(4..=4).into_iter().chain(names(6..=6)).collect::<Vec<_>>());
    assert_eq!(server.send(Method::DELETE, &path(1), None).await.status, 204);
    assert_eq!(locked(&server).await, names(6..=6));
    assert_eq!(edit(4).await.status, 200);
}

/// Returns whether the API asked for a retry because a lock was not granted in time.
fn is_busy(answer: &Answer) -> bool {
    answer.body["code"] == "UNAVAILABLE" && answer.headers.contains_key("retry-after")
}

#[tokio::test]
async fn a_downgrade_during_many_creations_holds_the_cap() {
    let plans = PlansFile::new(|plans| plans["agency"]["links"] = json!(20));
    let server = start_with(&plans).await;
    let changed = AtomicBool::new(false);
    let body = json!({"name": "a", "destination": "https://example.com"});
    let create = async || {
        let (mut created, mut late) = (0, 0);
        loop {
            let after_the_change = changed.load(Ordering::SeqCst);
            let answer = server.send(Method::POST, "/api/links", Some(body.clone())).await;
            if is_busy(&answer) {
                continue;
            }
            if answer.status != 201 {
                assert_eq!((answer.status.as_u16(), &answer.body["code"]), (403, &json!("PLAN_LIMIT")));
                return (created, late);
            }
            created += 1;
            late += i64::from(after_the_change);
        }
    };
    let downgrade = async || {
        eventually("links are being created", async || {
            let links: i64 = sqlx::query_scalar("SELECT count(*) FROM links")
                .fetch_one(&mut server.engines.postgres().await)
                .await
                .unwrap();
            if links >= 50 { Ok(()) } else { Err(links) }
        })
        .await;
        let set = set_plan(&server, &plans, "agency").await;
        changed.store(true, Ordering::SeqCst);
        set
    };
    let (counts, set) = tokio::join!(join_all((0..12).map(|_| create())), downgrade());
    let created: i64 = counts.iter().map(|(created, _)| created).sum();
    assert_eq!(counts.iter().map(|(_, late)| late).sum::<i64>(), 0, "nothing was created after the change");
    assert_eq!(set["locked"], json!(created - 20), "every created link is counted");
    let (all, unlocked): (i64, i64) =
        sqlx::query_as("SELECT count(*), count(*) FILTER (WHERE NOT is_locked) FROM links")
            .fetch_one(&mut server.engines.postgres().await)
            .await
            .unwrap();
    assert_eq!((all, unlocked), (created, 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_writes_after_a_downgrade() {
    let server = Server::start().await;
    let changed = AtomicBool::new(false);
    // Created first, because a late writer could not create its link after the downgrade.
    let one = || server.create_link(json!({"name": "a", "destination": "https://example.com"}));
    let links = join_all((0..12).map(|_| one())).await;
    let writes = async |(n, link): (usize, Value)| {
        let path = format!("/api/links/{}", text(&link["id"]));
        let hook = json!({"url": "https://hooks.example.com/in", "events": ["link.updated"]});
        let (method, path, body) = match n % 3 {
            0 => (Method::POST, "/api/links", json!({"name": "a", "destination": "https://example.com"})),
            1 => (Method::PATCH, path.as_str(), json!({"is_active": false})),
            _ => (Method::POST, "/api/webhooks", hook),
        };
        loop {
            let after_the_change = changed.load(Ordering::SeqCst);
            let answer = server.send(method.clone(), path, Some(body.clone())).await;
            match answer.body["code"].as_str() {
                Some("PLAN_REQUIRED") => return,
                // The limit of 20 endpoints is reached early; keep sending.
                Some("PLAN_LIMIT") | None => assert!(!after_the_change, "{}", answer.body),
                Some(_) if is_busy(&answer) => {}
                Some(_) => panic!("{}", answer.body),
            }
        }
    };
    let downgrade = async || {
        eventually("links are being created", async || {
            let links: i64 = sqlx::query_scalar("SELECT count(*) FROM links")
                .fetch_one(&mut server.engines.postgres().await)
                .await
                .unwrap();
            if links >= 50 { Ok(()) } else { Err(links) }
        })
        .await;
        server.admin(&["set-plan", "--account", &server.account, "--plan", "pro"]).await;
        changed.store(true, Ordering::SeqCst);
    };
    tokio::join!(join_all(links.into_iter().enumerate().map(writes)), downgrade());
}

#[tokio::test]
async fn a_change_of_plan_locks_25_000_links() {
    let mut engines = isolated().await;
    // Nothing is published, so that the outbox can be counted.
    engines.kafka_brokers = "127.0.0.1:1".to_owned();
    let server = Server::start_on(engines).await;
    insert_links(&server, 25_000).await;
    let outbox = async || -> Vec<(String, i64)> {
        sqlx::query_as("SELECT topic, count(DISTINCT key) FROM outbox GROUP BY topic ORDER BY topic")
            .fetch_all(&mut server.engines.postgres().await)
            .await
            .unwrap()
    };
    let set = server.admin(&["set-plan", "--account", &server.account, "--plan", "free"]).await;
    assert_eq!((&set["locked"], &set["unlocked"]), (&json!(24_975), &json!(0)));
    assert_eq!(outbox().await, [("link-events".to_owned(), 24_975), ("links".to_owned(), 24_975)]);
    assert_eq!(locked(&server).await, names(26..=25_000));
    let set = server.admin(&["set-plan", "--account", &server.account, "--plan", "business"]).await;
    assert_eq!((&set["locked"], &set["unlocked"]), (&json!(0), &json!(24_975)));
    assert!(locked(&server).await.is_empty());
}

#[tokio::test]
async fn an_operators_plans_replace_the_built_in_ones() {
    let plans = PlansFile::new(|plans| {
        plans["agency"] = json!({
            "requests_per_minute": 77, "links": 1, "retention_days": 7,
        });
    });
    let server = start_with(&plans).await;
    set_plan(&server, &plans, "agency").await;
    let usage = server.send(Method::GET, "/api/usage", None).await;
    assert_eq!(usage.headers["x-ratelimit-limit"], "77");
    assert_eq!(
        usage.body,
        json!({
            "plan": "agency",
            "limits": {"links": 1, "requests_per_minute": 77, "retention_days": 7},
            "used": {"links": 0},
        })
    );
    server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let body = json!({"name": "a", "destination": "https://example.com"});
    assert_eq!(server.send(Method::POST, "/api/links", Some(body)).await.body["code"], "PLAN_LIMIT");
}

#[tokio::test]
async fn an_invalid_plans_file_exits_with_64() {
    let engines = isolated().await;
    let missing = PlansFile::new(|plans| drop(plans.as_object_mut().unwrap().remove("agency")));
    let negative = PlansFile::new(|plans| plans["free"]["links"] = json!(-1));
    let no_json = PlansFile::of_text("free: 25");
    for (path, fault) in [
        ("/nonexistent/plans.json", "cannot be read"),
        (missing.path(), "missing field `agency`"),
        (negative.path(), "free.links must be from 1 to "),
        (no_json.path(), "is not a table of plans"),
    ] {
        let refused = admin::run(
            &engines,
            &[("HOPLINE_PLANS_FILE", path)],
            &["create-account", "--name", "x", "--plan", "free"],
            "",
        )
        .await;
        let stderr = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(64), "{stderr}");
        assert!(stderr.contains("HOPLINE_PLANS_FILE") && stderr.contains(fault), "{stderr}");
    }
}
