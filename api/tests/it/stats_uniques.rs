//! The error of uniques; `docs/measurements/uniques.md` has the table that this prints.

use reqwest::Method;
use schemas::clickhouse::EXACT_VISITORS;
use schemas::id::{LinkId, WorkspaceId};
use serde_json::{Value, json};

use crate::server::{Server, text};
use crate::stats_model::{self, midnight};

/// Numbers of visitors, each with the number of links that have it.
const SIZES: [(u64, u64); 9] = [
    (1, 1),
    (100, 5),
    (1_000, 5),
    (4_095, 5),
    (5_000, 5),
    (10_000, 5),
    (30_000, 5),
    (100_000, 3),
    (1_000_000, 1),
];

/// A link and its visitors.
struct Counted {
    link: LinkId,
    visitors: u64,
    seed: u64,
    /// Days over which the clicks are spread.
    days: u64,
}

/// Errors in percent: their sum, their maximum and their number.
#[derive(Default)]
struct Errors {
    sum: f64,
    most: f64,
    links: f64,
}

impl Errors {
    fn note(&mut self, shown: &Value, exact: u64) {
        let error = (shown["unique_clicks"].as_f64().unwrap() - exact as f64).abs() / exact as f64 * 100.0;
        self.sum += error;
        self.most = self.most.max(error);
        self.links += 1.0;
    }

    fn mean(&self) -> f64 {
        self.sum / self.links
    }
}

/// Stores clicks of links: all visitors on one day, or each on one of 30 days and half of them on another one too.
async fn store(server: &Server, links: &[Counted], days: u64) {
    let workspace: WorkspaceId = server.workspace.parse().unwrap();
    let of_these: Vec<String> = links
        .iter()
        .filter(|counted| counted.days == days)
        .map(|counted| format!("(toUUID('{}'), {}, {})", counted.link.uuid(), counted.visitors, counted.seed))
        .collect();
    let query = format!(
        "INSERT INTO clicks (workspace_id, link_id, occurred_at, click_id, class, visitor, country, \
            src, koff, broker_ts)
         SELECT toUUID('{}'), one.1,
                addMilliseconds(toDateTime64('{}', 3, 'UTC'), cityHash64(n, one.3, 'time') % (86400000 * {days})) AS at,
                toString(n), 'human', cityHash64(n % one.2, one.3), 'DE', 65536, n, at
         FROM (SELECT arrayJoin([{}]) AS one)
         ARRAY JOIN range({}) AS n
         SETTINGS max_partitions_per_insert_block = 0, max_block_size = 1",
        workspace.uuid(),
        midnight(days).format("%Y-%m-%d 00:00:00"),
        of_these.join(", "),
        if days == 1 { "one.2" } else { "one.2 + intDiv(one.2, 2)" },
    );
    server.engines.clickhouse(&query).await;
}

/// Creates a link for each of these numbers of visitors; no two links share a visitor.
async fn create(server: &Server, sizes: &[(u64, u64)], days: &[u64]) -> Vec<Counted> {
    let mut links = Vec::new();
    for (visitors, count) in sizes {
        for (seed, days) in (0..*count).flat_map(|seed| days.iter().map(move |days| (seed, *days))) {
            let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
            let link = text(&link["id"]).parse().unwrap();
            links.push(Counted { link, visitors: *visitors, seed, days });
        }
    }
    for days in days {
        store(server, &links, *days).await;
    }
    links
}

/// Returns a link's counts, or those of its only country, and checks that visitors never exceed clicks.
async fn counts(server: &Server, link: LinkId, path: &str, pointer: &str) -> Value {
    let path = format!("/api/links/{link}/{path}start_date={}", midnight(31).date_naive());
    let answer = server.send(Method::GET, &path, None).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let counts = answer.body.pointer(pointer).unwrap();
    let [unique, total] = ["unique_clicks", "total_clicks"].map(|count| counts[count].as_u64().unwrap());
    assert!(unique <= total, "{path}: {unique} visitors of {total} clicks");
    counts.clone()
}

/// Each visitor clicks once, so an estimate that is too high by one would exceed the clicks.
#[tokio::test]
async fn uniques_never_exceed_clicks() {
    let server = Server::start().await;
    let links = create(&server, &[(637, 3), (4_095, 3), (5_000, 6), (20_000, 6)], &[1]).await;
    for closed in [false, true] {
        if closed {
            stats_model::close(&server, 1..2, 3).await;
        }
        for Counted { link, visitors, .. } in &links {
            for (path, pointer) in [
                ("stats?", ""),
                ("stats?interval=day&", "/series/30"),
                ("stats/country?", "/items/0"),
                ("stats/class?", "/items/0"),
            ] {
                let shown = counts(&server, *link, path, pointer).await;
                assert_eq!(shown["total_clicks"], *visitors);
                if *visitors < EXACT_VISITORS {
                    assert_eq!(shown["unique_clicks"], *visitors, "{path}");
                }
            }
        }
    }
}

#[tokio::test]
#[allow(clippy::print_stdout, reason = "the documentation has the printed table")]
async fn uniques_are_exact_for_few_and_close_for_many() {
    let server = Server::start().await;
    let links = create(&server, &SIZES, &[1, 30]).await;
    stats_model::close(&server, 1..32, 3).await;
    println!("| visitors | links | window | totals: mean | most | breakdowns: mean | most |");
    println!("|---:|---:|---|---:|---:|---:|---:|");
    for (visitors, count) in SIZES {
        for days in [1, 30] {
            let (mut totals, mut breakdowns) = (Errors::default(), Errors::default());
            let these = links.iter().filter(|counted| (counted.visitors, counted.days) == (visitors, days));
            for Counted { link, .. } in these {
                totals.note(&counts(&server, *link, "stats?", "").await, visitors);
                breakdowns.note(&counts(&server, *link, "stats/country?", "/items/0").await, visitors);
            }
            println!(
                "| {visitors} | {count} | {days} d | {:.2} % | {:.2} % | {:.2} % | {:.2} % |",
                totals.mean(),
                totals.most,
                breakdowns.mean(),
                breakdowns.most
            );
            for errors in [totals, breakdowns] {
                assert!(errors.most == 0.0 || visitors >= EXACT_VISITORS, "{visitors}");
                assert!(errors.most < 0.8, "{visitors}");
            }
        }
    }
}
