//! Lists find their links through indexes, with every order and filter.

use reqwest::Method;
use serde_json::json;
use tests::eventually;

use crate::dashboard::Browser;
use crate::server::{Server, text};

/// Links of the listed workspace, and of all workspaces together.
const OWN: u32 = 2_000;
const ALL: u32 = 40_000;

#[tokio::test]
async fn no_list_reads_the_whole_table() {
    let server = Server::start().await;
    fill(&server, OWN, ALL).await;
    let count = async |column: &'static str| -> i64 {
        sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "SELECT coalesce(sum({column}), 0)::bigint FROM pg_stat_user_tables WHERE relname = 'links'"
        )))
        .fetch_one(&mut server.engines.postgres().await)
        .await
        .unwrap()
    };
    let (scans_before, finds_before) = (count("seq_scan").await, count("idx_scan").await);
    let mut requests = 0;
    for sort in ["-created_at", "created_at", "name", "-total_clicks"] {
        for filter in [
            "limit=100",
            "q=needle",
            "q=example",
            "q=ab",
            "q=needle%20example",
            "q=rare%20page%20na",
            "tag=rare",
            "tag=common",
            "is_active=false",
            "is_active=true",
            "is_locked=true",
            "is_locked=false",
            "is_active=false&tag=common&q=n1",
        ] {
            let path = format!("/api/links?sort={sort}&{filter}");
            let page = server.send(Method::GET, &path, None).await;
            assert_eq!(page.status, 200, "{path}: {}", page.body);
            requests += 1;
            if let Some(cursor) = page.body["next_cursor"].as_str() {
                let next = server.send(Method::GET, &format!("{path}&cursor={cursor}"), None).await;
                assert_eq!(next.status, 200, "{path}");
                requests += 1;
            }
        }
    }
    // A connection reports its statistics after it has been idle for a moment.
    eventually("the statistics are complete", async || {
        let finds = count("idx_scan").await - finds_before;
        if finds >= requests { Ok(()) } else { Err((finds, requests)) }
    })
    .await;
    assert_eq!(count("seq_scan").await, scans_before, "a list read the whole table");
}

#[tokio::test]
async fn tags_are_listed_from_an_index() {
    const LINKS: u32 = 100_000;
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    fill(&server, LINKS, LINKS).await;
    let mut postgres = server.engines.postgres().await;
    sqlx::query("VACUUM ANALYZE link_tags").execute(&mut postgres).await.unwrap();
    assert_eq!(owner.get("/tags").await.body, json!({"tags": ["common", "rare"]}));

    let own: schemas::id::WorkspaceId = server.workspace.parse().unwrap();
    let explain = concat!(
        "EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) ",
        include_str!("../../src/store/tags.sql")
    );
    let plan: Vec<String> =
        sqlx::query_scalar(explain).bind(own.uuid()).bind(1_000_i64).fetch_all(&mut postgres).await.unwrap();
    let plan = plan.join("\n");
    // Three reads of the index, one for each tag and one for the end, and none of a table.
    assert_eq!(plan.matches("Index Only Scan using link_tags_pkey").count(), 2, "{plan}");
    assert!(!plan.contains("Seq Scan") && !plan.contains("Sort"), "{plan}");
    let mut steps = plan.lines().filter(|line| line.contains("Index Only Scan"));
    assert!(steps.all(|step| step.contains("loops=1)") || step.contains("loops=2)")), "{plan}");

    // The list follows every change of a link.
    let made = owner
        .post("/links", json!({"name": "a", "destination": "https://example.com", "tags": ["x", "y"]}))
        .await;
    let path = owner.path(&format!("/links/{}", text(&made.body["id"])));
    let tags = async || owner.get("/tags").await.body["tags"].clone();
    assert_eq!(tags().await, json!(["common", "rare", "x", "y"]));
    owner.send(Method::PATCH, &path, Some(json!({"tags": ["y", "z"]}))).await;
    assert_eq!(tags().await, json!(["common", "rare", "y", "z"]));
    owner.send(Method::PATCH, &path, Some(json!({"name": "b"}))).await;
    assert_eq!(tags().await, json!(["common", "rare", "y", "z"]));
    assert_eq!(owner.send(Method::DELETE, &path, None).await.status, 204);
    assert_eq!(tags().await, json!(["common", "rare"]));
}

/// Inserts `all` links: `own_links` into the server's workspace, the rest into others of the account.
async fn fill(server: &Server, own_links: u32, all: u32) {
    for n in 0..3 {
        let name = format!("Other {n}");
        server
            .admin(&[
                "create-workspace",
                "--account",
                &server.account,
                "--name",
                &name,
                "--kind",
                "organization",
            ])
            .await;
    }
    let own: schemas::id::WorkspaceId = server.workspace.parse().unwrap();
    let mut postgres = server.engines.postgres().await;
    sqlx::query(
        "INSERT INTO links (id, workspace_id, user_id, slug, name, destination, is_active, is_locked, tags,
                            created_at, updated_at)
         SELECT gen_random_uuid(),
                CASE WHEN n % $2 = 0 THEN $1 ELSE (SELECT array_agg(id) FROM workspaces WHERE id <> $1)[1 + n % 3] END,
                (SELECT id FROM users LIMIT 1), 's' || n, CASE WHEN n % 7919 = 0 THEN 'needle ' ELSE 'name ' END || n,
                'https://example.com/page/' || n, n % 300 <> 0, n % 500 = 0,
                CASE WHEN n % 1000 = 0 THEN '{common,rare}'::text[] WHEN n % 40 = 0 THEN '{common}' ELSE '{}' END,
                now() - n * interval '1 minute', now()
         FROM generate_series(1, $3) n",
    )
    .bind(own.uuid())
    .bind(i32::try_from(all / own_links).unwrap())
    .bind(i32::try_from(all).unwrap())
    .execute(&mut postgres)
    .await
    .unwrap();
    sqlx::query("VACUUM ANALYZE links").execute(&mut postgres).await.unwrap();
    let listed = server.send(Method::GET, "/api/links?limit=1", None).await.body;
    assert!(text(&listed["links"][0]["name"]).starts_with("name "));
}
