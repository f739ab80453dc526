//! Links over HTTP.

use chrono::Utc;
use reqwest::Method;
use schemas::message::{Click, Message as _};
use schemas::row::ClickRow;
use serde_json::{Value, json};

use crate::server::{Server, text};

#[tokio::test]
async fn a_link_is_created_read_changed_and_deleted() {
    let server = Server::start().await;
    let answer = server
        .send(
            Method::POST,
            "/api/links",
            Some(json!({"name": " Spring ", "destination": "https://example.com/a?b=%20"})),
        )
        .await;
    assert_eq!(answer.status, 201);
    let link = answer.body;
    assert_eq!(answer.headers["location"], format!("/api/v1/links/{}", text(&link["id"])));
    assert_eq!(link["name"], "Spring");
    assert_eq!(link["destination"], "https://example.com/a?b=%20", "kept to the letter");
    assert_eq!(text(&link["slug"]).len(), 7);
    assert_eq!(link["short_url"], format!("https://go.example/{}", text(&link["slug"])));
    assert_eq!((&link["total_clicks"], &link["unique_clicks"]), (&json!(0), &json!(0)));

    let path = format!("/api/v1/links/{}", text(&link["id"]));
    assert_eq!(server.send(Method::GET, &path, None).await.body["id"], link["id"]);
    assert_eq!(
        server.send(Method::GET, &path.replace("/v1", ""), None).await.body["id"],
        link["id"],
        "both prefixes are the same operations"
    );

    let changed =
        server.send(Method::PATCH, &path, Some(json!({"name": "Summer", "is_active": false}))).await;
    assert_eq!(changed.status, 200);
    assert_eq!((&changed.body["name"], &changed.body["is_active"]), (&json!("Summer"), &json!(false)));
    assert_eq!(changed.body["destination"], link["destination"], "only supplied fields change");

    let deleted = server.send(Method::DELETE, &path, None).await;
    assert_eq!((deleted.status.as_u16(), deleted.body), (204, Value::Null));
    for method in [Method::GET, Method::DELETE] {
        assert_eq!(server.send(method, &path, None).await.status, 404);
    }
}

#[tokio::test]
async fn a_slug_belongs_to_one_link_at_a_time_also_when_two_ask_at_once() {
    let server = Server::start().await;
    let body = json!({"name": "a", "destination": "https://example.com", "slug": "spring"});
    let (one, other) = tokio::join!(
        server.send(Method::POST, "/api/links", Some(body.clone())),
        server.send(Method::POST, "/api/links", Some(body.clone())),
    );
    let (made, refused) = if one.status == 201 { (one, other) } else { (other, one) };
    assert_eq!(made.status, 201);
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (409, &json!("SLUG_TAKEN")));

    let path = format!("/api/links/{}", text(&made.body["id"]));
    assert_eq!(server.send(Method::DELETE, &path, None).await.status, 204);
    assert_ne!(server.create_link(body).await["id"], made.body["id"], "a free slug can be used again");
}

#[tokio::test]
async fn a_list_is_paged_newest_first_and_shows_the_specified_fields() {
    let server = Server::start().await;
    for n in 0..5 {
        server.create_link(json!({"name": format!("n{n}"), "destination": "https://example.com"})).await;
    }
    let mut names = Vec::new();
    let mut path = "/api/links?limit=2".to_owned();
    loop {
        let page = server.send(Method::GET, &path, None).await.body;
        for link in page["links"].as_array().unwrap() {
            let fields: Vec<&String> = link.as_object().unwrap().keys().collect();
            assert_eq!(
                fields,
                [
                    "id",
                    "slug",
                    "name",
                    "destination",
                    "is_active",
                    "total_clicks",
                    "unique_clicks",
                    "created_at"
                ]
            );
            names.push(text(&link["name"]));
        }
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/links?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(names, ["n4", "n3", "n2", "n1", "n0"]);
    let bad = server.send(Method::GET, "/api/links?limit=101", None).await;
    assert_eq!((bad.status.as_u16(), &bad.body["code"]), (400, &json!("INVALID_LIMIT")));
}

#[tokio::test]
async fn a_workspace_sees_no_other_workspaces_links() {
    let server = Server::start().await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let other = server
        .admin(&[
            "create-workspace",
            "--account",
            &server.account,
            "--name",
            "Other",
            "--kind",
            "organization",
        ])
        .await;
    let stranger = server.create_key(&text(&other["workspace_id"]), "read,write").await;
    let path = format!("/api/links/{}", text(&link["id"]));
    for (method, body) in
        [(Method::GET, None), (Method::PATCH, Some(json!({"name": "mine"}))), (Method::DELETE, None)]
    {
        assert_eq!(server.send_as(&stranger, method, &path, body).await.status, 404);
    }
    assert_eq!(server.send_as(&stranger, Method::GET, "/api/links", None).await.body["links"], json!([]));
}

#[tokio::test]
async fn the_link_cap_holds_over_all_workspaces_under_concurrency() {
    let server = Server::start().await;
    sqlx::query("UPDATE accounts SET plan = 'agency'")
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();
    // 24,998 links in one statement: the Agency plan has 25,000.
    sqlx::query(
        "INSERT INTO links (id, workspace_id, user_id, slug, name, destination, created_at, updated_at)
         SELECT gen_random_uuid(), w.id, u.id, 's' || n, 'n', 'https://example.com', now(), now()
         FROM generate_series(1, 24998) n, workspaces w, users u",
    )
    .execute(&mut server.engines.postgres().await)
    .await
    .unwrap();
    let body = json!({"name": "a", "destination": "https://example.com"});
    let requests = (0..6).map(|_| server.send(Method::POST, "/api/links", Some(body.clone())));
    let answers = futures_util::future::join_all(requests).await;
    let created = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!(created, 2);
    let refused = answers.iter().find(|answer| answer.status != 201).unwrap();
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("PLAN_LIMIT")));
}

#[tokio::test]
async fn counters_are_the_human_clicks_of_the_retention_window() {
    let server = Server::start().await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let now = Utc::now();
    let click = |visitor: u64, class: &str, days_ago: i64| {
        let mut click = Click::decode(include_bytes!("../../../schemas/fixtures/click.v1.json")).unwrap();
        click.link_id = text(&link["id"]).parse().unwrap();
        click.workspace_id = server.workspace.parse().unwrap();
        click.visitor = visitor;
        click.class = serde_json::from_value(json!(class)).unwrap();
        click.occurred_at = now - chrono::TimeDelta::days(days_ago);
        click
    };
    let clicks = [
        click(1, "human", 0),
        click(1, "human", 1),
        click(2, "human", 1_000),
        click(3, "bot", 0),
        click(4, "human", 1_200),
    ];
    let mut bytes = Vec::new();
    for (koff, click) in clicks.into_iter().enumerate() {
        let broker_ts = click.occurred_at;
        ClickRow { click, src: 1 << 16, koff: koff as u64, broker_ts }.write_row_binary(&mut bytes);
    }
    let structure = schemas::row::CLICK_STRUCTURE.replace('\'', "\\'");
    let query = format!("INSERT INTO clicks SELECT * FROM input('{structure}') FORMAT RowBinary");
    server.engines.clickhouse_insert(&query, bytes).await;

    let path = format!("/api/links/{}", text(&link["id"]));
    let shown = server.send(Method::GET, &path, None).await.body;
    assert_eq!((&shown["total_clicks"], &shown["unique_clicks"]), (&json!(3), &json!(2)));
    let listed = server.send(Method::GET, "/api/links", None).await.body;
    assert_eq!(listed["links"][0]["total_clicks"], json!(3));
}

#[tokio::test]
async fn without_clickhouse_a_link_answers_with_unknown_counters() {
    let mut engines = tests::engines::isolated().await;
    // Nothing listens on port 1.
    engines.clickhouse_url = "http://127.0.0.1:1/none".to_owned();
    let server = Server::start_on(engines).await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let shown = server.send(Method::GET, &format!("/api/links/{}", text(&link["id"])), None).await;
    assert_eq!(shown.status, 200);
    for field in ["total_clicks", "unique_clicks", "as_of", "conversion_rate"] {
        assert_eq!(shown.body[field], Value::Null, "{field}");
    }
}
