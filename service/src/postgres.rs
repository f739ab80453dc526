//! The Postgres connection pool.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection as _, PgPool};

use crate::{Check, Shutdown, health};

/// Maximum wait for a connection, also when Postgres is down.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);

/// The same for an operator's command, which is not retried and may meet a busy server.
const COMMAND_ACQUIRE_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum number of connections of an operator's command.
const COMMAND_CONNECTIONS: u32 = 2;

/// Idle time up to which a connection is used without a ping.
const PING_AFTER_IDLE: Duration = Duration::from_secs(1);

/// Limit for one statement, which also ends the queries of a lost client.
const STATEMENT_TIMEOUT: &str = "15s";

/// Limit for waiting for a lock, well below [`STATEMENT_TIMEOUT`].
const LOCK_TIMEOUT: &str = "5s";

/// Limit for an idle transaction: a stalled process must release its locks.
const IDLE_TRANSACTION_TIMEOUT: &str = "30s";

/// The connection to Postgres; flatten it into the service's `Config`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Postgres")]
pub struct PostgresConfig {
    /// Postgres, as postgres://user:password@host:port/database.
    #[arg(
        id = "database_url",
        long = "database-url",
        value_name = "URL",
        env = "DATABASE_URL",
        hide_env_values = true
    )]
    pub url: DatabaseUrl,
}

/// A connection string; Debug shows host, port and database only.
#[derive(Clone)]
pub struct DatabaseUrl(PgConnectOptions);

impl DatabaseUrl {
    /// Returns the options of a connection, without the timeouts that [`pool`] sets.
    #[must_use]
    pub fn options(&self) -> &PgConnectOptions {
        &self.0
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port, database) = (self.0.get_host(), self.0.get_port(), self.0.get_database());
        write!(formatter, "DatabaseUrl({host}:{port}/{})", database.unwrap_or_default())
    }
}

/// The error for a malformed connection string; it does not contain the text, which may have a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected postgres://user:password@host:port/database")]
pub struct DatabaseUrlFault;

impl FromStr for DatabaseUrl {
    type Err = DatabaseUrlFault;

    fn from_str(text: &str) -> Result<Self, DatabaseUrlFault> {
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(DatabaseUrlFault);
        }
        text.parse().map(Self).map_err(|_| DatabaseUrlFault)
    }
}

/// Returns a pool of at most `max_connections`, without connecting, so that a process starts while Postgres is down.
///
/// `name` is the application's name in `pg_stat_activity`.
#[must_use]
pub fn pool(config: &PostgresConfig, name: &str, max_connections: u32) -> PgPool {
    lazy(config, name, max_connections, ACQUIRE_TIMEOUT, STATEMENT_TIMEOUT)
}

/// Returns the pool of an operator's command, which waits longer for a connection.
#[must_use]
pub fn command_pool(config: &PostgresConfig, name: &str) -> PgPool {
    lazy(config, name, COMMAND_CONNECTIONS, COMMAND_ACQUIRE_TIMEOUT, STATEMENT_TIMEOUT)
}

/// Returns the pool of a migration: its statements may take any time, because tables may be large.
#[must_use]
pub fn migration_pool(config: &PostgresConfig, name: &str) -> PgPool {
    lazy(config, name, COMMAND_CONNECTIONS, COMMAND_ACQUIRE_TIMEOUT, "0")
}

fn lazy(
    config: &PostgresConfig,
    name: &str,
    max_connections: u32,
    acquire_timeout: Duration,
    statement_timeout: &str,
) -> PgPool {
    let options = config.url.options().clone().application_name(name).options([
        ("statement_timeout", statement_timeout),
        ("lock_timeout", LOCK_TIMEOUT),
        ("idle_in_transaction_session_timeout", IDLE_TRANSACTION_TIMEOUT),
    ]);
    PgPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(acquire_timeout)
        // A ping before each use would take a tenth of a request's time.
        .test_before_acquire(false)
        .before_acquire(|connection, meta| {
            Box::pin(async move {
                if meta.idle_for > PING_AFTER_IDLE {
                    connection.ping().await?;
                }
                Ok(true)
            })
        })
        .connect_lazy_with(options)
}

/// Probes Postgres until a shutdown is requested.
pub async fn watch(pool: PgPool, check: Check, shutdown: Shutdown) {
    let probe = || async { sqlx::query("SELECT 1").execute(&pool).await.map(|_| health::OK) };
    health::watch(check, shutdown, probe).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let url: DatabaseUrl = "postgres://hopline:hunter2@db:5433/links".parse().unwrap();
        assert_eq!(format!("{url:?}"), "DatabaseUrl(db:5433/links)");
        for invalid in ["mysql://hopline:hunter2@db/links", "hunter2", "postgres://u:hunter2@db:port/x"] {
            let fault = invalid.parse::<DatabaseUrl>().unwrap_err().to_string();
            assert!(!fault.contains("hunter2"), "{fault}");
        }
    }

    #[tokio::test]
    async fn a_pool_starts_while_postgres_is_down() {
        let url = "postgres://nobody@127.0.0.1:1/none".parse().unwrap();
        let pool = pool(&PostgresConfig { url }, "test", 1);
        let shutdown = Shutdown::new(Duration::ZERO);
        let check = crate::Health::new(&shutdown).check("postgres");
        check.ready();
        let watching = tokio::spawn(watch(pool, check.clone(), shutdown.clone()));
        tokio::time::timeout(Duration::from_secs(20), async {
            while check.is_ready() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        shutdown.request();
        watching.await.unwrap();
    }
}
