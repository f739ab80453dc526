//! Replays while clicks arrive, killed at each step.

use tests::clicks::{Clicks, Plan};
use tests::counted::{all_counted, is_exact, more_rows};
use tests::engines::counting;
use tests::processor::{Processor, Step, command, kill_at};

#[tokio::test(flavor = "multi_thread")]
async fn each_click_is_one_row_after_killed_replays_under_load() {
    let engines = counting().await;
    let clicks = Clicks::start(&engines, Plan { poison_every: 500, ..Plan::at(500) });
    let processor = Processor::start(&engines).await;
    clicks.more(3_000).await;
    // Without a stored row there is nothing to replay.
    more_rows(&engines).await;
    for _ in 0..3 {
        kill_at(&engines, Step::Begun, command(&engines, &["replay", "--from", "earliest"])).await;
        // The processor of live clicks is killed as well.
        processor.server.kill().await;
        processor.server.start().await.unwrap();
        clicks.more(500).await;
    }
    // Rows are lost in the middle of a source: a replay adds only these, while more clicks arrive.
    engines.clickhouse("DELETE FROM clicks WHERE koff >= 50 AND koff < 100").await;
    let replay = command(&engines, &["replay", "--from", "earliest"]).output().await.unwrap();
    assert!(replay.status.success(), "{}", String::from_utf8_lossy(&replay.stderr));
    clicks.more(500).await;
    let ledger = clicks.stop().await;
    all_counted(&engines, &ledger).await;
    processor.stop().await;
    is_exact(&engines, &ledger).await;
}
