//! The example receiver of the documentation, against real deliveries.

use std::path::Path;

use schemas::message::{Class, LinkEventKind};
use tests::PATIENCE;
use tests::receiver::start_example;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::world::{SECRET, World};

async fn output(mut child: Child) -> String {
    assert!(timeout(PATIENCE, child.wait()).await.unwrap().unwrap().success());
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).await.unwrap();
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_receiver_verifies_real_deliveries() {
    let world = World::new().await;
    let (example, url) = start_example(0, SECRET, &["--json", "--count", "2"]).await;
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
async fn the_example_receiver_rejects_another_secrets_signature() {
    let world = World::new().await;
    let (example, url) = start_example(0, SECRET, &["--secret", "whsec_other", "--count", "1"]).await;
    let workspace = world.workspace("business").await;
    let endpoint = world.endpoint(workspace, &url, &["click.created"]).await;
    let dispatcher = world.dispatcher().await;
    world.click(workspace, Class::Human).await;
    let printed = output(example).await;
    assert!(printed.contains("  click.created  ") && printed.ends_with("  NOT VERIFIED\n"), "{printed}");
    tests::eventually("its 400 is in the failure log", async || {
        match world.failures(endpoint).await.as_slice() {
            [(1, Some(400), None, _)] => Ok(()),
            other => Err(other.to_vec()),
        }
    })
    .await;
    dispatcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_receiver_rejects_late_and_changed_signatures() {
    // Checks a test vector, with different times and changes.
    const CHECKS: &str = r#"
from receiver import verify
secret, t, body = "whsec_test_secret", 1614265330, b'{"test": 2432232314}'
v1 = "10c96c6fd3f320fcfc264cdc4f476c15060ede8e8a08404cea2ddf3b72544a9c"
good = f"t={t},v1={v1}"
assert verify(secret, good, body, t)
assert verify(secret, good, body, t + 300) and verify(secret, good, body, t - 300)
assert not verify(secret, good, body, t + 301) and not verify(secret, good, body, t - 301)
assert verify(secret, f"t={t},v1={'0' * 64},v1={v1}", body, t)
assert not verify(secret, good, body + b" ", t)
for bad in ["", "t=", "v1=", f"v1={v1}", f"t={t}", f"t=-{t},v1={v1}", f"t=x,v1={v1}", f"t={t},t={t},v1={v1}",
            f"t={t},v1=", f"t={t},v1={v1.upper()}", f"t={t},v1=\u00e9", f"t={t},v0={v1}", "=,=,="]:
    assert not verify(secret, bad, body, t), bad
print("all checked")
"#;
    let output = Command::new("python3")
        .args(["-B", "-c", CHECKS])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/receiver"))
        .output()
        .await
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all checked\n", "{output:?}");
}
