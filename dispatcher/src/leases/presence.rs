//! Finds dead dispatchers, so that their deliveries are released promptly instead of when the leases expire.

use std::collections::HashMap;
use std::time::Duration;

use service::LogLimit;
use service::postgres::accepts_writes;
use sqlx::{ConnectOptions as _, PgConnection, PgPool};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::store;

/// How often to check.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A dispatcher counts as dead after it was missing in this many consecutive checks. In that time, a running dispatcher
/// that only lost its connection registers again, also after a restart of Postgres.
const MISSED_CHECKS: u32 = 4;

/// Timeout of a check, and of releasing one dispatcher's leases.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Registers this dispatcher and releases the leases of dead ones, until nobody receives its number any more: while it
/// finishes attempts after a stop was requested, others must not take its leases over.
///
/// `number` is this dispatcher's number in leases; `None` before the first registration.
pub(crate) async fn watch_over(pool: PgPool, number: watch::Sender<Option<i32>>) {
    tokio::select! {
        () = number.closed() => {}
        () = watch_on(&pool, &number) => {}
    }
}

async fn watch_on(pool: &PgPool, number: &watch::Sender<Option<i32>>) {
    let mut connection: Option<PgConnection> = None;
    let log_limit = LogLimit::default();
    let mut suspects: HashMap<i32, u32> = HashMap::new();
    let mut checks = interval(CHECK_INTERVAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        checks.tick().await;
        match within(check(pool, &mut connection, number)).await {
            Ok(dead) => {
                let checks = |other: &i32| suspects.get(other).copied().unwrap_or_default() + 1;
                suspects = dead.iter().map(|other| (*other, checks(other))).collect();
            }
            Err(failure) => {
                if log_limit.is_due() {
                    tracing::warn!("cannot register with other dispatchers: {failure}");
                }
                connection = None;
                suspects.clear();
            }
        }
        // On another connection with its own timeout, so that this dispatcher stays registered however slow it is.
        for (&other, _) in suspects.iter().filter(|(_, checks)| **checks >= MISSED_CHECKS) {
            if let Err(failure) = within(release_leases(pool, other)).await {
                tracing::warn!("cannot release the leases of dispatcher {other}: {failure}");
            }
        }
    }
}

/// Waits for an answer of Postgres until the timeout.
async fn within<T>(answer: impl Future<Output = sqlx::Result<T>>) -> Result<T, String> {
    match timeout(TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {TIMEOUT:?}")),
    }
}

/// Ensures that this dispatcher is registered, and returns those that are no longer running.
async fn check(
    pool: &PgPool,
    connection: &mut Option<PgConnection>,
    number: &watch::Sender<Option<i32>>,
) -> sqlx::Result<Vec<i32>> {
    let connection = match connection {
        Some(connection) => connection,
        None => {
            // Keep-alives let Postgres notice a machine that vanished without closing its connection.
            let options = pool.connect_options().as_ref().clone().application_name("dispatcher-presence");
            let options = options.options([
                ("tcp_keepalives_idle", "5"),
                ("tcp_keepalives_interval", "2"),
                ("tcp_keepalives_count", "3"),
            ]);
            let mut opened = options.connect().await?;
            if !accepts_writes(&mut opened).await? {
                return Err(sqlx::Error::Configuration("this host is a standby".into()));
            }
            connection.insert(opened)
        }
    };
    let known = *number.borrow();
    let own = store::register(connection, known).await?;
    number.send_if_modified(|number| number.replace(own) != Some(own));
    store::dead(connection).await
}

/// Releases the leases of a dead dispatcher.
async fn release_leases(pool: &PgPool, other: i32) -> sqlx::Result<()> {
    if let Some(freed) = store::remove_dead(pool, other).await? {
        metrics::counter!("hopline_webhook_leases_taken_over_total").increment(freed);
        tracing::info!(
            dispatcher = other,
            deliveries = freed,
            "dispatcher {other} is dead; released {freed} deliveries"
        );
    }
    Ok(())
}
