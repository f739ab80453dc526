//! A processor with a wrong clock closes no day and removes nothing.

use chrono::Utc;
use tests::clicks::{Clicks, Plan};
use tests::counted::{all_counted, count, is_exact, more_rows};
use tests::engines::{Isolated, counting};
use tests::processor::Processor;
use tests::{eventually, metric, readyz};

/// Inserts copies of all rows as other clicks, with broker times this many days ago.
async fn older_rows(engines: &Isolated, days: u32) {
    let copy = format!(
        "INSERT INTO clicks SELECT * REPLACE (src + 65536 * 8 AS src, broker_ts - INTERVAL {days} DAY AS broker_ts, \
         occurred_at - INTERVAL {days} DAY AS occurred_at, concat(click_id, '-{days}') AS click_id) FROM clicks \
         WHERE clicks.src < 65536 * 8 SETTINGS max_partitions_per_insert_block = 0"
    );
    engines.clickhouse(&copy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_with_a_fast_clock_counts_but_closes_nothing() {
    for ahead in [2 * 3_600, 365 * 86_400] {
        let engines = counting().await;
        let clicks = Clicks::start(&engines, Plan::at(200));
        let processor = Processor::prepare_ahead(&engines, ahead);
        processor.server.start().await.unwrap();
        clicks.more(400).await;
        more_rows(&engines).await;
        // Rows that plans show now and not in a year, and a day that can be closed.
        for days in [1, 2, 20] {
            older_rows(&engines, days).await;
        }
        engines
            .clickhouse("INSERT INTO retention SELECT DISTINCT workspace_id, 30, now64(3) FROM clicks")
            .await;
        eventually("upkeep fails", async || {
            match metric(processor.server.url(), "hopline_processor_upkeep_failures_total").await {
                0.0 => Err(0),
                _ => Ok(()),
            }
        })
        .await;
        eventually("the processor names the clocks", async || {
            let (status, answer) = readyz(processor.server.url()).await;
            let detail = answer["checks"]["partitions"]["detail"].as_str().unwrap_or_default();
            if status == 503 && detail.contains("ahead of ClickHouse's") { Ok(()) } else { Err(answer) }
        })
        .await;
        let now = Utc::now().timestamp_millis();
        let progress =
            format!("SELECT count() FROM progress WHERE as_of > fromUnixTimestamp64Milli({now}, 'UTC')");
        eventually("progress is written", async || match count(&engines, &progress).await {
            0 => Err(0),
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
