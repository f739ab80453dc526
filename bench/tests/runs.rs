//! Short runs of the program; their figures mean nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use serde_json::Value;

/// Runs `bench --json` with these arguments and returns its result.
fn bench(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_bench")).arg("--json").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn deliver_sends_every_click_once() {
    let counts = ["--deliveries=400", "--pairs=1", "--endpoints=40", "--rate=40", "--seconds=3"];
    let result = bench(&[&["deliver"], &counts[..]].concat());
    for throughput in result["throughput"].as_array().unwrap() {
        assert!(throughput["ratio"]["median"].as_f64().unwrap() > 0.0, "{throughput}");
    }
    let latency = &result["latency"];
    // The clock decides how many are due; the run itself checks that each click was delivered.
    assert!(latency["requests"].as_u64() > Some(0), "{result}");
    assert!(latency["p50_ms"].as_u64() <= latency["p99_ms"].as_u64(), "{result}");
    assert_eq!(result["bars"].as_array().unwrap().len(), 5, "{result}");
}

#[test]
fn process_makes_every_click_a_row_each_way() {
    let result = bench(&["process", "--clicks=5000", "--pairs=1", "--rates=200", "--seconds=2"]);
    let ways = result["ways"].as_array().unwrap();
    assert_eq!(ways.len(), 5, "{result}");
    for way in ways {
        assert!(way["rows_per_second"]["median"].as_f64().unwrap() > 0.0, "{way}");
    }
    // The clock decides how many are due; the run itself checks that each became a row.
    assert!(result["freshness"][0]["clicks"].as_u64() > Some(0), "{result}");
    assert!(result["freshness"][0]["p50_ms"].as_u64() <= result["freshness"][0]["p99_ms"].as_u64());
    assert_eq!(result["bars"].as_array().unwrap().len(), 5, "{result}");
}

#[test]
fn scale_makes_every_click_a_row_each_way() {
    let few = ["--clicks=5000", "--rounds=1", "--seconds=1", "--deliveries=400", "--clusters=2x2"];
    let result = bench(&[&["scale"], &few[..]].concat());
    let ways = result["ways"].as_array().unwrap();
    assert_eq!(ways.len(), 5 + 2 + 3, "{result}");
    for way in ways {
        assert!(way["per_second"]["median"].as_f64().unwrap() > 0.0, "{way}");
        assert!(way["cpu_ratio"]["median"].as_f64().unwrap() > 0.0, "{way}");
    }
}

#[test]
fn redirect_finds_every_click_on_the_topic() {
    let result = bench(&["redirect", "--pairs=1", "--seconds=1"]);
    let (clicks, redirect, open) = (&result["clicks"], &result["redirect"][0], &result["open"]);
    assert!(clicks["answered"].as_u64() > redirect["requests"].as_u64(), "the warm-up clicks too: {result}");
    assert_eq!(clicks["answered"], clicks["on_topic"], "{result}");
    assert!(clicks["visitors"].as_u64().unwrap() > 1, "{result}");
    assert!(result["ratio"]["median"].as_f64().unwrap() > 0.0, "{result}");
    assert!(redirect["cpu_us_per_request"].as_f64() > redirect["shipping"]["cpu_us_per_request"].as_f64());
    assert!(open["p99_ratio"]["median"].as_f64().unwrap() > 0.0, "{open}");
    // As many as are due in a second, however late they are sent.
    let [due, sent] = [&open["requests_per_second"], &open["redirect"][0]["requests"]];
    assert!((sent.as_f64().unwrap() - due.as_f64().unwrap()).abs() < 2.0, "{open}");
}
