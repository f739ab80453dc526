//! Webhooks by one dispatcher and by several.

use super::report::Round;
use crate::deliver::{Dispatched, dispatch};

/// Endpoints of the deliveries.
const ENDPOINTS: usize = 1_000;

/// Lets dispatchers share this number of deliveries.
pub(super) async fn round(dispatchers: usize, deliveries: u32) -> anyhow::Result<Round> {
    let Dispatched { deliveries, per_second, cpu } =
        dispatch(dispatchers, ENDPOINTS, deliveries as usize).await?;
    Ok(Round { per_second, cpu: vec![("dispatchers", cpu.as_secs_f64() * 1e6 / deliveries as f64)] })
}
