//! `processor close-again`: computes the rollups of closed slices again.

use std::fmt;

use anyhow::{Context as _, bail};
use chrono::NaiveDate;
use schemas::topic;
use serde::Serialize;
use service::clickhouse::client;

use crate::Config;
use crate::log::Log;
use crate::store::Store;
use crate::upkeep::{self, Tables, When};

/// What was done.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    slices: Vec<NaiveDate>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slices.iter().try_for_each(|slice| writeln!(f, "closed slice {slice} again"))
    }
}

/// Closes slices again, one after the other.
///
/// # Errors
/// When one of them is not closed yet, or an engine fails.
pub(super) async fn close_again(config: &Config, slices: &[NaiveDate]) -> anyhow::Result<Outcome> {
    let kafka = &config.kafka;
    let log = Log::new(kafka, &kafka.topic(topic::CLICKS.name), &kafka.topic(config.group))?;
    let store = Store::new(client(&config.clickhouse), format!("close-again {}", std::process::id()));
    let tables = Tables::new(client(&config.clickhouse));
    let last = tables.last_closed_slice().await.context("cannot read the closed slices")?;
    if let Some(open) = slices.iter().find(|slice| last.is_none_or(|last| **slice > last)) {
        bail!("slice {open} is not closed yet: processors close it when its day is over");
    }
    for slice in slices {
        let closed =
            upkeep::close_again(store.clone(), tables.clone(), log.clone(), *slice, When::Always).await;
        closed.with_context(|| format!("slice {slice} was not closed again"))?;
        tracing::info!(%slice, "closed slice {slice} again");
    }
    Ok(Outcome { slices: slices.to_vec() })
}
