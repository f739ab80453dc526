//! Webhooks while dispatchers are killed and stopped, and during outages of engines. `./dev soak webhooks-kills`,
//! `webhooks-outages` and `webhooks-verify` are the long forms.

use std::time::Duration;

use tests::engines::isolated;
use tests::faults::{
    Promotion, WebhookFreezes, WebhookKills, WebhookOutages, WebhookStops, progress, promotion,
    webhook_freezes, webhook_kills, webhook_outages, webhook_stops,
};

#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_delivered_under_one_id_when_dispatchers_are_killed() {
    let arrivals =
        webhook_kills(isolated().await, WebhookKills { kills: 4, connections: 8, rate: 100 }).await;
    progress(&format!("dispatchers killed: {arrivals}"));
    arrivals.are_complete();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_delivered_when_dispatchers_are_frozen() {
    let freezes = WebhookFreezes { freezes: 2, connections: 8, rate: 100 };
    let arrivals = webhook_freezes(isolated().await, freezes).await;
    progress(&format!("dispatchers frozen: {arrivals}"));
    arrivals.are_complete();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_delivered_after_outages_of_kafka_and_postgres() {
    // Shorter than in the edge's test, which stops Kafka for a minute.
    let down = Duration::from_secs(15);
    let arrivals = webhook_outages(WebhookOutages { down, connections: 8, rate: 50 }).await;
    progress(&format!("Kafka and Postgres stopped for {down:?} each: {arrivals}"));
    arrivals.are_complete();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_standby_loses_no_event_and_no_link() {
    let arrivals = promotion(Promotion { connections: 8, rate: 50 }).await;
    progress(&format!("a standby promoted: {arrivals}"));
    arrivals.are_complete();
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_dispatchers_lose_and_repeat_nothing() {
    let stops = WebhookStops { stops: 3, connections: 8, rate: 50 };
    let arrivals = webhook_stops(isolated().await, stops).await;
    progress(&format!("dispatchers stopped: {arrivals}"));
    arrivals.are_complete();
    assert_eq!(arrivals.repeats, arrivals.reasons.logged, "only failed attempts are repeated: {arrivals}");
}
