//! `api migrate` and its plan.

use schemas::grants::User;
use tests::deployment::{Deployment, binary, programs};
use tests::engines::empty;
use tokio::process::Command;

const UP_TO_DATE: &str = "Postgres: up to date\nClickHouse: up to date\nKafka: up to date\n";

/// Returns what `api migrate --plan` prints.
async fn plan(deployment: &Deployment) -> String {
    let output = Command::new(binary("api"))
        .args(["migrate", "--plan"])
        .envs(deployment.environment_of(User::Migrate))
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_names_every_change_and_makes_none() {
    let deployment = Deployment::prepare(empty().await);
    let engines = &deployment.engines;
    let planned = plan(&deployment).await;
    let clicks = engines.topic(schemas::topic::CLICKS);
    for change in
        ["Postgres:\n  0001 accounts\n", "ClickHouse:\n  0001 owners\n", &format!("  {clicks}: create\n")]
    {
        assert!(planned.contains(change), "{planned}");
    }
    assert_eq!(plan(&deployment).await, planned);

    deployment.migrate(&programs()).await;
    assert_eq!(plan(&deployment).await, UP_TO_DATE);

    // As after a migration that was killed.
    engines.clickhouse("DELETE FROM schema_migrations WHERE version = 16").await;
    assert!(plan(&deployment).await.contains("ClickHouse:\n  0016 intake positions\nKafka: up to date\n"));
    deployment.migrate(&programs()).await;
    assert_eq!(plan(&deployment).await, UP_TO_DATE);
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_at_once_run_each_statement_once() {
    let deployment = Deployment::prepare(empty().await);
    let programs = programs();
    tokio::join!(deployment.migrate(&programs), deployment.migrate(&programs), deployment.migrate(&programs));
    let twice = "SELECT count() - uniqExact(version) FROM schema_migrations";
    assert_eq!(deployment.engines.clickhouse(twice).await.trim(), "0");
    assert_eq!(plan(&deployment).await, UP_TO_DATE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_before_the_schemas_migrates_nothing_and_does_not_fail() {
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
    assert_eq!(plan(&deployment).await, UP_TO_DATE);
}
