//! Webhooks by one dispatcher and by several.

use std::time::Duration;

use ::tests::deployment::Deployment;
use ::tests::engines::isolated;

use super::report::Round;
use crate::cpu;
use crate::deliver::{finish, rate, received, receiver, stage::Stage};
use crate::server::{pid, start, stop};

/// Endpoints of the deliveries.
const ENDPOINTS: usize = 1_000;

/// Starts dispatchers with clicks on the topic, and waits until every request has arrived once.
pub(super) async fn round(count: usize, deliveries: u32) -> anyhow::Result<Round> {
    let receiver = receiver().await;
    let engines = isolated().await;
    let stage = Stage::create(&engines, &receiver.url("/"), ENDPOINTS).await?;
    let deliveries = stage.publish(deliveries as usize).await?;
    let deployment = Deployment::prepare(engines.clone());
    let others: Vec<_> = (1..count).map(|_| deployment.another_dispatcher()).collect();
    let mut dispatchers = Vec::new();
    for prepared in [&deployment.dispatcher].into_iter().chain(&others) {
        dispatchers.push(start(prepared).await?);
    }
    received(&receiver, deliveries).await?;
    stage.queue_is_empty().await?;
    let ids = dispatchers.iter().map(pid).collect::<anyhow::Result<Vec<u32>>>()?;
    let used = ids.into_iter().map(cpu::process).sum::<anyhow::Result<Duration>>()?;
    let per_second = rate(&receiver, deliveries)?;
    for dispatcher in &dispatchers {
        stop(dispatcher).await?;
    }
    finish(engines, stage).await;
    Ok(Round { per_second, cpu: vec![("dispatchers", used.as_secs_f64() * 1e6 / deliveries as f64)] })
}
