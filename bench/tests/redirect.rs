//! The program, as somebody runs it: a run is short here, and its numbers mean nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use serde_json::Value;

#[test]
fn a_run_compares_pairs_of_rounds_and_finds_every_click_on_the_topic() {
    // As long as the sustained load must be for one look at the spool.
    let arguments = [
        "redirect",
        "--pairs",
        "1",
        "--seconds",
        "1",
        "--warm-up",
        "1",
        "--sustained-seconds",
        "11",
        "--json",
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_bench")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (clicks, redirect) = (&result["clicks"], &result["redirect"][0]);
    assert!(clicks["answered"].as_u64() > redirect["requests"].as_u64(), "the warm-up clicks too: {result}");
    assert_eq!(clicks["answered"], clicks["on_topic"], "{result}");
    assert!(clicks["visitors"].as_u64().unwrap() > 1, "{result}");
    assert!(result["ratio"]["median"].as_f64().unwrap() > 0.0, "{result}");
    assert!(redirect["cpu_us_per_request"].as_f64() > redirect["shipping"]["cpu_us_per_request"].as_f64());

    let (open, sustained, outage) = (&result["open"], &result["sustained"], &result["outage"]);
    assert!(result["peers"].as_array().unwrap().iter().any(|peer| peer["name"] == "warp::serve"), "{result}");
    assert!(open["p99_ratio"]["median"].as_f64().unwrap() > 0.0, "{open}");
    assert!(
        open["redirect"][0]["requests"].as_f64()
            > open["requests_per_second"].as_f64().map(|rate| rate * 0.9)
    );
    assert_eq!(sustained["looks"].as_array().unwrap().len(), 1, "{sustained}");
    assert!(outage["ratio"].as_f64().unwrap() > 0.0, "{outage}");
    assert_eq!(outage["clicks"]["answered"], outage["clicks"]["on_topic"], "{outage}");
}
