//! Redirects by one edge and by several that share a load.

use std::time::Duration;

use ::tests::deployment::Deployment;
use ::tests::engines::topics;
use ::tests::links;
use futures_util::future::try_join_all;

use super::report::Round;
use crate::load::Load;
use crate::redirect::{CONNECTIONS, Edge, LINKS, WARM_UP, tally};
use crate::server::stop;

/// Starts edges, each with its part of the connections, and checks that no click is missing.
pub(super) async fn round(count: usize, seconds: u32) -> anyhow::Result<Round> {
    let engines = topics().await;
    let slugs = links::publish(&engines, LINKS);
    let load = Load::visits(CONNECTIONS / count, &slugs);
    let (mut deployments, mut edges) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let deployment = Deployment::prepare(engines.clone());
        edges.push(Edge::start(&deployment, &slugs).await?);
        deployments.push(deployment);
    }
    try_join_all(edges.iter_mut().map(|edge| edge.round(&load, WARM_UP))).await?;
    let duration = Duration::from_secs(seconds.into());
    let rounds = try_join_all(edges.iter_mut().map(|edge| edge.round(&load, duration))).await?;
    for edge in &edges {
        stop(&edge.server).await?;
    }
    tally::count(&engines, edges.iter().map(|edge| edge.answered).sum())?;
    engines.remove_topics().await;
    let per_second = rounds.iter().map(|round| round.requests_per_second).sum();
    let cpu: f64 = rounds.iter().map(|round| round.cpu_us_per_request * round.requests_per_second).sum();
    Ok(Round { per_second, cpu: vec![("ingest", cpu / per_second)] })
}
