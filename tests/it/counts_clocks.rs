//! A processor with a wrong clock closes no day and removes nothing.

use chrono::Utc;
use serde_json::Value;
use tests::clicks::{Clicks, Plan};
use tests::counted::{all_counted, is_exact};
use tests::engines::{Isolated, counting, http_client};
use tests::eventually;
use tests::processor::Processor;

/// Inserts copies of all rows as other clicks, with broker times this many days ago.
async fn older_rows(engines: &Isolated, days: u32) {
    let copy = format!(
        "INSERT INTO clicks SELECT * REPLACE (src + 65536 * 8 AS src, broker_ts - INTERVAL {days} DAY AS broker_ts, \
         occurred_at - INTERVAL {days} DAY AS occurred_at, concat(click_id, '-{days}') AS click_id) FROM clicks \
         WHERE clicks.src < 65536 * 8 SETTINGS max_partitions_per_insert_block = 0"
    );
    engines.clickhouse(&copy).await;
}

async fn count(engines: &Isolated, sql: &str) -> u64 {
    engines.clickhouse(sql).await.trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_whose_clock_is_ahead_counts_clicks_closes_nothing_and_is_not_ready() {
    for ahead in [2 * 3_600, 365 * 86_400] {
        let engines = counting().await;
        let clicks = Clicks::start(&engines, Plan::at(200));
        let processor = Processor::prepare_ahead(&engines, ahead);
        processor.server.start().await.unwrap();
        clicks.more(400).await;
        eventually("some are counted", async || match count(&engines, "SELECT count() FROM clicks").await {
            0 => Err("none"),
            _ => Ok(()),
        })
        .await;
        // Rows that a plan still shows but would not show in a year, and a day that can be closed.
        for days in [1, 2, 20] {
            older_rows(&engines, days).await;
        }
        engines
            .clickhouse("INSERT INTO retention SELECT DISTINCT workspace_id, 30, now64(3) FROM clicks")
            .await;
        eventually("upkeep has refused to do anything", async || {
            match processor.metric("hopline_processor_upkeep_failures_total").await {
                0.0 => Err("it has not"),
                _ => Ok(()),
            }
        })
        .await;
        let answer = http_client().get(format!("{}/readyz", processor.server.url())).send().await.unwrap();
        let (status, answer) = (answer.status().as_u16(), answer.json::<Value>().await.unwrap());
        let detail = answer["checks"]["partitions"]["detail"].as_str().unwrap().to_owned();
        assert!(status == 503 && detail.contains("ahead of ClickHouse's"), "{answer}");
        let now = Utc::now().timestamp_millis();
        let said =
            format!("SELECT count() FROM progress WHERE as_of > fromUnixTimestamp64Milli({now}, 'UTC')");
        eventually("it is said up to when clicks are counted", async || match count(&engines, &said).await {
            0 => Err("it is not"),
            _ => Ok(()),
        })
        .await;
        assert_eq!(count(&engines, "SELECT count() FROM progress WHERE as_of > now64(3)").await, 0);
        assert_eq!(count(&engines, "SELECT count() FROM slices").await, 0);
        let old = "SELECT countIf(src >= 65536 * 8), uniqExact(toDate(broker_ts)) >= 4 FROM clicks";
        let before = engines.clickhouse(old).await;
        processor.stop().await;

        // A processor with the correct time closes it.
        let processor = Processor::start(&engines).await;
        eventually("days are closed", async || match count(&engines, "SELECT count() FROM slices").await {
            0 => Err("none"),
            _ => Ok(()),
        })
        .await;
        assert_eq!(engines.clickhouse(old).await, before, "no row was removed");
        engines.clickhouse("DELETE FROM clicks WHERE src >= 65536 * 8").await;
        let ledger = clicks.stop().await;
        all_counted(&engines, &ledger).await;
        processor.stop().await;
        // These slices are of rows that this test inserted and removed.
        engines.clickhouse("TRUNCATE TABLE slices").await;
        is_exact(&engines, &ledger).await;
    }
}
