//! The program, as somebody runs it: a run is short here, and its numbers mean nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use serde_json::Value;

#[test]
fn a_run_takes_every_click_each_way_once_and_says_which_bars_are_met() {
    let arguments =
        ["process", "--clicks", "5000", "--pairs", "1", "--rates", "200", "--seconds", "2", "--json"];
    let output = Command::new(env!("CARGO_BIN_EXE_bench")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ways = result["ways"].as_array().unwrap();
    assert_eq!(ways.len(), 5, "{result}");
    for way in ways {
        assert!(way["rows_per_second"]["median"].as_f64().unwrap() > 0.0, "{way}");
    }
    // How many are due until it stops is the clock's; that each of them became a row is the run's own condition.
    assert!(result["freshness"][0]["clicks"].as_u64() > Some(0), "{result}");
    assert!(result["freshness"][0]["p50_ms"].as_u64() <= result["freshness"][0]["p99_ms"].as_u64());
    assert_eq!(result["bars"].as_array().unwrap().len(), 5, "{result}");
}
