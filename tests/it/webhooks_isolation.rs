//! No delivery waits for another endpoint. `./dev soak webhooks-isolation` is the long form, with meaningful latencies.

use tests::engines::isolated;
use tests::faults::{WebhookFlood, WebhookHoles, progress, webhook_flood, webhook_holes};

#[tokio::test(flavor = "multi_thread")]
async fn a_flooded_endpoint_delays_no_other_workspace() {
    let flood = WebhookFlood { clicks: 3_000, connections: 16, rate: None };
    let flooded = webhook_flood(isolated().await, flood).await;
    progress(&flooded.to_string());
    flooded.is_contained();
}

#[tokio::test(flavor = "multi_thread")]
async fn black_holes_delay_no_delivery() {
    let holes = WebhookHoles { workspaces: 4, each: 8, clicks: 40, rate: 12 };
    let beside = webhook_holes(isolated().await, holes).await;
    progress(&beside.to_string());
    beside.no_delivery_waited();
}
