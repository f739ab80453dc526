//! The example receiver of the documentation, against real deliveries.

use std::path::Path;
use std::process::Stdio;

use schemas::message::{Class, LinkEventKind};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::world::{SECRET, SOON, World};

/// Starts the example on a free port, and returns it with its URL.
async fn start(arguments: &[&str]) -> (Child, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/receiver/receiver.py");
    let mut child = Command::new("python3")
        .arg(script)
        .args(["--port", "0"])
        .args(arguments)
        .env("WEBHOOK_SECRET", SECRET)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = timeout(SOON, lines.next_line()).await.unwrap().unwrap().unwrap();
    let url = line.strip_prefix("listening on ").unwrap().to_owned();
    (child, url)
}

async fn output(mut child: Child) -> String {
    assert!(timeout(SOON, child.wait()).await.unwrap().unwrap().success());
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).await.unwrap();
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_receiver_verifies_real_deliveries() {
    let world = World::new().await;
    let (example, url) = start(&["--json", "--count", "2"]).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &url, &["click.created", "link.created"]).await;
    let dispatcher = world.dispatcher().await;
    let click = world.click(workspace, Class::Human).await;
    world.link_event(workspace, LinkEventKind::Created).await;

    let printed = output(example).await;
    let mut lines: Vec<serde_json::Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.sort_by_key(|line| line["event"].to_string());
    assert_eq!(lines.len(), 2, "{printed}");
    assert!(lines.iter().all(|line| line["verified"] == true && line["body"]["id"] == line["delivery"]));
    assert_eq!((&lines[0]["event"], &lines[1]["event"]), (&"click.created".into(), &"link.created".into()));
    assert_eq!(lines[0]["body"]["data"]["click_id"], click);
    dispatcher.stop().await;
    assert_eq!(world.failures(endpoint).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_receiver_refuses_another_secrets_signature() {
    let world = World::new().await;
    let (example, url) = start(&["--secret", "whsec_other", "--count", "1"]).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &url, &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    world.click(workspace, Class::Human).await;
    let printed = output(example).await;
    assert!(printed.contains("  click.created  ") && printed.ends_with("  NOT VERIFIED\n"), "{printed}");
    tests::eventually("its 400 is in the failure log", SOON, async || {
        match world.failures(endpoint).await.as_slice() {
            [(1, Some(400), None, _)] => Ok(()),
            other => Err(other.to_vec()),
        }
    })
    .await;
    dispatcher.stop().await;
}
