//! A pool of several hosts, against real servers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use devstack::{Options, Server};
use service::postgres::{PostgresConfig, pool};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::time::{sleep, timeout};

/// Timeout of every wait; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

async fn server() -> Server {
    devstack::postgres::start(Options::throw_away("postgres").unwrap()).await.unwrap()
}

/// Lets a server accept no writes, as a standby does, or accept them again.
async fn set_standby(server: &Server, is_standby: bool) {
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    connection.execute("SET default_transaction_read_only = off").await.unwrap();
    let to = if is_standby { "on" } else { "off" };
    let set = format!("ALTER SYSTEM SET default_transaction_read_only = {to}");
    connection.execute(sqlx::AssertSqlSafe(set)).await.unwrap();
    connection.execute("SELECT pg_reload_conf()").await.unwrap();
    timeout(PATIENCE, async {
        loop {
            let mut other = PgConnection::connect(server.url()).await.unwrap();
            let found: String =
                sqlx::query_scalar("SHOW transaction_read_only").fetch_one(&mut other).await.unwrap();
            if found == to {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_writes_to_the_primary_and_follows_it_to_another_host() {
    let (primary, standby) = tokio::join!(server(), server());
    set_standby(&standby, true).await;
    let address = |server: &Server| {
        let after = server.url().rsplit_once('@').unwrap().1;
        after.split_once('/').unwrap().0.to_owned()
    };
    // The standby is the first host.
    let both = format!("@{},{}/", address(&standby), address(&primary));
    let url = primary.url().replace(&format!("@{}/", address(&primary)), &both);
    let pool = pool(&PostgresConfig { url: url.parse().unwrap() }, "test", 2);
    let write = async || {
        timeout(PATIENCE, async {
            loop {
                // A statement that meets the change fails, and is repeated.
                let written =
                    pool.execute("CREATE TABLE IF NOT EXISTS t (n int); INSERT INTO t VALUES (1)").await;
                if written.is_ok() {
                    break;
                }
                sleep(Duration::from_millis(50)).await;
            }
        })
        .await
        .unwrap();
    };
    let rows = async |server: &Server| -> i64 {
        let mut connection = PgConnection::connect(server.url()).await.unwrap();
        sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(&mut connection).await.unwrap()
    };
    write().await;
    write().await;
    assert_eq!(rows(&primary).await, 2);

    primary.kill().await;
    set_standby(&standby, false).await;
    write().await;
    assert_eq!(rows(&standby).await, 1);
    pool.close().await;
}
