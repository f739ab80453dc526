//! `api migrate` and its plan.

use std::collections::BTreeSet;
use std::path::Path;

use schemas::clickhouse::MIGRATIONS;
use schemas::grants::User;
use tests::deployment::{Deployment, binary, programs};
use tests::engines::empty;
use tests::eventually;

const UP_TO_DATE: &str = "Postgres: up to date\nClickHouse: up to date\nKafka: up to date\n";

/// Returns the output of `api migrate --plan`.
async fn plan(deployment: &Deployment) -> String {
    let output = deployment.run(User::Migrate, &binary("api"), &["migrate", "--plan"]).await;
    String::from_utf8(output).unwrap()
}

/// Waits until the plan is empty, because a broker lists new topics a moment after it created them.
async fn is_up_to_date(deployment: &Deployment) {
    eventually("nothing is planned", async || match plan(deployment).await {
        planned if planned == UP_TO_DATE => Ok(()),
        planned => Err(planned),
    })
    .await;
}

/// Returns the names of Postgres' migrations as a plan prints them.
fn postgres_migrations() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas/postgres");
    let files =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    files.map(|name| name.trim_end_matches(".sql").replace('_', " ")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_names_every_change_and_makes_none() {
    let deployment = Deployment::prepare(empty().await);
    let engines = &deployment.engines;
    let planned = plan(&deployment).await;
    let mut expected = "Postgres:\n".to_owned();
    for line in postgres_migrations() {
        expected += &format!("  {line}\n");
    }
    expected += "ClickHouse:\n";
    for migration in MIGRATIONS {
        expected += &format!("  {:04} {}\n", migration.version, migration.name.replace('_', " "));
    }
    expected += "Kafka:\n";
    for topic in schemas::topic::ALL {
        expected += &format!("  {}: create\n", engines.topic(topic));
    }
    assert_eq!(planned, expected);
    assert_eq!(plan(&deployment).await, planned);

    deployment.migrate(&programs()).await;
    is_up_to_date(&deployment).await;

    // As after a migration that was killed.
    engines.clickhouse("DELETE FROM schema_migrations WHERE version = 16").await;
    assert!(plan(&deployment).await.contains("ClickHouse:\n  0016 intake positions\nKafka: up to date\n"));
    deployment.migrate(&programs()).await;
    is_up_to_date(&deployment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_migrations_run_each_statement_once() {
    let deployment = Deployment::prepare(empty().await);
    let programs = programs();
    tokio::join!(deployment.migrate(&programs), deployment.migrate(&programs), deployment.migrate(&programs));
    let twice = "SELECT count() - uniqExact(version) FROM schema_migrations";
    assert_eq!(deployment.engines.clickhouse(twice).await.trim(), "0");
    is_up_to_date(&deployment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_release_migrates_nothing_and_succeeds() {
    let deployment = Deployment::prepare(empty().await);
    let engines = &deployment.engines;
    deployment.migrate(&programs()).await;
    let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 VALUES (9999, 'of a later release', true, '', 0)";
    sqlx::query(later).execute(&mut engines.postgres().await).await.unwrap();
    engines
        .clickhouse("INSERT INTO schema_migrations (version, name) VALUES (9999, 'of a later release')")
        .await;
    deployment.migrate(&programs()).await;
    is_up_to_date(&deployment).await;
}
