//! `processor close-again`: computes the rollups of closed slices again.

use std::fmt;

use anyhow::{Context as _, bail};
use chrono::NaiveDate;
use serde::Serialize;

use crate::Config;
use crate::upkeep::{self, When};

/// The slices that were closed again.
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
    let (store, tables) = (config.store("close-again"), config.upkeep_store());
    let last = tables.last_closed_slice().await.context("cannot read the closed slices")?;
    if let Some(open) = slices.iter().find(|slice| last.is_none_or(|last| **slice > last)) {
        bail!("slice {open} is not closed yet: processors close it after its day has ended");
    }
    for slice in slices {
        let closed = upkeep::close_again(&store, &tables, *slice, When::Always).await;
        closed.with_context(|| format!("cannot close slice {slice} again"))?;
        tracing::info!(%slice, "closed slice {slice} again");
    }
    Ok(Outcome { slices: slices.to_vec() })
}
