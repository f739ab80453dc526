//! Who is running: so that what a killed dispatcher held is taken over at once, not when its leases run out.

use std::{collections::HashMap, time::Duration};

use service::Shutdown;
use sqlx::{ConnectOptions as _, PgConnection, PgPool, postgres::PgConnectOptions};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::store;

/// How often to look.
const LOOK: Duration = Duration::from_millis(500);

/// Who is dead at so many looks in a row is taken for dead: meanwhile a dispatcher that has lost its connection and
/// not its life registers anew, also when Postgres itself was started again.
const LOOKS: u32 = 4;

/// How long Postgres may take for a look, or to take one dispatcher over, before the connection is given up.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Makes this dispatcher known to the others and takes over what dead ones have left, until a stop is requested.
///
/// `number` is the one under which this dispatcher leases; none before the first registration.
pub(crate) async fn watch_over(
    pool: PgPool,
    options: PgConnectOptions,
    number: watch::Sender<Option<i32>>,
    shutdown: Shutdown,
) {
    // Postgres must learn of a machine that is gone, too: no goodbye comes from there.
    let options = options.application_name("dispatcher-presence").options([
        ("tcp_keepalives_idle", "5"),
        ("tcp_keepalives_interval", "2"),
        ("tcp_keepalives_count", "3"),
    ]);
    let mut connection: Option<PgConnection> = None;
    let mut suspects: HashMap<i32, u32> = HashMap::new();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !shutdown.requested() {
        tokio::select! {
            _ = looks.tick() => {}
            () = shutdown.wait() => break,
        }
        match within(look(&options, &mut connection, &number)).await {
            Ok(dead) => {
                let looks = |other: &i32| suspects.get(other).copied().unwrap_or_default() + 1;
                suspects = dead.iter().map(|other| (*other, looks(other))).collect();
            }
            Err(failure) => {
                tracing::warn!("cannot tell other dispatchers that this one is running: {failure}");
                connection = None;
                suspects.clear();
            }
        }
        // On another connection, and with a limit of its own: however slow that is, this dispatcher stays known.
        for (&other, _) in suspects.iter().filter(|(_, looks)| **looks >= LOOKS) {
            if let Err(failure) = within(take_over(&pool, other)).await {
                tracing::warn!("cannot take over what dispatcher {other} has left: {failure}");
            }
        }
    }
}

/// Waits for an answer of Postgres, as long as it may take.
async fn within<T>(answer: impl Future<Output = sqlx::Result<T>>) -> Result<T, String> {
    match timeout(TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {TIMEOUT:?}")),
    }
}

/// Makes sure that this dispatcher is known, and returns those that are not running any more.
async fn look(
    options: &PgConnectOptions,
    connection: &mut Option<PgConnection>,
    number: &watch::Sender<Option<i32>>,
) -> sqlx::Result<Vec<i32>> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(options.connect().await?),
    };
    let known = *number.borrow();
    let own = store::register(connection, known).await?;
    number.send_if_modified(|number| number.replace(own) != Some(own));
    store::dead(connection).await
}

/// Frees what a dead dispatcher had leased.
async fn take_over(pool: &PgPool, other: i32) -> sqlx::Result<()> {
    if let Some(freed) = store::bury(pool, other).await? {
        metrics::counter!("hopline_webhook_leases_taken_over_total").increment(freed);
        tracing::info!(
            dispatcher = other,
            deliveries = freed,
            "dispatcher {other} is gone; took {freed} deliveries over"
        );
    }
    Ok(())
}
