//! The Postgres connection pool.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, PgPool};
use tokio::time::{sleep, timeout};

use crate::{Check, Shutdown, health, sockets};

/// [`PostgresConfig::acquire_timeout`].
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);

/// The same for an operator's command, which is not retried and may meet a busy server.
const COMMAND_ACQUIRE_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum number of connections of an operator's command.
const COMMAND_CONNECTIONS: u32 = 2;

/// How often a host is asked whether it accepts writes.
const PRIMARY_INTERVAL: Duration = Duration::from_secs(1);

/// How long it may take to answer.
const PRIMARY_TIMEOUT: Duration = Duration::from_secs(3);

/// A host that was silent this number of times in a row has not answered for as long as a statement may take.
const SILENT_TIMES: u32 = 4;

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
    /// Postgres, as postgres://user:password@host:port[,host:port…]/database; of several hosts, the one that accepts
    /// writes.
    #[arg(
        id = "database_url",
        long = "database-url",
        value_name = "URL",
        env = "DATABASE_URL",
        hide_env_values = true
    )]
    pub url: DatabaseUrl,
    /// Maximum wait of a service for a connection, also when Postgres is down: 3 s, and longer in tests on a busy
    /// machine.
    #[arg(skip = ACQUIRE_TIMEOUT)]
    pub acquire_timeout: Duration,
}

impl From<DatabaseUrl> for PostgresConfig {
    fn from(url: DatabaseUrl) -> Self {
        Self { url, acquire_timeout: ACQUIRE_TIMEOUT }
    }
}

/// A connection string, in the form of libpq's URIs with one or several hosts; Debug shows hosts and database only.
#[derive(Clone)]
pub struct DatabaseUrl {
    /// The options for the first host, without the timeouts that [`pool`] sets.
    options: PgConnectOptions,
    hosts: Vec<(String, u16)>,
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        write!(
            formatter,
            "DatabaseUrl({}/{})",
            hosts.join(","),
            self.options.get_database().unwrap_or_default()
        )
    }
}

/// The error for a malformed connection string; it does not contain the text, which may have a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected postgres://user:password@host:port[,host:port…]/database; target_session_attrs, if any, \
     must be read-write or primary"
)]
pub struct DatabaseUrlFault;

impl FromStr for DatabaseUrl {
    type Err = DatabaseUrlFault;

    fn from_str(text: &str) -> Result<Self, DatabaseUrlFault> {
        let (scheme, rest) = text.split_once("://").ok_or(DatabaseUrlFault)?;
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(DatabaseUrlFault);
        }
        let (before, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = before.split_at(before.find('/').unwrap_or(before.len()));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        let mut kept = Vec::new();
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("target_session_attrs", "read-write" | "primary")) => {}
                Some(("target_session_attrs", _)) => return Err(DatabaseUrlFault),
                _ => kept.push(parameter),
            }
        }
        let parameters = kept.join("&");
        let of_host = |host: &str| -> Result<PgConnectOptions, DatabaseUrlFault> {
            format!("{scheme}://{user}{host}{path}?{parameters}").parse().map_err(|_| DatabaseUrlFault)
        };
        let every: Vec<PgConnectOptions> = hosts.split(',').map(of_host).collect::<Result<_, _>>()?;
        let hosts = every.iter().map(|options| (options.get_host().to_owned(), options.get_port())).collect();
        let options = every.into_iter().next().ok_or(DatabaseUrlFault)?;
        Ok(Self { options, hosts })
    }
}

/// Returns a pool of at most `max_connections`, without connecting, so that a process starts while Postgres is down.
///
/// `name` is the application's name in `pg_stat_activity`.
#[must_use]
pub fn pool(config: &PostgresConfig, name: &str, max_connections: u32) -> PgPool {
    lazy(config, name, max_connections, config.acquire_timeout, STATEMENT_TIMEOUT)
}

/// Returns the pool of an operator's command, which waits longer for a connection.
pub async fn command_pool(config: &PostgresConfig, name: &str) -> PgPool {
    lazy(&at_primary(config).await, name, COMMAND_CONNECTIONS, COMMAND_ACQUIRE_TIMEOUT, STATEMENT_TIMEOUT)
}

/// Returns the pool of a migration: its statements may take any time, because tables may be large.
pub async fn migration_pool(config: &PostgresConfig, name: &str) -> PgPool {
    lazy(&at_primary(config).await, name, COMMAND_CONNECTIONS, COMMAND_ACQUIRE_TIMEOUT, "0")
}

fn lazy(
    config: &PostgresConfig,
    name: &str,
    max_connections: u32,
    acquire_timeout: Duration,
    statement_timeout: &str,
) -> PgPool {
    let DatabaseUrl { options, hosts } = config.url.clone();
    let options = options.application_name(name).options([
        ("statement_timeout", statement_timeout),
        ("lock_timeout", LOCK_TIMEOUT),
        ("idle_in_transaction_session_timeout", IDLE_TRANSACTION_TIMEOUT),
    ]);
    let has_standbys = hosts.len() > 1;
    let pool = PgPoolOptions::new()
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
        .after_connect(move |connection, _| {
            Box::pin(async move {
                if has_standbys && !accepts_writes(connection).await? {
                    // The pool tries again, until its options name the primary.
                    return Err(sqlx::Error::Configuration("this host is a standby".into()));
                }
                Ok(())
            })
        })
        .connect_lazy_with(options);
    tokio::spawn(follow_primary(pool.clone(), hosts));
    pool
}

/// Returns whether a server accepts writes, as libpq asks for `target_session_attrs=read-write`.
///
/// # Errors
/// When it does not answer.
pub async fn accepts_writes(connection: &mut PgConnection) -> sqlx::Result<bool> {
    let is_read_only: String = sqlx::query_scalar("SHOW transaction_read_only").fetch_one(connection).await?;
    Ok(is_read_only == "off")
}

/// What a host answers to the question whether it accepts writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Yes,
    /// It is a standby, or it refuses connections.
    No,
    /// It is frozen, or its machine or the network is gone.
    Silence,
}

/// Asks the host that options name, over `connection`, which is opened when there is none and lost after any other
/// answer than [`Answer::Yes`].
async fn ask(options: &PgConnectOptions, connection: &mut Option<PgConnection>) -> Answer {
    let asked = async {
        let mut open = match connection.take() {
            Some(open) => open,
            None => options.connect().await?,
        };
        let accepts = accepts_writes(&mut open).await?;
        if accepts {
            *connection = Some(open);
        }
        Ok::<_, sqlx::Error>(accepts)
    };
    match timeout(PRIMARY_TIMEOUT, asked).await {
        Ok(Ok(true)) => Answer::Yes,
        Ok(_) => Answer::No,
        Err(_) => Answer::Silence,
    }
}

/// Returns the configuration for the host that accepts writes, if one does now: an operator's command has no time to
/// wait for the others.
async fn at_primary(config: &PostgresConfig) -> PostgresConfig {
    let DatabaseUrl { options, hosts } = &config.url;
    if hosts.len() > 1 {
        for (host, port) in hosts {
            let options = options.clone().host(host).port(*port);
            if ask(&options, &mut None).await == Answer::Yes {
                return DatabaseUrl { options, hosts: vec![(host.clone(), *port)] }.into();
            }
        }
    }
    config.clone()
}

/// Lets new connections of a pool go to the host that accepts writes, also after another one was promoted, and ends
/// those to a host that does not answer any more.
///
/// Connections to a killed server end with it. One that is frozen, or whose machine is gone, leaves them open:
/// statements would wait on them for ever, and when none is left, so would everything else.
async fn follow_primary(pool: PgPool, hosts: Vec<(String, u16)>) {
    let options = |place: usize| {
        let (host, port) = &hosts[place];
        pool.connect_options().as_ref().clone().host(host).port(*port)
    };
    let (mut current, mut failures, mut silent) = (0, 0, 0);
    let mut connection = None;
    while !pool.is_closed() {
        match ask(&options(current), &mut connection).await {
            Answer::Yes => (failures, silent) = (0, 0),
            Answer::No => (failures, silent) = (failures + 1, 0),
            Answer::Silence => (failures, silent) = (failures + 1, silent + 1),
        }
        // One lost answer is no promotion.
        if failures > 1 {
            for place in (0..hosts.len()).filter(|place| *place != current) {
                if ask(&options(place), &mut connection).await == Answer::Yes {
                    let (host, port) = &hosts[place];
                    tracing::warn!("Postgres at {host}:{port} accepts writes now");
                    end_connections(&hosts[current]);
                    pool.set_connect_options(options(place));
                    (current, failures, silent) = (place, 0, 0);
                    break;
                }
            }
        }
        if silent >= SILENT_TIMES {
            end_connections(&hosts[current]);
            silent = 0;
        }
        tokio::select! {
            () = sleep(PRIMARY_INTERVAL) => {}
            () = pool.close_event() => {}
        }
    }
}

/// Ends this process's connections to a host, by its port: its name may have no address any more.
fn end_connections((host, port): &(String, u16)) {
    match sockets::shut_down(|peer| peer.port() == *port) {
        Ok(0) => {}
        Ok(count) => {
            tracing::warn!("ended {count} connections to Postgres at {host}:{port}, which does not answer");
        }
        Err(error) => tracing::warn!("cannot end the connections to Postgres at {host}:{port}: {error}"),
    }
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

    #[test]
    fn a_url_may_name_several_hosts() {
        let text = "postgresql://u:p%40s,w@a,b:5433,[::1]:5434/links?sslmode=disable&target_session_attrs=read-write";
        let url: DatabaseUrl = text.parse().unwrap();
        assert_eq!(format!("{url:?}"), "DatabaseUrl(a:5432,b:5433,[::1]:5434/links)");
        assert_eq!(url.options.get_username(), "u");
        for invalid in ["postgres://u@a,b/links?target_session_attrs=standby", "postgres://u@a,,b:x/links"] {
            assert!(invalid.parse::<DatabaseUrl>().is_err(), "{invalid}");
        }
    }

    #[tokio::test]
    async fn a_pool_starts_while_postgres_is_down() {
        let url: DatabaseUrl = "postgres://nobody@127.0.0.1:1/none".parse().unwrap();
        let pool = pool(&url.into(), "test", 1);
        let shutdown = Shutdown::new(Duration::ZERO);
        let check = crate::Health::new(&shutdown).check("postgres");
        check.ready();
        let watching = tokio::spawn(watch(pool, check.clone(), shutdown.clone()));
        ::tests::eventually("the check fails", async || if check.is_ready() { Err("ready") } else { Ok(()) })
            .await;
        shutdown.request();
        watching.await.unwrap();
    }
}
