//! The program, as somebody runs it: a run is short here, and its numbers mean nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use serde_json::Value;

#[test]
fn a_run_delivers_every_click_once_and_says_which_bars_are_met() {
    let arguments = [
        "deliver",
        "--deliveries",
        "400",
        "--pairs",
        "1",
        "--endpoints",
        "40",
        "--holes",
        "20",
        "--backlog",
        "400",
        "--rate",
        "40",
        "--seconds",
        "3",
        "--json",
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_bench")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    for throughput in result["throughput"].as_array().unwrap() {
        assert!(throughput["ratio"]["median"].as_f64().unwrap() > 0.0, "{throughput}");
    }
    for latency in [&result["latency"], &result["isolation"]["alone"], &result["isolation"]["beside"]] {
        let requests = latency["requests"].as_u64().unwrap();
        assert!((119..=121).contains(&requests), "{result}");
        assert!(latency["p50_ms"].as_u64() <= latency["p99_ms"].as_u64(), "{result}");
    }
    assert_eq!(result["memory"]["backlog"], 400, "{result}");
    assert_eq!(result["bars"].as_array().unwrap().len(), 7, "{result}");
}
