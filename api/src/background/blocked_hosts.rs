//! Keeps the blocked hosts of destinations in memory.

use std::time::Duration;

use service::{LogLimit, Shutdown};

use crate::app::App;
use crate::store::blocked_hosts;

/// How long a new block may be unknown to an instance.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// Reads the blocked hosts every second until shutdown. Without Postgres the last ones stay.
pub(crate) async fn follow(app: App, shutdown: Shutdown) {
    let log_limit = LogLimit::default();
    while !shutdown.requested() {
        match blocked_hosts::all(&app.pool).await {
            Ok(hosts) => app.destinations.set_blocked(hosts),
            Err(error) if log_limit.is_due() => {
                tracing::warn!("cannot read blocked hosts, the former ones stay: {error}");
            }
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = shutdown.wait() => return,
        }
    }
}
