//! The program, as somebody runs it: a run is short here, and its numbers mean nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use serde_json::Value;

#[test]
fn a_run_tells_what_links_cost_how_long_a_start_takes_and_how_soon_changes_are_seen() {
    let arguments = ["links", "--links", "5000", "--start-links", "100", "--changes", "5", "--json"];
    let output = Command::new(env!("CARGO_BIN_EXE_bench")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (memory, edge) = (&result["memory"], &result["edge"]);
    assert!(memory["bytes_per_link"].as_f64() > memory["string_bytes_per_link"].as_f64(), "{result}");
    assert!(edge["start_to_ready_seconds"].as_f64().unwrap() > 0.0, "{result}");
    assert_eq!(edge["changes"], 5, "{result}");
    assert!(edge["change_p99_us"].as_u64() <= edge["change_max_us"].as_u64(), "{result}");
}
