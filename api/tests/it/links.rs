//! Links over HTTP.

use chrono::{DateTime, TimeDelta, Utc};
use reqwest::Method;
use schemas::id::ConversionId;
use schemas::message::{Conversion, Version};
use schemas::row::write_conversion;
use serde_json::{Value, json};

use crate::clicks::{self, Clicked};
use crate::server::{Server, answer, text};
use crate::stats_model;

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
    assert_eq!(link["destination"], "https://example.com/a?b=%20", "stored unchanged");
    assert_eq!(text(&link["slug"]).len(), 7);
    assert_eq!(link["short_url"], format!("https://go.example/{}", text(&link["slug"])));
    assert_eq!((&link["total_clicks"], &link["unique_clicks"]), (&json!(0), &json!(0)));

    let path = format!("/api/v1/links/{}", text(&link["id"]));
    assert_eq!(server.send(Method::GET, &path, None).await.body["id"], link["id"]);
    assert_eq!(
        server.send(Method::GET, &path.replace("/v1", ""), None).await.body["id"],
        link["id"],
        "both prefixes have the same operations"
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
async fn an_owner_is_told_that_a_click_id_in_the_destination_is_replaced() {
    let server = Server::start().await;
    let with_own = "https://example.com/?a=1&click%5Fid=theirs";
    let link = server.create_link(json!({"name": "Own", "destination": with_own})).await;
    let warning = text(&link["warnings"][0]);
    assert!(warning.contains("click_id in the destination is replaced"), "{warning}");
    let path = format!("/api/v1/links/{}", text(&link["id"]));
    assert_eq!(server.send(Method::GET, &path, None).await.body["warnings"], link["warnings"]);
    for (change, warnings) in [
        (json!({"append_click_id": false}), None),
        (json!({"append_click_id": true}), Some(&link["warnings"])),
        (json!({"destination": "https://example.com/click_id?my_click_id=1#click_id=2"}), None),
    ] {
        let changed = server.send(Method::PATCH, &path, Some(change.clone())).await;
        assert_eq!(changed.body.get("warnings"), warnings, "{change}");
    }
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
async fn counters_cover_human_clicks_of_the_retention_window() {
    let server = Server::start().await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let click = |visitor: u64, class: &'static str, days_ago: i64| {
        let at = Utc::now() - TimeDelta::days(days_ago);
        Clicked { link: &link, visitor, class, at }
    };
    let clicks = [
        click(1, "human", 0),
        click(1, "human", 1),
        click(2, "human", 1_000),
        click(3, "bot", 0),
        click(4, "human", 1_200),
    ];
    clicks::store(&server, &clicks).await;

    let path = format!("/api/links/{}", text(&link["id"]));
    let shown = server.send(Method::GET, &path, None).await.body;
    assert_eq!((&shown["total_clicks"], &shown["unique_clicks"]), (&json!(3), &json!(2)));
    let listed = server.send(Method::GET, "/api/links", None).await.body;
    assert_eq!(listed["links"][0]["total_clicks"], json!(3));
}

/// Stores a conversion of a click of a link, as the processor does.
async fn convert(server: &Server, link: &Value, clicked_at: DateTime<Utc>) {
    let conversion = Conversion {
        version: Version,
        conversion_id: ConversionId::from_uuid(uuid::Uuid::from_u128(1)),
        click_id: "converted".to_owned(),
        link_id: text(&link["id"]).parse().unwrap(),
        workspace_id: server.workspace.parse().unwrap(),
        clicked_at,
        converted_at: Utc::now(),
    };
    let mut bytes = Vec::new();
    write_conversion(&conversion, &mut bytes);
    stats_model::store_conversions(server, bytes).await;
}

#[tokio::test]
async fn counters_cover_the_requested_window() {
    let server = Server::start().await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let now = Utc::now();
    let day = |days_ago: i64| (now - TimeDelta::days(days_ago)).date_naive();
    let noon = |days_ago: i64| day(days_ago).and_hms_opt(12, 0, 0).unwrap().and_utc();
    let click = |visitor, days_ago| Clicked { link: &link, visitor, class: "human", at: noon(days_ago) };
    clicks::store(&server, &[click(1, 10), click(2, 10), click(1, 9), click(3, 5)]).await;
    convert(&server, &link, noon(9)).await;

    let path = format!("/api/links/{}", text(&link["id"]));
    let one_hour_east = noon(10).with_timezone(&chrono::FixedOffset::east_opt(3_600).unwrap());
    let encoded = one_hour_east.to_rfc3339().replace('+', "%2B");
    for (query, total, unique, conversions) in [
        (format!("start_date={}&end_date={}", day(10), day(9)), 3, 2, 1),
        (format!("start_date={}&end_date={}", day(10), day(10)), 2, 2, 0),
        (format!("start_date={}", day(9)), 2, 2, 1),
        (format!("end_date={}", day(9)), 3, 2, 1),
        // The window includes its start and excludes its end.
        (format!("start_date={encoded}&end_date={}", noon(9).format("%Y-%m-%dT%H:%M:%SZ")), 2, 2, 0),
        ("start_date=1990-01-01".to_owned(), 4, 3, 1),
        ("start_date=1990-01-01&end_date=1990-12-31".to_owned(), 0, 0, 0),
        ("start_date=9999-01-01".to_owned(), 0, 0, 0),
        ("end_date=9999-12-31".to_owned(), 4, 3, 1),
    ] {
        let shown = server.send(Method::GET, &format!("{path}?{query}"), None).await;
        assert_eq!(shown.status, 200, "{query}: {}", shown.body);
        let numbers = [&shown.body["total_clicks"], &shown.body["unique_clicks"], &shown.body["conversions"]];
        assert_eq!(numbers, [&json!(total), &json!(unique), &json!(conversions)], "{query}");
        let listed = server.send(Method::GET, &format!("/api/links?{query}"), None).await.body;
        let numbers = [&listed["links"][0]["total_clicks"], &listed["links"][0]["unique_clicks"]];
        assert_eq!(numbers, [&json!(total), &json!(unique)], "{query}");
    }
}

#[tokio::test]
async fn an_invalid_window_names_its_parameter() {
    let server = Server::start().await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let path = format!("/api/links/{}", text(&link["id"]));
    for (query, parameter) in [
        ("start_date=2026-02-30", "start_date"),
        ("end_date=", "end_date"),
        ("start_date=0000-01-01", "start_date"),
        ("end_date=2026-01-01T00:00:00%2B25:00", "end_date"),
        ("end_date=2026-01-01T00:00:00+01:00", "end_date"),
        ("start_date=%00", "start_date"),
        ("start_date=%FF%FE", "start_date"),
        ("start_date=2026-11-28T14:53:60Z", "start_date"),
        ("start_date=2026-02-02&end_date=2026-02-01", "start_date"),
    ] {
        for path in [path.as_str(), "/api/links"] {
            let refused = server.send(Method::GET, &format!("{path}?{query}"), None).await;
            assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!("INVALID_DATE")));
            assert_eq!(refused.body["details"][0]["field"], parameter, "{query}");
        }
    }
    for query in ["start_date=2026-01-01&start_date=2026-01-01", "since=2026-01-01", "=2026-01-01"] {
        let refused = server.send(Method::GET, &format!("{path}?{query}"), None).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!("BAD_REQUEST")));
    }
}

#[tokio::test]
async fn every_optional_field_is_kept_and_changed() {
    let server = Server::start().await;
    let body = json!({
        "name": "a", "destination": "https://example.com", "slug": "Spring_1", "external_id": "x",
        "tags": ["b", "a"], "redirect_status": 308, "forward_query": "off", "append_click_id": false,
        "expires_at": "2030-01-01T01:00:00+01:00",
    });
    let link = server.create_link(body.clone()).await;
    let path = format!("/api/links/{}", text(&link["id"]));
    for (field, value) in body.as_object().unwrap() {
        let expected = if field == "expires_at" { &json!("2030-01-01T00:00:00.000Z") } else { value };
        assert_eq!(&link[field], expected);
    }
    let change = json!({
        "external_id": null, "tags": [], "redirect_status": 301, "forward_query": "append", "append_click_id": true,
        "expires_at": null,
    });
    let changed = server.send(Method::PATCH, &path, Some(change.clone())).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    for (field, value) in change.as_object().unwrap() {
        assert_eq!(&changed.body[field], value);
    }
    assert_eq!(server.send(Method::GET, &path, None).await.body["tags"], json!([]));
}

#[tokio::test]
async fn an_invalid_body_changes_nothing() {
    let server = Server::start().await;
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let path = format!("/api/links/{}", text(&link["id"]));
    let deep = format!("{{\"name\":{}{}}}", "[".repeat(20_000), "]".repeat(20_000));
    let deep_tags = format!("{{\"tags\":{}{}}}", "[".repeat(20_000), "]".repeat(20_000));
    let deep_unknown = format!("{{\"x\":{}{}}}", "[".repeat(20_000), "]".repeat(20_000));
    for body in [
        r#"{"name":null}"#,
        r#"{"destination":null}"#,
        r#"{"slug":null}"#,
        r#"{"is_active":null}"#,
        r#"{"tags":null}"#,
        r#"{"is_active":"true"}"#,
        r#"{"is_active":1}"#,
        r#"{"name":""}"#,
        r#"{"name":"   "}"#,
        r#"{"name":"a\u0000b"}"#,
        r#"{"name":"a\nb"}"#,
        r#"{"name":"a\u0085b"}"#,
        r#"{"name":"\ud800"}"#,
        r#"{"name":"a","name":"a"}"#,
        r#"{"name":"a"} {}"#,
        r#"{"redirect_status":302.5}"#,
        r#"{"redirect_status":99999999999}"#,
        r#"{"redirect_status":303}"#,
        r#"{"forward_query":"maybe"}"#,
        r#"{"expires_at":"9999-12-31T23:59:59-23:00"}"#,
        r#"{"expires_at":"2026-02-30T00:00:00Z"}"#,
        r#"{"external_id":7}"#,
        r#"{"tags":["a","a"]}"#,
        r#"{"tags":["a\u0000"]}"#,
        r#"{"tags":[null]}"#,
        r#"{"is_locked":false}"#,
        r#"{"user_id":"usr_1"}"#,
        "{",
        "null",
        "[]",
        "",
        &deep,
        &deep_tags,
        &deep_unknown,
    ] {
        let shown = &body[..body.len().min(60)];
        for (method, path) in
            [(Method::PATCH, path.as_str()), (Method::POST, "/api/links"), (Method::PUT, "/api/links/upsert")]
        {
            let request = server
                .request(method.clone(), path)
                .bearer_auth(&server.key)
                .header("content-type", "application/json")
                .body(body.to_owned());
            let refused = answer(request).await;
            assert_eq!(
                (refused.status.as_u16(), &refused.body["code"]),
                (400, &json!("BAD_REQUEST")),
                "{method} {shown}"
            );
        }
    }
    let not_utf8 = server
        .request(Method::PATCH, &path)
        .bearer_auth(&server.key)
        .header("content-type", "application/json")
        .body(&b"{\"name\":\"\xff\"}"[..]);
    assert_eq!(answer(not_utf8).await.status, 400);
    let listed = server.send(Method::GET, "/api/links", None).await.body;
    assert_eq!(listed["links"].as_array().unwrap().len(), 1);
    assert_eq!(server.send(Method::GET, &path, None).await.body["updated_at"], link["updated_at"]);
}

#[tokio::test]
async fn without_clickhouse_a_links_counters_are_null() {
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
    let listed = server.send(Method::GET, "/api/links?sort=name", None).await;
    assert_eq!((listed.status.as_u16(), &listed.body["links"][0]["total_clicks"]), (200, &Value::Null));
    let path = format!("/api/links/{}", text(&link["id"]));
    assert_eq!(server.send(Method::PATCH, &path, Some(json!({"name": "b"}))).await.status, 200);
    let refused = server.send(Method::GET, "/api/links?sort=-total_clicks", None).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (503, &json!("UNAVAILABLE")));
    assert!(refused.headers.contains_key("retry-after"));
}
