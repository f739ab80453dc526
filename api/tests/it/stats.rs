//! Statistics over HTTP, compared with counts by hand.

use std::collections::BTreeMap;

use chrono::{DateTime, Datelike as _, Offset as _, TimeDelta, Timelike as _, Utc};
use chrono_tz::Tz;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use reqwest::Method;
use schemas::clickhouse::rollup::{Run, Scope};
use schemas::message::Class;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::server::{Server, text};
use crate::stats_model::{
    self, DAYS, DIMENSIONS, Model, Numbers, Query, midnight, midnight_before, today, within_a_day,
};

/// Zones whose clocks are whole hours from UTC, and some whose are not.
const ZONES: [&str; 10] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Pacific/Auckland",
    "Africa/Cairo",
    "America/Havana",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "America/St_Johns",
];

fn has_fractional_offset(zone: &str) -> bool {
    matches!(zone, "Asia/Kolkata" | "Asia/Kathmandu" | "America/St_Johns")
}

/// Returns the calendar and clock of a point of a series in a zone. The offset distinguishes a repeated hour.
fn label(interval: &str, zone: Tz, at: DateTime<Utc>) -> (i32, u32, u32, u32, u32, i32) {
    let local = at.with_timezone(&zone);
    let (year, month, day) = (local.year(), local.month(), local.day());
    let offset = -local.offset().fix().local_minus_utc();
    match interval {
        "month" => (year, month, 0, 0, 0, 0),
        "day" => (year, month, day, 0, 0, 0),
        "hour" => (year, month, day, local.hour(), 0, offset),
        _ => (year, month, day, local.hour(), local.minute(), offset),
    }
}

fn random_instant(random: &mut StdRng) -> DateTime<Utc> {
    let day = midnight(random.random_range(0..DAYS));
    let hour = TimeDelta::hours(random.random_range(0..24));
    match random.random_range(0..4) {
        0 => day,
        1 => day + hour,
        2 => day + hour + TimeDelta::milliseconds(random.random_range(-2..=2)),
        _ => day + TimeDelta::milliseconds(random.random_range(0..86_400_000)),
    }
    .max(midnight(DAYS))
}

fn random_query(random: &mut StdRng, model: &Model) -> Query {
    let (one, other) = (random_instant(random), random_instant(random));
    let link = random.random_range(0..=model.links.len());
    Query {
        link: Some(link).filter(|link| *link < model.links.len() && !model.deleted.contains(link)),
        class: [Some(Class::Human), Some(Class::Bot), None][random.random_range(0..3)],
        start: one.min(other),
        end: one.max(other),
    }
}

fn base(model: &Model, query: Query) -> String {
    query.link.map_or("/api/v1".to_owned(), |link| format!("/api/v1/links/{}", model.link_id(link)))
}

fn window(query: Query) -> String {
    let class = query.class.map_or("all", Class::as_str);
    let text = |at: DateTime<Utc>| schemas::time::text(at);
    format!("start_date={}&end_date={}&class={class}", text(query.start), text(query.end))
}

async fn get(server: &Server, path: &str) -> Value {
    let answer = server.send(Method::GET, path, None).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.body
}

async fn check_series(server: &Server, model: &Model, mut query: Query, random: &mut StdRng) {
    let zone_name = ZONES[random.random_range(0..ZONES.len())];
    let zone: Tz = zone_name.parse().unwrap();
    let interval = ["minute", "hour", "day", "day", "month"][random.random_range(0..5)];
    let most = match interval {
        "minute" => TimeDelta::minutes(900),
        _ if has_fractional_offset(zone_name) => TimeDelta::days(31),
        "hour" => TimeDelta::days(41),
        _ => TimeDelta::days(500),
    };
    query.end = query.end.min(query.start + most);
    let path =
        format!("{}/stats?{}&interval={interval}&timezone={zone_name}", base(model, query), window(query));
    let shown = get(server, &path).await;
    let whole = Numbers::of(model.clicks(query));
    assert_eq!((shown["total_clicks"].clone(), shown["unique_clicks"].clone()), whole.json(), "{path}");
    assert_eq!(shown["start_date"], schemas::time::text(query.start));
    assert_eq!(shown["end_date"], schemas::time::text(query.end));
    let conversions = model.conversions(query);
    assert_eq!(shown["conversions"], conversions, "{path}");
    let unique = whole.visitors.len();
    let rate = if unique == 0 { 0.0 } else { conversions as f64 / unique as f64 * 100.0 };
    // Half of the second decimal, and the error of a float.
    let difference = (shown["conversion_rate"].as_f64().unwrap() - rate).abs();
    assert!(difference < 0.005_001, "{path}: {}, not {rate}", shown["conversion_rate"]);

    let points: BTreeMap<_, (Value, Value)> = shown["series"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| {
            // The first point may begin before the window.
            let start: DateTime<Utc> = text(&point["start"]).parse().unwrap();
            let counts = (point["total_clicks"].clone(), point["unique_clicks"].clone());
            (label(interval, zone, start.max(query.start)), counts)
        })
        .collect();
    assert_eq!(points.len(), shown["series"].as_array().unwrap().len(), "{path}: duplicate points");
    let mut expected: BTreeMap<_, (Value, Value)> = BTreeMap::new();
    let step = if interval == "minute" { TimeDelta::seconds(60) } else { TimeDelta::minutes(15) };
    let mut at = query.start;
    while at < query.end {
        expected.insert(label(interval, zone, at), (json!(0), json!(0)));
        at += step;
    }
    if query.start < query.end {
        let last = query.end - TimeDelta::milliseconds(1);
        expected.insert(label(interval, zone, last), (json!(0), json!(0)));
    }
    let counted = model.by(query, |click| label(interval, zone, click.at()));
    expected.extend(counted.into_iter().map(|(label, numbers)| (label, numbers.json())));
    assert_eq!(points, expected, "{path}");
}

async fn check_breakdown(server: &Server, model: &Model, query: Query, random: &mut StdRng) {
    let limit = random.random_range(1..8);
    let place = random.random_range(0..=DIMENSIONS.len());
    let (name, groups): (_, BTreeMap<String, Numbers>) = match DIMENSIONS.get(place) {
        Some(dimension) => (dimension.0, model.by(query, |click| click.value(*dimension))),
        None => ("class", model.by(query, |click| click.row.click.class.to_string())),
    };
    let path = format!("{}/stats/{name}?{}&limit={limit}", base(model, query), window(query));
    let mut expected: Vec<(String, Numbers)> = groups.into_iter().collect();
    expected.sort_by_key(|(value, numbers)| (std::cmp::Reverse(numbers.total), value.clone()));
    expected.truncate(limit);
    let expected: Vec<Value> = expected
        .into_iter()
        .map(|(value, numbers)| {
            let (total, unique) = numbers.json();
            let value = Some(value).filter(|value| !value.is_empty());
            json!({"value": value, "total_clicks": total, "unique_clicks": unique})
        })
        .collect();
    assert_eq!(get(server, &path).await["items"], json!(expected), "{path}");
}

async fn check_links(server: &Server, model: &Model, mut query: Query) {
    query.class = Some(Class::Human);
    let dates = window(query).replace("&class=human", "");
    let of = |link| Numbers::of(model.clicks(Query { link: Some(link), ..query }));
    let links = (0..model.links.len()).filter(|link| !model.deleted.contains(link));
    let mut expected: Vec<(u64, Value, Value)> = links
        .map(|link| (of(link).total, model.links[link]["id"].clone(), json!(of(link).visitors.len())))
        .collect();
    for sort in ["created_at", "-total_clicks"] {
        let path = format!("/api/links?sort={sort}&{dates}");
        let listed = get(server, &path).await;
        let listed: Vec<(u64, Value, Value)> = listed["links"]
            .as_array()
            .unwrap()
            .iter()
            .map(|link| {
                let total = link["total_clicks"].as_u64().unwrap();
                (total, link["id"].clone(), link["unique_clicks"].clone())
            })
            .collect();
        if sort == "-total_clicks" {
            expected.sort_by_key(|(total, id, _)| std::cmp::Reverse((*total, text(id))));
        }
        assert_eq!(listed, expected, "{path}");
    }
    let (total, id, unique) = &expected[0];
    let path = format!("/api/links/{}?{dates}", text(id));
    let shown = get(server, &path).await;
    assert_eq!((&shown["total_clicks"], &shown["unique_clicks"]), (&json!(total), unique));
    let link = (0..model.links.len()).find(|link| model.links[*link]["id"] == *id);
    assert_eq!(shown["conversions"], model.conversions(Query { link, ..query }));
}

async fn check(server: &Server, model: &Model, random: &mut StdRng, cases: usize) {
    for _ in 0..cases {
        let query = random_query(random, model);
        check_series(server, model, query, random).await;
        check_breakdown(server, model, query, random).await;
        check_links(server, model, query).await;
    }
}

#[tokio::test]
async fn every_count_equals_counting_by_hand() {
    let server = Server::start().await;
    let mut random = StdRng::seed_from_u64(6);
    let mut model = Model::create(&server, 6, 3_000).await;
    model.delete(&server, 4).await;
    check(&server, &model, &mut random, 12).await;

    stats_model::close(&server, 250..DAYS + 1, 7).await;
    check(&server, &model, &mut random, 25).await;

    // The rows of an interrupted run are not counted.
    let slices = [249, 300].map(|days| (today() - chrono::Days::new(days), -1)).into();
    let broken = Run { scope: Scope::All, version: 8, slices };
    stats_model::compute(&server, &broken, false).await;
    check(&server, &model, &mut random, 8).await;

    stats_model::close(&server, 120..250, 9).await;
    stats_model::close(&server, 35..120, 10).await;
    check(&server, &model, &mut random, 25).await;

    // Delete another link, and compute the workspace's rollups again without it.
    model.delete(&server, 3).await;
    let slices = (35..=DAYS).rev().map(|days_ago| (today() - chrono::Days::new(days_ago), -1)).collect();
    let scope = Scope::Workspace(server.workspace.parse().unwrap());
    let again = Run { scope, version: 11, slices };
    stats_model::compute(&server, &again, true).await;
    check(&server, &model, &mut random, 15).await;

    stats_model::close(&server, 1..35, 12).await;
    check(&server, &model, &mut random, 25).await;
}

#[tokio::test]
async fn a_deletion_affects_only_its_workspace() {
    let server = Server::start().await;
    let mut random = StdRng::seed_from_u64(7);
    let mut model = Model::create(&server, 7, 500).await;
    let deleted = |workspace: Uuid| {
        let values = format!("toUUID('{}'), now64(3), toUUID('{workspace}')", model.link_id(2).uuid());
        format!("INSERT INTO deleted_links (link_id, deleted_at, workspace_id) SELECT {values}")
    };
    server.engines.clickhouse(&deleted(Uuid::now_v7())).await;
    check(&server, &model, &mut random, 8).await;

    // A former release stored no workspace.
    server.engines.clickhouse(&deleted(Uuid::nil())).await;
    let delete = format!("/api/links/{}", model.link_id(2));
    assert_eq!(server.send(Method::DELETE, &delete, None).await.status, 204);
    model.deleted.insert(2);
    check(&server, &model, &mut random, 8).await;
    let plan = "EXPLAIN indexes = 1, projections = 1 SELECT link_id FROM deleted_links \
                WHERE workspace_id IN (toUUID('00000000-0000-0000-0000-000000000000'), generateUUIDv4())";
    let plan = server.engines.clickhouse(plan).await;
    assert!(plan.contains("of_workspaces"), "the projection by workspace is not used: {plan}");
}

/// Creates a link without clicks, and returns it and its path.
async fn link_and_path(server: &Server) -> (Value, String) {
    let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
    let path = format!("/api/links/{}", text(&link["id"]));
    (link, path)
}

#[tokio::test]
async fn an_invalid_parameter_is_named() {
    let server = Server::start().await;
    let (_, link) = link_and_path(&server).await;
    let many = "start_date=2026-01-01&end_date=2026-03-01";
    for (query, code, parameter) in [
        ("interval=week".to_owned(), "BAD_REQUEST", "interval"),
        ("interval=".to_owned(), "BAD_REQUEST", "interval"),
        ("timezone=Atlantis".to_owned(), "BAD_REQUEST", "timezone"),
        ("timezone=".to_owned(), "BAD_REQUEST", "timezone"),
        ("class=humans".to_owned(), "BAD_REQUEST", "class"),
        (format!("interval=minute&{many}"), "BAD_REQUEST", "interval"),
        (format!("interval=hour&{many}"), "BAD_REQUEST", "interval"),
        ("end_date=9999-12-31".to_owned(), "BAD_REQUEST", "interval"),
        (format!("timezone=Asia/Kolkata&{many}"), "BAD_REQUEST", "timezone"),
        ("start_date=yesterday".to_owned(), "INVALID_DATE", "start_date"),
        ("start_date=2026-02-02&end_date=2026-02-01".to_owned(), "INVALID_DATE", "start_date"),
        ("limit=5".to_owned(), "BAD_REQUEST", "limit"),
    ] {
        for path in [&link, "/api/v1"] {
            let refused = server.send(Method::GET, &format!("{path}/stats?{query}"), None).await;
            assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!(code)), "{query}");
            assert_eq!(refused.body["details"][0]["field"], parameter, "{query}: {}", refused.body);
            assert!(refused.headers.contains_key("x-ratelimit-limit"));
        }
    }
    for (path, code) in [
        ("stats/visitor", "BAD_REQUEST"),
        ("stats/Country", "BAD_REQUEST"),
        ("stats/country?limit=101", "INVALID_LIMIT"),
        ("stats/country?interval=day", "BAD_REQUEST"),
        ("clicks?limit=0", "INVALID_LIMIT"),
        ("clicks?cursor=zzz", "BAD_REQUEST"),
        ("clicks?class=", "BAD_REQUEST"),
        ("conversions?limit=101", "INVALID_LIMIT"),
        ("conversions?cursor=zzz", "BAD_REQUEST"),
        ("conversions?class=humans", "BAD_REQUEST"),
        ("conversions?q=a", "BAD_REQUEST"),
    ] {
        for below in [&link, "/api/v1"] {
            let refused = server.send(Method::GET, &format!("{below}/{path}"), None).await;
            assert_eq!((refused.status.as_u16(), &refused.body["code"]), (400, &json!(code)), "{path}");
        }
    }
    for path in ["stats", "stats/os", "clicks", "conversions"] {
        let unknown = server.send_as("nonsense", Method::GET, &format!("/api/{path}"), None).await;
        assert_eq!(unknown.status, 401, "{path}");
    }
}

#[tokio::test]
async fn deleted_and_foreign_links_are_not_found() {
    let server = Server::start().await;
    let (_, link) = link_and_path(&server).await;
    let (_, deleted) = link_and_path(&server).await;
    assert_eq!(server.send(Method::DELETE, &deleted, None).await.status, 204);
    let arguments =
        ["create-workspace", "--account", &server.account, "--name", "Other", "--kind", "organization"];
    let other = text(&server.admin(&arguments).await["workspace_id"]);
    let stranger = server.create_key(&other, "read").await;
    for path in ["stats", "stats/country", "clicks", "conversions"] {
        assert_eq!(server.send(Method::GET, &format!("{link}/{path}"), None).await.status, 200);
        let theirs = server.send_as(&stranger, Method::GET, &format!("{link}/{path}"), None).await;
        let gone = server.send(Method::GET, &format!("{deleted}/{path}"), None).await;
        let never = server.send(Method::GET, &format!("/api/links/lnk_1/{path}"), None).await;
        assert_eq!([theirs.status, gone.status, never.status].map(|status| status.as_u16()), [404; 3]);
    }
}

#[tokio::test]
async fn the_plans_window_holds_on_every_path() {
    let server = Server::start().await;
    let model = Model::create(&server, 3, 400).await;
    stats_model::close(&server, 10..DAYS + 1, 5).await;
    let link = model.link_id(4);
    let ages = "start_date=1700-01-01";
    for (plan, days) in [("free", 30), ("starter", 90), ("pro", 365), ("business", 1_095)] {
        server.admin(&["set-plan", "--account", &server.account, "--plan", plan]).await;
        let (day, (shown, by_class, clicks, linked)) = within_a_day(async |_| {
            let shown = get(&server, &format!("/api/links/{link}/stats?{ages}&interval=month")).await;
            let by_class = get(&server, &format!("/api/links/{link}/stats/class?{ages}&class=human")).await;
            let mut clicks = 0;
            let mut path = format!("/api/links/{link}/clicks?{ages}&limit=100");
            loop {
                let page = get(&server, &path).await;
                clicks += page["clicks"].as_array().unwrap().len();
                let Some(cursor) = page["next_cursor"].as_str() else { break };
                path = format!("/api/links/{link}/clicks?{ages}&limit=100&cursor={cursor}");
            }
            let linked = get(&server, &format!("/api/links/{link}?{ages}")).await;
            (shown, by_class, clicks, linked)
        })
        .await;
        let start = midnight_before(day, days);
        let all = Query { link: Some(4), class: Some(Class::Human), start, end: Utc::now() };
        let count = model.clicks(all).count();
        assert!(count > 0, "{plan}");
        assert_eq!(shown["total_clicks"], count, "{plan}");
        let start: DateTime<Utc> = text(&shown["start_date"]).parse().unwrap();
        let kept = get(&server, "/api/usage").await["limits"]["retention_days"].as_u64().unwrap();
        assert_eq!(start, midnight_before(day, kept), "{plan}");
        assert_eq!(
            (&by_class["items"][0]["total_clicks"], &by_class["start_date"]),
            (&json!(count), &shown["start_date"])
        );
        assert_eq!(clicks, count, "{plan}");
        assert_eq!(linked["total_clicks"], count, "{plan}");
    }
    let before = get(&server, "/api/stats?start_date=1900-01-01&end_date=1900-12-31").await;
    assert_eq!((&before["total_clicks"], &before["series"]), (&json!(0), &json!([])), "empty and zero");
    assert_eq!(before["start_date"], before["end_date"]);
    let none = get(&server, "/api/stats/country?start_date=9999-12-31").await;
    assert_eq!(none["items"], json!([]));
}

#[tokio::test]
async fn a_new_click_is_in_the_last_point_and_as_of_is_broker_time() {
    let server = Server::start().await;
    let model = Model::create(&server, 5, 20).await;
    // An edge and a broker whose clocks are ahead of the API's.
    let ahead = Utc::now() + TimeDelta::minutes(90);
    let mut row = model.clicks[0].row.clone();
    (row.click.occurred_at, row.broker_ts, row.koff) = (ahead, ahead, 1_000);
    row.click.class = Class::Human;
    stats_model::store_rows(&server, [&row]).await;
    // Partition 2 has a new log, and partition 3 no longer belongs to the topic.
    let current = [(1 << 16, 5), ((1 << 16) + 1, 3), ((2 << 16) + 2, 4)];
    let former = [((1 << 16) + 2, 9_999), ((1 << 16) + 3, 9_999)];
    let logs = current.iter().chain(&former).map(|(src, _)| (*src, 0)).chain([((2 << 16) + 3, u64::MAX)]);
    for (src, first_offset) in logs {
        let log = format!("SELECT {src}, generateUUIDv4(), {first_offset}, now64(3), ''");
        server
            .engines
            .clickhouse(&format!("INSERT INTO sources (src, topic_id, first_offset, at, reason) {log}"))
            .await;
    }
    for (src, seconds) in current.into_iter().chain(former) {
        let at = (ahead - TimeDelta::seconds(seconds)).timestamp_millis();
        let values = format!("SELECT {src}, fromUnixTimestamp64Milli({at}, 'UTC')");
        server.engines.clickhouse(&format!("INSERT INTO progress {values}")).await;
    }
    for (interval, most) in [("hour", 24), ("day", 1), ("month", 1)] {
        let path = format!("/api/stats?class=all&interval={interval}");
        let (_, shown) =
            within_a_day(async |today| get(&server, &format!("{path}&start_date={today}")).await).await;
        let points = shown["series"].as_array().unwrap();
        assert!(points.len() <= most, "{interval}: none is in the future");
        let last = points.last().unwrap();
        assert!(last["total_clicks"].as_u64().unwrap() >= 1, "{interval}: {last}");
        let sum: u64 = points.iter().map(|point| point["total_clicks"].as_u64().unwrap()).sum();
        assert_eq!(shown["total_clicks"], sum);
        let as_of = schemas::time::text(schemas::time::to_millis(ahead - TimeDelta::seconds(5)));
        assert_eq!(shown["as_of"], as_of, "the least of the current logs");
    }
    // A partition that has a source and no progress yet may have many clicks.
    let log = format!("SELECT {}, generateUUIDv4(), 0, now64(3), ''", (1 << 16) + 4);
    server
        .engines
        .clickhouse(&format!("INSERT INTO sources (src, topic_id, first_offset, at, reason) {log}"))
        .await;
    tests::eventually("as_of is unknown", async || {
        let shown = get(&server, "/api/stats?class=all").await["as_of"].clone();
        if shown.is_null() { Ok(()) } else { Err(shown) }
    })
    .await;
}

#[tokio::test]
async fn a_series_may_begin_at_the_links_creation() {
    let server = Server::start().await;
    let (link, path) = link_and_path(&server).await;
    let created_at: DateTime<Utc> = text(&link["created_at"]).parse().unwrap();
    let at = created_at + TimeDelta::milliseconds(1);
    crate::clicks::store(&server, &crate::clicks::of_visitors(&link, 3, at)).await;
    for interval in ["minute", "hour", "day", "month"] {
        for zone in ["UTC", "Europe/Berlin", "Asia/Kolkata"] {
            let path = format!(
                "{path}/stats?start_date={}&interval={interval}&timezone={zone}",
                text(&link["created_at"])
            );
            let shown = get(&server, &path).await;
            assert_eq!(
                (&shown["start_date"], &shown["total_clicks"]),
                (&link["created_at"], &json!(3)),
                "{path}"
            );
            let series = shown["series"].as_array().unwrap();
            let first: DateTime<Utc> = text(&series[0]["start"]).parse().unwrap();
            let last: DateTime<Utc> = text(&series[series.len() - 1]["start"]).parse().unwrap();
            assert!(first <= created_at && last <= Utc::now(), "{path}: {series:?}");
            assert_eq!(series[0]["total_clicks"], 3, "{path}");
        }
    }
}

#[tokio::test]
async fn a_conversion_without_its_click_counts_as_human() {
    let server = Server::start().await;
    let model = Model::create(&server, 9, 30).await;
    let mut bytes = Vec::new();
    let mut lonely = model.clicks[0].row.clone();
    (lonely.koff, lonely.click.click_id) = (77, "lonely".to_owned());
    let clicked_at = lonely.occurred_at();
    schemas::row::write_conversion(&stats_model::conversion(&lonely, clicked_at), &mut bytes);
    let query = |class| Query { link: None, class, start: midnight(DAYS), end: Utc::now() };
    let of = async |class: &str| {
        let class =
            format!("/api/stats?class={class}&interval=month&start_date={}", midnight(DAYS).date_naive());
        get(&server, &class).await["conversions"].as_u64().unwrap()
    };
    let before = [of("human").await, of("bot").await, of("all").await];
    stats_model::store_conversions(&server, bytes).await;
    let after = [of("human").await, of("bot").await, of("all").await];
    assert_eq!(after, [before[0] + 1, before[1], before[2] + 1]);
    let clicks = model.clicks(query(None)).count() as u64;
    assert!(before[2] > 0 && before[2] < clicks);
}
