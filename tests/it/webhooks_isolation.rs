//! No delivery waits for another endpoint. `./dev soak webhooks-isolation` is the long form, with meaningful latencies.

use tests::engines::isolated;
use tests::faults::{WebhookFlood, WebhookHoles, progress, webhook_flood, webhook_holes};

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_at_a_slow_endpoint_stays_within_its_limits_and_delays_no_other_workspace() {
    let flood = WebhookFlood { clicks: 3_000, connections: 16, rate: None };
    let flooded = webhook_flood(isolated().await, flood).await;
    progress(&flooded.to_string());
    flooded.is_contained();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_delivery_waits_for_a_black_hole_of_its_own_workspace_or_another() {
    let holes = WebhookHoles { workspaces: 4, each: 8, clicks: 40, rate: 12 };
    let beside = webhook_holes(isolated().await, holes).await;
    progress(&beside.to_string());
    beside.nobody_waited();
}
