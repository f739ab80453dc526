//! The log is read again while clicks come, and whoever reads it is killed at each step.

use std::process::Stdio;

use tests::clicks::{Clicks, Plan};
use tests::counted::{all_counted, clicks as table, is_exact};
use tests::engines::counting;
use tests::eventually;
use tests::processor::{Processor, command, kill_after};

use crate::traffic::LONG;

/// What a killed replay says that it was; another one is refused until then.
const BROKEN_OFF: &str = "was broken off";

#[tokio::test(flavor = "multi_thread")]
async fn each_click_is_a_row_once_when_the_log_is_replayed_under_load_and_the_replay_is_killed_at_each_step()
{
    let engines = counting().await;
    let clicks = Clicks::start(&engines, Plan { poison_every: 500, ..Plan::at(500) });
    let processor = Processor::start(&engines).await;
    clicks.more(3_000).await;
    let replay = |arguments: &[&str]| {
        let mut program = command(&engines, &[&["replay"], arguments].concat());
        program.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut running = replay(&["--from", "earliest"]);
    for step in ["planned", "copied", "filled", "rolled_up"] {
        kill_after(&engines, step, &mut running).await;
        // The one that counts live clicks is killed as well, and goes on with the tables that it finds.
        processor.server.kill().await;
        processor.server.start().await.unwrap();
        eventually("it counts as dead", LONG, async || {
            let output = command(&engines, &["replay", "--from", "earliest"]).output().await.unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            if text.contains(BROKEN_OFF) { Ok(()) } else { Err(text) }
        })
        .await;
        running = replay(&["--resume"]);
    }
    let ended = running.wait().await.unwrap();
    assert!(ended.success(), "{ended}");
    assert_eq!(table(&engines).await, "clicks_2");
    // Those of this moment, too.
    clicks.more(500).await;
    let ledger = clicks.stop().await;
    all_counted(&engines, &ledger).await;
    eventually("every dead letter is written", LONG, async || {
        let written = tests::log::records(&engines, schemas::topic::DEAD_LETTERS).len();
        if written >= ledger.poison.len() { Ok(()) } else { Err(written) }
    })
    .await;
    processor.stop().await;
    is_exact(&engines, &ledger).await;
}
