//! Single clicks over HTTP: pages and exports.

use std::collections::HashSet;

use chrono::{TimeDelta, Utc};
use reqwest::Method;
use schemas::message::Class;
use serde_json::{Value, json};
use tests::eventually;

use crate::server::{Server, text};
use crate::stats_model::{self, DAYS, Model, Query, Stored, midnight};

fn everything(link: Option<usize>) -> Query {
    Query { link, class: None, start: midnight(DAYS), end: Utc::now() }
}

/// Returns the selected clicks, newest first.
fn newest_first(model: &Model, query: Query) -> Vec<&Stored> {
    let mut clicks: Vec<&Stored> = model.clicks(query).collect();
    clicks.sort_by_key(|click| std::cmp::Reverse((click.at(), click.row.src, click.row.koff)));
    clicks
}

fn ids(clicks: &[&Stored]) -> Vec<String> {
    clicks.iter().map(|click| click.row.click.click_id.clone()).collect()
}

/// Reads all pages and returns their ids; `between` runs after each page.
async fn read_pages(server: &Server, path: &str, between: impl AsyncFn(usize)) -> Vec<String> {
    let mut ids = Vec::new();
    let mut next = path.to_owned();
    for number in 0.. {
        let page = server.send(Method::GET, &next, None).await;
        assert_eq!(page.status, 200, "{next}: {}", page.body);
        ids.extend(page.body["clicks"].as_array().unwrap().iter().map(|click| text(&click["click_id"])));
        between(number).await;
        let Some(cursor) = page.body["next_cursor"].as_str() else { break };
        next = format!("{path}&cursor={cursor}");
    }
    ids
}

#[tokio::test]
async fn pages_have_each_click_once_while_new_ones_arrive() {
    let server = Server::start().await;
    let mut model = Model::create(&server, 11, 600).await;
    model.delete(&server, 4).await;
    let still = async |_| {};
    let since = midnight(DAYS).date_naive();
    for limit in [7, 100] {
        let path = format!("/api/clicks?class=all&limit={limit}&start_date={since}");
        assert_eq!(read_pages(&server, &path, still).await, ids(&newest_first(&model, everything(None))));
        let path = format!("/api/v1/links/{}/clicks?limit={limit}&start_date={since}", model.link_id(3));
        let humans = Query { class: Some(Class::Human), ..everything(Some(3)) };
        assert_eq!(read_pages(&server, &path, still).await, ids(&newest_first(&model, humans)));
    }

    // New clicks arrive between two pages, recent ones and old ones.
    let new = |number: usize| {
        let template = &newest_first(&model, everything(Some(3)))[number].row;
        let mut row = template.clone();
        row.click.click_id = format!("new-{number}");
        row.koff = 10_000 + number as u64;
        row.broker_ts = Utc::now();
        row.click.occurred_at = if number.is_multiple_of(2) { Utc::now() } else { template.occurred_at() };
        row
    };
    let path = format!("/api/links/{}/clicks?class=all&limit=9&start_date={since}", model.link_id(3));
    let arrive = async |number| stats_model::store_rows(&server, [&new(number)]).await;
    let read = read_pages(&server, &path, arrive).await;
    assert_eq!(read.len(), read.iter().collect::<HashSet<_>>().len(), "none twice");
    let before: Vec<&String> = read.iter().filter(|id| !id.starts_with("new-")).collect();
    let expected = ids(&newest_first(&model, everything(Some(3))));
    assert_eq!(before, expected.iter().collect::<Vec<_>>(), "none lost");
}

#[tokio::test]
async fn a_click_is_shown_without_its_visitor() {
    let server = Server::start().await;
    let model = Model::create(&server, 12, 40).await;
    let newest = newest_first(&model, everything(None))[0];
    let page = server.send(Method::GET, "/api/clicks?class=all&limit=1&start_date=1700-01-01", None).await;
    let shown = &page.body["clicks"][0];
    let click = &newest.row.click;
    assert_eq!(
        *shown,
        json!({
            "click_id": click.click_id, "link_id": click.link_id.to_string(), "slug": click.slug,
            "occurred_at": schemas::time::text(newest.at()), "class": click.class.as_str(),
            "country": click.country, "device_type": click.device_type, "browser": click.browser, "os": click.os,
            "referrer": click.referrer, "utm_source": click.utm_source, "utm_medium": click.utm_medium,
            "utm_campaign": click.utm_campaign, "utm_term": click.utm_term, "utm_content": click.utm_content,
            "external_click_id": click.external_click_id,
        })
    );
}

/// Reads an export and returns its headers and text.
async fn export(server: &Server, path: &str, accept: &str) -> (reqwest::header::HeaderMap, String) {
    let request = server.request(Method::GET, path).bearer_auth(&server.key).header("accept", accept);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let headers = answer.headers().clone();
    assert!(!headers.contains_key("content-length"), "an export has no known length");
    (headers, answer.text().await.unwrap())
}

#[tokio::test]
async fn an_export_has_every_click_as_csv_and_ndjson() {
    let server = Server::start().await;
    let mut model = Model::create(&server, 13, 25_000).await;
    model.delete(&server, 4).await;
    let since = format!("start_date={}", midnight(DAYS).date_naive());
    let expected = newest_first(&model, everything(None));
    let (headers, lines) =
        export(&server, &format!("/api/clicks?class=all&{since}"), "application/x-ndjson").await;
    assert_eq!(headers["content-type"], "application/x-ndjson");
    assert!(headers.contains_key("x-ratelimit-remaining") && headers.contains_key("x-request-id"));
    let read: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let read_ids: Vec<String> = read.iter().map(|click| text(&click["click_id"])).collect();
    assert_eq!(read_ids.len(), expected.len());
    assert!(read_ids == ids(&expected), "in the same order");

    let path = format!("/api/links/{}/clicks?class=all&{since}", model.link_id(2));
    let expected = newest_first(&model, everything(Some(2)));
    let (headers, csv) = export(&server, &path, "text/csv").await;
    assert_eq!(headers["content-type"], "text/csv; charset=utf-8");
    assert!(headers["content-disposition"].to_str().unwrap().contains("clicks.csv"));
    let mut rows = csv.split("\r\n");
    assert!(rows.next().unwrap().starts_with("click_id,link_id,slug,occurred_at,class,country,"));
    let rows: Vec<&str> = rows.collect();
    // No field of the model contains a line break, and the last line ends with one.
    assert_eq!(rows.len(), expected.len() + 1);
    for (row, click) in rows.iter().zip(&expected) {
        assert!(
            row.starts_with(&format!("{},{},", click.row.click.click_id, click.row.click.link_id)),
            "{row}"
        );
    }
    for parameter in ["limit=5", "cursor=a"] {
        let path = format!("/api/clicks?{parameter}");
        let request =
            server.request(Method::GET, &path).bearer_auth(&server.key).header("accept", "text/csv");
        let refused = crate::server::answer(request).await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!("BAD_REQUEST")));
    }
}

#[tokio::test]
async fn a_cell_that_looks_like_a_formula_is_text() {
    let server = Server::start().await;
    let model = Model::create(&server, 14, 1).await;
    let mut row = model.clicks[0].row.clone();
    row.click.click_id = "evil".to_owned();
    row.click.utm_source = Some("=HYPERLINK(\"http://evil.example\")".to_owned());
    row.click.referrer = Some("a,b\r\n\"c\"".to_owned());
    row.koff = 2;
    stats_model::store_rows(&server, [&row]).await;
    let (_, csv) = export(&server, "/api/clicks?class=all&start_date=1700-01-01", "text/csv").await;
    assert!(csv.contains("\"'=HYPERLINK(\"\"http://evil.example\"\")\""), "{csv}");
    assert!(csv.contains("\"a,b\r\n\"\"c\"\"\""), "{csv}");
}

/// Creates a link with this number of clicks in one day, most of them in one minute, with these columns.
async fn link_with_clicks(server: &Server, number: usize, columns: &[(&str, &str)]) -> schemas::id::LinkId {
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let id: schemas::id::LinkId = text(&link["id"]).parse().unwrap();
    let workspace: schemas::id::WorkspaceId = server.workspace.parse().unwrap();
    let (names, values): (Vec<String>, Vec<String>) =
        columns.iter().map(|(name, value)| (format!(", {name}"), format!(", {value}"))).unzip();
    let query = format!(
        "INSERT INTO clicks (workspace_id, link_id, occurred_at, click_id, class, visitor, src, koff, broker_ts{})
         SELECT toUUID('{}'), toUUID('{}'), addMilliseconds(toDateTime64('{} 00:00:00', 3, 'UTC'),
                if(number % 10 = 0, number * 800, 5000000 + number % 60000)) AS at,
                'click-' || toString(number), 'human', number, 65536, number, at{}
         FROM numbers({number})",
        names.concat(),
        workspace.uuid(),
        id.uuid(),
        midnight(2).date_naive(),
        values.concat(),
    );
    server.engines.clickhouse(&query).await;
    id
}

/// ClickHouse's client takes the end of an answer, and of each piece of it, for an error if it looks like one.
#[tokio::test]
async fn a_text_that_looks_like_an_error_of_clickhouse_is_a_text() {
    const CLICKS: usize = 20_000;
    const TEXT: &str = "~Code:DB::Exception:))\n";
    let server = Server::start().await;
    let columns = ["referrer", "utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content"];
    let columns = [&columns[..], &["external_click_id"]].concat();
    let value = format!("'{}'", TEXT.escape_default());
    let values: Vec<(&str, &str)> = columns.iter().map(|column| (*column, &*value)).collect();
    let id = link_with_clicks(&server, CLICKS, &values).await;

    let link = format!("/api/links/{id}");
    let page = server.send(Method::GET, &format!("{link}/clicks?limit=1"), None).await;
    assert_eq!(page.status, 200, "{}", page.body);
    for column in &columns {
        assert_eq!(page.body["clicks"][0][column], TEXT, "{column}");
    }
    for dimension in ["referrer", "utm_source", "utm_medium", "utm_campaign"] {
        let breakdown = server.send(Method::GET, &format!("{link}/stats/{dimension}"), None).await;
        assert_eq!(breakdown.status, 200, "{dimension}: {}", breakdown.body);
        assert_eq!(breakdown.body["items"][0]["value"], TEXT, "{dimension}");
        assert_eq!(breakdown.body["items"][0]["total_clicks"], CLICKS, "{dimension}");
    }
    let (_, lines) = export(&server, &format!("{link}/clicks"), "application/x-ndjson").await;
    assert_each_once(&lines, CLICKS);
}

/// Asserts that an export has the clicks of [`link_with_clicks`], each once, newest first.
fn assert_each_once(lines: &str, number: usize) {
    let read: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read.len(), number);
    let ids: HashSet<String> = read.iter().map(|click| text(&click["click_id"])).collect();
    assert!((0..number).all(|number| ids.contains(&format!("click-{number}"))), "each of them");
    assert!(read.windows(2).all(|pair| text(&pair[0]["occurred_at"]) >= text(&pair[1]["occurred_at"])));
}

#[tokio::test]
async fn an_export_of_100_000_clicks_has_each_once() {
    let server = Server::start().await;
    let id = link_with_clicks(&server, 100_000, &[]).await;
    let (_, lines) = export(&server, &format!("/api/links/{id}/clicks"), "application/x-ndjson").await;
    assert_each_once(&lines, 100_000);
}

/// Begins an export of a link's clicks, without reading more than its head.
async fn begin_export(server: &Server, key: &str, link: schemas::id::LinkId) -> reqwest::Response {
    let path = format!("/api/links/{link}/clicks?format=ndjson");
    server.request(Method::GET, &path).bearer_auth(key).send().await.unwrap()
}

#[tokio::test]
async fn an_account_has_four_exports_and_a_process_sixteen() {
    let mut server = Server::start().await;
    let mut unread = Vec::new();
    let mut first = None;
    for account in 0..4 {
        if account > 0 {
            server = server.with_account("business").await;
        }
        // An export is larger than all buffers between the API and a client that does not read.
        let id = link_with_clicks(&server, 50_000, &[("referrer", "repeat('r', 200)")]).await;
        for _ in 0..4 {
            let answer = begin_export(&server, &server.key, id).await;
            assert_eq!(answer.status(), 200);
            unread.push(answer);
        }
        first.get_or_insert((server.key.clone(), server.account.clone(), id));
    }
    let (key, account, id) = first.unwrap();
    let of_account = begin_export(&server, &key, id).await;
    assert_eq!(of_account.status(), 429);
    assert!(of_account.headers().contains_key("retry-after"));
    let arguments = ["create-workspace", "--account", &account, "--name", "Other", "--kind", "organization"];
    let workspace = text(&server.admin(&arguments).await["workspace_id"]);
    let other_key = server.create_key(&workspace, "read").await;
    let path = "/api/clicks?format=ndjson";
    assert_eq!(server.send_as(&other_key, Method::GET, path, None).await.status, 429, "of all workspaces");

    server = server.with_account("business").await;
    let of_process = server.send(Method::GET, path, None).await;
    assert_eq!((of_process.status.as_u16(), &of_process.body["code"]), (503, &json!("UNAVAILABLE")));
    assert!(of_process.headers.contains_key("retry-after"));
    drop(unread.pop());
    eventually("another export may begin", async || match server.send(Method::GET, path, None).await {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.status),
    })
    .await;
}

#[tokio::test]
async fn an_export_ends_with_its_key() {
    let server = Server::start().await;
    let id = link_with_clicks(&server, 100_000, &[]).await;
    let unread = begin_export(&server, &server.key, id).await;
    assert_eq!(unread.status(), 200);
    sqlx::query("UPDATE api_keys SET revoked_at = now()")
        .execute(&mut server.engines.postgres().await)
        .await
        .unwrap();
    let cut = unread.bytes().await;
    assert!(cut.is_err(), "an export under a revoked key is complete: {} bytes", cut.unwrap().len());
}

/// Each test has a process of its own, so its memory is that of the API and of a client that reads nothing.
#[tokio::test]
async fn unread_exports_of_wide_clicks_take_little_memory() {
    const CLICKS: usize = 5_000;
    const MOST: u64 = 64 << 20;
    let server = Server::start().await;
    // As JSON, each of these takes six times its 256 bytes: the export has 46 MB.
    let wide = ["referrer", "utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content"];
    let columns = wide.map(|name| (name, "repeat(char(1), 256)"));
    let id = link_with_clicks(&server, CLICKS, &columns).await;
    let narrow = link_with_clicks(&server, 1, &[]).await;
    assert_eq!(begin_export(&server, &server.key, narrow).await.text().await.unwrap().lines().count(), 1);

    let before = memory();
    let mut unread = Vec::new();
    for _ in 0..4 {
        let answer = begin_export(&server, &server.key, id).await;
        assert_eq!(answer.status(), 200);
        unread.push(answer);
    }
    let taken = memory().saturating_sub(before);
    assert!(taken < MOST, "four unread exports take {} MiB", taken >> 20);
    assert_each_once(&unread.pop().unwrap().text().await.unwrap(), CLICKS);
}

/// Returns the memory that this process has, in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn conversions_are_listed_newest_click_first() {
    let server = Server::start().await;
    let mut expected = Vec::new();
    let mut links = Vec::new();
    for name in ["a", "b"] {
        let link = server.create_link(json!({"name": name, "destination": "https://example.com"})).await;
        let id: schemas::id::LinkId = text(&link["id"]).parse().unwrap();
        for number in 0..5_u8 {
            let clicked_at = Utc::now() - TimeDelta::days(i64::from(number) * 20 + i64::from(name == "b"));
            let clicked_at = schemas::time::to_millis(clicked_at);
            let click_id = server.click_ids().mint(id, clicked_at, [number; 10]);
            let body = json!({"click_id": click_id, "external_user_id": format!("u{number}"), "user_name": "Ada",
                              "user_email": "a@b.example"});
            let request = server
                .request(Method::POST, "/api/conversions")
                .header("referer", "https://shop.example/thanks?x=1")
                .json(&body);
            let made = crate::server::answer(request).await;
            assert_eq!(made.status, 201);
            expected.push((clicked_at, made.body["conversion"]["id"].clone(), id));
        }
        links.push(id);
    }
    expected.sort_by_key(|(clicked_at, ..)| std::cmp::Reverse(*clicked_at));
    let read = async |path: String| {
        let mut next = path.clone();
        let mut rows = Vec::new();
        loop {
            let page = server.send(Method::GET, &next, None).await;
            assert_eq!(page.status, 200, "{}", page.body);
            rows.extend(page.body["conversions"].as_array().unwrap().clone());
            let Some(cursor) = page.body["next_cursor"].as_str() else { return rows };
            next = format!("{path}&cursor={cursor}");
        }
    };
    let ids = |rows: &[Value]| rows.iter().map(|row| row["id"].clone()).collect::<Vec<_>>();
    let rows = read("/api/conversions?limit=3".to_owned()).await;
    assert_eq!(ids(&rows), expected.iter().map(|(_, id, _)| id.clone()).collect::<Vec<_>>());
    let fields: Vec<&String> = rows[0].as_object().unwrap().keys().collect();
    assert_eq!(
        fields,
        [
            "id",
            "click_id",
            "link_id",
            "clicked_at",
            "external_user_id",
            "user_name",
            "user_email",
            "host",
            "page_url",
            "created_at"
        ]
    );
    assert_eq!(
        (&rows[0]["host"], &rows[0]["page_url"]),
        (&json!("shop.example"), &json!("https://shop.example/thanks?x=1"))
    );
    let of_link = read(format!("/api/v1/links/{}/conversions?limit=2", links[1])).await;
    let of_second = expected.iter().filter(|(_, _, link)| *link == links[1]);
    assert_eq!(ids(&of_link), of_second.map(|(_, id, _)| id.clone()).collect::<Vec<_>>());
    let since = midnight(30).date_naive();
    let recent = read(format!("/api/conversions?limit=100&start_date={since}")).await;
    assert_eq!(recent.len(), expected.iter().filter(|(at, ..)| *at >= midnight(30)).count());
    server.admin(&["set-plan", "--account", &server.account, "--plan", "free"]).await;
    assert_eq!(read("/api/conversions?limit=100&start_date=1700-01-01".to_owned()).await.len(), recent.len());
}
