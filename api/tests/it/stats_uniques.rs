//! How far uniques are from the exact number; `docs/uniques.md` has the table that this prints.

use reqwest::Method;
use schemas::id::{LinkId, WorkspaceId};
use serde_json::{Value, json};

use crate::server::{Server, text};
use crate::stats_model::{self, midnight};

/// Visitors of a link, and how many links have so many.
const SIZES: [(u64, u64); 10] = [
    (1, 1),
    (100, 5),
    (500, 5),
    (1_000, 5),
    (4_000, 5),
    (5_000, 5),
    (10_000, 5),
    (30_000, 5),
    (100_000, 3),
    (1_000_000, 1),
];

/// A link, and who clicked it.
struct Counted {
    link: LinkId,
    visitors: u64,
    seed: u64,
    /// Days over which the clicks are spread.
    days: u64,
}

/// How far off, in percent: the mean and the most.
#[derive(Default)]
struct Errors {
    sum: f64,
    most: f64,
    links: f64,
}

impl Errors {
    fn note(&mut self, shown: &Value, exact: u64) {
        let error = (shown.as_f64().unwrap() - exact as f64).abs() / exact as f64 * 100.0;
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
        "INSERT INTO clicks_1 (workspace_id, link_id, occurred_at, click_id, class, visitor, country, src, koff, broker_ts)
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

async fn unique(server: &Server, path: &str, pointer: &str) -> Value {
    let answer = server.send(Method::GET, path, None).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body.pointer(pointer).unwrap().clone()
}

#[tokio::test]
#[allow(clippy::print_stdout, reason = "the table is what the test is for")]
async fn uniques_are_exact_for_few_and_nearly_so_for_many_in_one_day_and_across_thirty() {
    let server = Server::start().await;
    let mut links = Vec::new();
    for (visitors, count) in SIZES {
        for (seed, days) in (0..count).flat_map(|seed| [(seed, 1), (seed, 30)]) {
            let link = server.create_link(json!({"name": "a", "destination": "https://example.com"})).await;
            links.push(Counted { link: text(&link["id"]).parse().unwrap(), visitors, seed, days });
        }
    }
    store(&server, &links, 1).await;
    store(&server, &links, 30).await;
    stats_model::close(&server, 1..32, 3).await;
    println!("| visitors | links | window | totals: mean | most | breakdowns: mean | most |");
    println!("|---:|---:|---|---:|---:|---:|---:|");
    for (visitors, count) in SIZES {
        for days in [1, 30] {
            let (mut counts, mut breakdowns) = (Errors::default(), Errors::default());
            let these = links.iter().filter(|counted| (counted.visitors, counted.days) == (visitors, days));
            for Counted { link, .. } in these {
                let window = format!("start_date={}", midnight(31).date_naive());
                let path = format!("/api/links/{link}/stats?{window}");
                counts.note(&unique(&server, &path, "/unique_clicks").await, visitors);
                let path = format!("/api/links/{link}/stats/country?{window}");
                breakdowns.note(&unique(&server, &path, "/items/0/unique_clicks").await, visitors);
            }
            println!(
                "| {visitors} | {count} | {days} d | {:.2} % | {:.2} % | {:.2} % | {:.2} % |",
                counts.mean(),
                counts.most,
                breakdowns.mean(),
                breakdowns.most
            );
            let exact = |errors: &Errors| errors.most == 0.0;
            assert!(exact(&counts) || visitors > 4_000, "{visitors}");
            assert!(exact(&breakdowns) || visitors > 500, "{visitors}");
            assert!(counts.most < 0.8 && breakdowns.most < 2.5, "{visitors}");
        }
    }
}
