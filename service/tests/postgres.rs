//! A pool of several hosts, against real servers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use devstack::{Options, Server};
use service::postgres::{PostgresConfig, pool};
use sqlx::postgres::PgQueryResult;
use sqlx::{Connection as _, Executor as _, PgConnection, PgPool};
use tests::{ANSWER, PATIENCE, eventually};
use tokio::task::JoinSet;
use tokio::time::timeout;

async fn server() -> Server {
    devstack::postgres::start(Options::throw_away("postgres").unwrap()).await.unwrap()
}

/// Makes a server read-only like a standby, or writable again.
async fn set_standby(server: &Server, is_standby: bool) {
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    connection.execute("SET default_transaction_read_only = off").await.unwrap();
    let to = if is_standby { "on" } else { "off" };
    let set = format!("ALTER SYSTEM SET default_transaction_read_only = {to}");
    connection.execute(sqlx::AssertSqlSafe(set)).await.unwrap();
    connection.execute("SELECT pg_reload_conf()").await.unwrap();
    eventually("the setting is active", async || {
        let mut other = PgConnection::connect(server.url()).await.unwrap();
        let found: String =
            sqlx::query_scalar("SHOW transaction_read_only").fetch_one(&mut other).await.unwrap();
        if found == to { Ok(()) } else { Err(found) }
    })
    .await;
}

/// Returns the configuration for several servers, on a machine that may be busy.
fn config(servers: &[&Server]) -> PostgresConfig {
    let address = |server: &Server| {
        let after = server.url().rsplit_once('@').unwrap().1;
        after.split_once('/').unwrap().0.to_owned()
    };
    let all: Vec<String> = servers.iter().map(|server| address(server)).collect();
    let one = servers[0].url();
    let url = one.replace(&format!("@{}/", all[0]), &format!("@{}/", all.join(",")));
    PostgresConfig { url: url.parse().unwrap(), acquire_timeout: ANSWER }
}

/// Writes a row; repeats the statement if it fails while the server changes.
async fn write(pool: &PgPool) {
    let write = "CREATE TABLE IF NOT EXISTS t (n int); INSERT INTO t VALUES (1)";
    eventually("a write succeeds", async || pool.execute(write).await).await;
}

async fn rows(server: &Server) -> i64 {
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(&mut connection).await.unwrap()
}

/// Starts `count` slow statements, each on a separate connection.
async fn slow_statements(pool: &PgPool, server: &Server, count: i64) -> JoinSet<sqlx::Result<PgQueryResult>> {
    let mut statements = JoinSet::new();
    for _ in 0..count {
        let pool = pool.clone();
        statements.spawn(async move { pool.execute("SELECT pg_sleep(600)").await });
    }
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    let active = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'";
    eventually("every statement runs", async || {
        let running: i64 = sqlx::query_scalar(active).fetch_one(&mut connection).await.unwrap();
        if running < count { Err(running) } else { Ok(()) }
    })
    .await;
    statements
}

/// Waits until each statement has failed.
async fn all_fail(statements: JoinSet<sqlx::Result<PgQueryResult>>) {
    let results = timeout(PATIENCE, statements.join_all()).await.unwrap();
    assert!(results.iter().all(Result::is_err), "{results:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_writes_to_the_primary_and_follows_it_to_another_host() {
    let (primary, standby) = tokio::join!(server(), server());
    set_standby(&standby, true).await;
    let pool = pool(&config(&[&standby, &primary]), "test", 2);
    write(&pool).await;
    write(&pool).await;
    assert_eq!(rows(&primary).await, 2);

    // A frozen server leaves all connections open.
    let statements = slow_statements(&pool, &primary, 2).await;
    primary.pause().await.unwrap();
    set_standby(&standby, false).await;
    all_fail(statements).await;
    write(&pool).await;
    assert_eq!(rows(&standby).await, 1);

    set_standby(&standby, true).await;
    primary.resume().await.unwrap();
    write(&pool).await;
    assert_eq!(rows(&primary).await, 3);
    primary.kill().await;
    set_standby(&standby, false).await;
    write(&pool).await;
    assert_eq!(rows(&standby).await, 2);
    pool.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_on_a_frozen_server_fail_and_later_ones_succeed() {
    let server = server().await;
    let pool = pool(&config(&[&server]), "test", 2);
    write(&pool).await;
    let statements = slow_statements(&pool, &server, 2).await;
    server.pause().await.unwrap();
    all_fail(statements).await;
    server.resume().await.unwrap();
    write(&pool).await;
    assert_eq!(rows(&server).await, 2);
    pool.close().await;
}
