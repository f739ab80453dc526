//! Lists of links: order, pages, filters.

use chrono::{TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};

use crate::clicks;
use crate::server::{Server, text};

/// Reads a list page by page and returns the names of its links.
async fn names(server: &Server, query: &str, limit: usize) -> Vec<String> {
    let first = format!("/api/links?limit={limit}&{query}");
    let mut names = Vec::new();
    let mut path = first.clone();
    loop {
        let page = server.send(Method::GET, &path, None).await;
        assert_eq!(page.status, 200, "{query}: {}", page.body);
        let links = page.body["links"].as_array().unwrap();
        names.extend(links.iter().map(|link| text(&link["name"])));
        let Some(cursor) = page.body["next_cursor"].as_str() else { return names };
        assert_eq!(links.len(), limit, "a page before the last is full");
        path = format!("{first}&cursor={cursor}");
    }
}

async fn create(server: &Server, name: &str) -> Value {
    server.create_link(json!({"name": name, "destination": "https://example.com"})).await
}

#[tokio::test]
async fn every_order_is_paged_without_gaps_or_repeats() {
    let server = Server::start().await;
    let mut links = Vec::new();
    for name in ["delta", "Alpha", "charlie", "Bravo", "bravo", "écho", "\u{1F600}"] {
        links.push(create(&server, name).await);
    }
    // Links of the same instant are ordered by id.
    sqlx::query(
        "UPDATE links SET created_at = '2026-01-01T00:00:00Z' WHERE name IN ('charlie', 'Bravo', 'bravo')",
    )
    .execute(&mut server.engines.postgres().await)
    .await
    .unwrap();
    let an_hour_ago = Utc::now() - TimeDelta::hours(1);
    for (link, count) in [(&links[0], 2), (&links[2], 5), (&links[3], 2), (&links[5], 1)] {
        clicks::store(&server, &clicks::of_visitors(link, count, an_hour_ago)).await;
    }
    let oldest = ["charlie", "Bravo", "bravo", "delta", "Alpha", "écho", "\u{1F600}"];
    let newest: Vec<&str> = oldest.iter().rev().copied().collect();
    let by_name = ["Alpha", "Bravo", "bravo", "charlie", "delta", "écho", "\u{1F600}"];
    let by_clicks = ["charlie", "Bravo", "delta", "écho", "\u{1F600}", "bravo", "Alpha"];
    for limit in [1, 2, 3, 6, 7, 100] {
        assert_eq!(names(&server, "", limit).await, newest);
        assert_eq!(names(&server, "sort=-created_at", limit).await, newest);
        assert_eq!(names(&server, "sort=created_at", limit).await, oldest);
        assert_eq!(names(&server, "sort=name", limit).await, by_name);
        assert_eq!(names(&server, "sort=-total_clicks", limit).await, by_clicks);
    }
    let day = an_hour_ago.date_naive() - TimeDelta::days(2);
    let none = format!("sort=-total_clicks&end_date={day}");
    let by_id = ["\u{1F600}", "écho", "bravo", "Bravo", "charlie", "Alpha", "delta"];
    assert_eq!(names(&server, &none, 2).await, by_id, "all have zero in this window");
}

#[tokio::test]
async fn pages_by_clicks_share_one_snapshot() {
    let server = Server::start().await;
    let mut links = Vec::new();
    for name in ["a", "b", "c"] {
        links.push(create(&server, name).await);
    }
    let before = Utc::now() - TimeDelta::minutes(1);
    for (link, count) in [(&links[0], 3), (&links[1], 2), (&links[2], 1)] {
        clicks::store(&server, &clicks::of_visitors(link, count, before)).await;
    }
    let first = server.send(Method::GET, "/api/links?sort=-total_clicks&limit=1", None).await.body;
    assert_eq!(first["links"][0]["name"], "a");
    // Clicks between two pages change neither the order nor the counters.
    let later = Utc::now() + TimeDelta::seconds(1);
    clicks::store(&server, &clicks::of_visitors(&links[2], 50, later)).await;
    let cursor = text(&first["next_cursor"]);
    let path = format!("/api/links?sort=-total_clicks&limit=2&cursor={cursor}");
    let rest = server.send(Method::GET, &path, None).await.body;
    let rows: Vec<(&Value, &Value)> =
        rest["links"].as_array().unwrap().iter().map(|link| (&link["name"], &link["total_clicks"])).collect();
    assert_eq!(rows, [(&json!("b"), &json!(2)), (&json!("c"), &json!(1))]);
    assert_eq!(rest["next_cursor"], Value::Null);
}

#[tokio::test]
async fn counters_and_order_use_the_requested_class() {
    let server = Server::start().await;
    let before = Utc::now() - TimeDelta::minutes(1);
    let mut links = Vec::new();
    for name in ["people", "programs", "both"] {
        links.push(create(&server, name).await);
    }
    for (link, class, count) in [
        (0, "human", 5_u64),
        (1, "bot", 4),
        (1, "human", 1),
        (2, "human", 2),
        (2, "bot", 3),
        (2, "preview", 1),
    ] {
        let of_class =
            |visitor| clicks::Clicked { link: &links[link], visitor: visitor % 2, class, at: before };
        clicks::store(&server, &(0..count).map(of_class).collect::<Vec<_>>()).await;
    }
    for (class, expected) in [
        ("", [("people", 5, 2), ("both", 2, 2), ("programs", 1, 1)]),
        ("&class=human", [("people", 5, 2), ("both", 2, 2), ("programs", 1, 1)]),
        ("&class=bot", [("programs", 4, 2), ("both", 3, 2), ("people", 0, 0)]),
        ("&class=preview", [("both", 1, 1), ("programs", 0, 0), ("people", 0, 0)]),
        ("&class=all", [("both", 6, 2), ("programs", 5, 2), ("people", 5, 2)]),
    ] {
        assert_eq!(
            names(&server, &format!("sort=-total_clicks{class}"), 1).await,
            expected.map(|(name, ..)| name),
            "{class}"
        );
        for sort in ["-created_at", "name", "-total_clicks"] {
            let path = format!("/api/links?sort={sort}{class}");
            let shown = server.send(Method::GET, &path, None).await.body;
            for (name, total, unique) in expected {
                let link = shown["links"].as_array().unwrap().iter().find(|link| link["name"] == name);
                let link = link.unwrap();
                assert_eq!(
                    (&link["total_clicks"], &link["unique_clicks"]),
                    (&json!(total), &json!(unique)),
                    "{path}"
                );
            }
        }
    }
    let first = server.send(Method::GET, "/api/links?sort=-total_clicks&limit=1&class=bot", None).await.body;
    let next = format!("/api/links?sort=-total_clicks&cursor={}", text(&first["next_cursor"]));
    for (class, status) in [("&class=bot", 200), ("", 400), ("&class=all", 400), ("&class=bots", 400)] {
        assert_eq!(server.send(Method::GET, &format!("{next}{class}"), None).await.status, status, "{class}");
    }
}

#[tokio::test]
async fn links_are_found_by_words_in_slug_name_destination_or_tags() {
    let server = Server::start().await;
    for (name, slug, destination) in [
        ("Spring sale 50%_off", "one", "https://example.com/a"),
        ("Summer", "SPRING-2", "https://example.com/b"),
        ("Autumn", "three", "https://shop.example/offspring?x=1_2"),
        ("Winter", "four", r"https://example.com/back%5Cslash"),
        (r"Back\slash", "five", "https://example.com/c"),
        ("Größe", "six", "https://example.com/d"),
    ] {
        server.create_link(json!({"name": name, "slug": slug, "destination": destination})).await;
    }
    server
        .create_link(json!({
            "name": "Podcast ep. 42: Repair cafés", "slug": "ep-42", "destination": "https://example.com/e",
            "tags": ["Radio", "mending, slowly"],
        }))
        .await;
    for (q, expected) in [
        ("spring", vec!["Autumn", "Spring sale 50%_off", "Summer"]),
        ("SPRING", vec!["Autumn", "Spring sale 50%_off", "Summer"]),
        ("50%25_o", vec!["Spring sale 50%_off"]),
        ("%25", vec!["Spring sale 50%_off", "Winter"]),
        ("1_2", vec!["Autumn"]),
        ("_", vec!["Autumn", "Spring sale 50%_off"]),
        ("k%5Cs", vec![r"Back\slash"]),
        ("gr%C3%B6%C3%9Fe", vec!["Größe"]),
        (
            "x",
            vec![
                "Autumn",
                r"Back\slash",
                "Größe",
                "Podcast ep. 42: Repair cafés",
                "Spring sale 50%_off",
                "Summer",
                "Winter",
            ],
        ),
        ("podcast repair", vec!["Podcast ep. 42: Repair cafés"]),
        ("repair%20%20PODCAST", vec!["Podcast ep. 42: Repair cafés"]),
        ("podcast radio ep-42 example.com/e slow", vec!["Podcast ep. 42: Repair cafés"]),
        ("podcast summer", vec![]),
        ("'; DROP TABLE links; --", vec![]),
        // A word does not match across two fields.
        ("summerhttps", vec![]),
        ("2summer", vec![]),
    ] {
        assert_eq!(names(&server, &format!("sort=name&q={q}"), 2).await, expected, "{q}");
    }
    for bad in ["", "a%00b", "%0A", &"x".repeat(201)] {
        let refused = server.send(Method::GET, &format!("/api/links?q={bad}"), None).await;
        assert_eq!(
            (refused.status.as_u16(), &refused.body["details"][0]["field"]),
            (400, &json!("q")),
            "{bad}"
        );
    }
}

#[tokio::test]
async fn links_are_filtered_by_tag_and_state() {
    let server = Server::start().await;
    for (name, tags, is_active) in [
        ("a", json!(["x", "y z"]), true),
        ("b", json!(["x"]), false),
        ("c", json!([]), false),
        ("d", json!(["X"]), true),
    ] {
        let body =
            json!({"name": name, "destination": "https://example.com", "tags": tags, "is_active": is_active});
        server.create_link(body).await;
    }
    for statement in [
        "UPDATE links SET is_locked = true WHERE name IN ('a', 'c')",
        // From before tags were trimmed.
        "UPDATE links SET tags = '{X,\"old \"}' WHERE name = 'd'",
    ] {
        sqlx::query(statement).execute(&mut server.engines.postgres().await).await.unwrap();
    }
    for (query, expected) in [
        ("tag=x", vec!["a", "b"]),
        ("tag=y%20z", vec!["a"]),
        ("tag=%20x%20", vec!["a", "b"]),
        ("tag=old%20", vec!["d"]),
        ("tag=old", vec![]),
        ("tag=y", vec![]),
        ("is_active=true", vec!["a", "d"]),
        ("is_active=false", vec!["b", "c"]),
        ("is_locked=true", vec!["a", "c"]),
        ("is_locked=false", vec!["b", "d"]),
        ("tag=x&is_active=false&is_locked=false&q=b", vec!["b"]),
        ("tag=x&is_active=true&is_locked=false", vec![]),
    ] {
        for sort in ["name", "created_at", "-total_clicks"] {
            let mut found = names(&server, &format!("sort={sort}&{query}"), 1).await;
            found.sort();
            assert_eq!(found, expected, "{sort}: {query}");
        }
    }
}

#[tokio::test]
async fn an_invalid_query_names_its_parameter() {
    let server = Server::start().await;
    for name in ["a", "b"] {
        create(&server, name).await;
    }
    let page = server.send(Method::GET, "/api/links?limit=1", None).await.body;
    let cursor = text(&page["next_cursor"]);
    let half = &cursor[..cursor.len() / 2];
    for (query, code, parameter) in [
        ("limit=0".to_owned(), "INVALID_LIMIT", "limit"),
        ("limit=101".to_owned(), "INVALID_LIMIT", "limit"),
        ("limit=abc".to_owned(), "INVALID_LIMIT", "limit"),
        ("limit=".to_owned(), "INVALID_LIMIT", "limit"),
        ("limit=1&limit=1".to_owned(), "BAD_REQUEST", "limit"),
        ("page=2".to_owned(), "BAD_REQUEST", "page"),
        ("Limit=2".to_owned(), "BAD_REQUEST", "Limit"),
        ("sort=clicks".to_owned(), "BAD_REQUEST", "sort"),
        ("sort=".to_owned(), "BAD_REQUEST", "sort"),
        ("is_active=yes".to_owned(), "BAD_REQUEST", "is_active"),
        ("is_locked=".to_owned(), "BAD_REQUEST", "is_locked"),
        ("tag=".to_owned(), "BAD_REQUEST", "tag"),
        ("tag=a&tag=b".to_owned(), "BAD_REQUEST", "tag"),
        ("tag=a%00".to_owned(), "BAD_REQUEST", "tag"),
        ("cursor=".to_owned(), "BAD_REQUEST", "cursor"),
        ("cursor=zzz".to_owned(), "BAD_REQUEST", "cursor"),
        (format!("cursor={half}"), "BAD_REQUEST", "cursor"),
        (format!("cursor={cursor}A"), "BAD_REQUEST", "cursor"),
        (format!("cursor={cursor}&cursor={cursor}"), "BAD_REQUEST", "cursor"),
        (format!("cursor={}", "A".repeat(8_000)), "BAD_REQUEST", "cursor"),
        (format!("cursor={cursor}&sort=created_at"), "BAD_REQUEST", "cursor"),
        (format!("cursor={cursor}&sort=name"), "BAD_REQUEST", "cursor"),
        (format!("cursor={cursor}&sort=-total_clicks"), "BAD_REQUEST", "cursor"),
    ] {
        let refused = server.send(Method::GET, &format!("/api/links?{query}"), None).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!(code)), "{query}");
        assert_eq!(refused.body["details"][0]["field"], parameter, "{query}: {}", refused.body);
    }
    assert_eq!(server.send(Method::GET, &format!("/api/links?cursor={cursor}"), None).await.status, 200);
}

#[tokio::test]
async fn a_cursor_of_another_workspace_shows_only_own_links() {
    let server = Server::start().await;
    for name in ["a", "b", "c"] {
        create(&server, name).await;
    }
    let arguments =
        ["create-workspace", "--account", &server.account, "--name", "Other", "--kind", "organization"];
    let other = text(&server.admin(&arguments).await["workspace_id"]);
    let stranger = server.create_key(&other, "read,write").await;
    let page = server.send(Method::GET, "/api/links?limit=1", None).await.body;
    let path = format!("/api/links?cursor={}", text(&page["next_cursor"]));
    assert_eq!(server.send_as(&stranger, Method::GET, &path, None).await.body["links"], json!([]));
}
