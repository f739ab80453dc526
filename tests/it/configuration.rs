//! Wrong configuration, and engines that are not there.

use std::process::Output;

use serde_json::Value;
use tests::deployment::{Deployment, binary};
use tests::engines::{http_client, isolated};
use tests::eventually;

use crate::traffic::LONG;

const PROGRAMS: [&str; 4] = ["ingest", "processor", "api", "dispatcher"];

async fn run(program: &str, environment: &[(String, String)]) -> Output {
    tokio::process::Command::new(binary(program))
        .env_clear()
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .output()
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_configuration_names_every_variable_at_fault_and_exits_64() {
    let deployment = Deployment::prepare(isolated().await);
    for program in PROGRAMS {
        let mut environment = deployment.environment().to_vec();
        environment.retain(|(name, _)| name != "KAFKA_BROKERS");
        environment.push(("HOPLINE_DRAIN_SECONDS".to_owned(), "soon".to_owned()));
        environment.push(("HOPLINE_TOPIC_PREFFIX".to_owned(), "x".to_owned()));
        let output = run(program, &environment).await;
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{program}: {said}");
        for fault in ["KAFKA_BROKERS", "HOPLINE_DRAIN_SECONDS", "HOPLINE_TOPIC_PREFFIX"] {
            assert!(said.contains(fault), "{program} does not name {fault}: {said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_is_named_and_not_shown() {
    let deployment = Deployment::prepare(isolated().await);
    for (program, variable) in [
        ("ingest", "HOPLINE_VISITOR_KEY"),
        ("api", "HOPLINE_CLICK_ID_KEYS"),
        ("dispatcher", "HOPLINE_SECRET_KEYS"),
    ] {
        let mut environment = deployment.environment().to_vec();
        environment.retain(|(name, _)| name != variable);
        environment.push((variable.to_owned(), "hunter2hunter2".to_owned()));
        let output = run(program, &environment).await;
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{program}: {said}");
        assert!(said.contains(variable) && !said.contains("hunter2"), "{program}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_start_while_their_engines_are_down_and_say_which() {
    let mut engines = isolated().await;
    // Nothing listens on port 1.
    engines.kafka_brokers = "127.0.0.1:1".to_owned();
    engines.clickhouse_url = "http://127.0.0.1:1/none".to_owned();
    engines.database_url = "postgres://nobody@127.0.0.1:1/none".to_owned();
    let deployment = Deployment::prepare(engines);
    let expected: [(&str, &[&str]); 4] = [
        ("ingest", &["kafka"]),
        ("processor", &["kafka", "clickhouse"]),
        ("api", &["kafka", "postgres"]),
        ("dispatcher", &["kafka", "postgres"]),
    ];
    for (server, (name, checks)) in deployment.services().into_iter().zip(expected) {
        assert_eq!(server.name(), name);
        let starting = async {
            // Never ready, so this never ends by itself.
            let _ = server.start().await;
        };
        let looking = eventually("/readyz names the engines", LONG, async || {
            let answer = http_client().get(format!("{}/readyz", server.url())).send().await;
            let answer = answer.map_err(|error| error.to_string())?;
            let status = answer.status().as_u16();
            let body: Value = answer.json().await.map_err(|error| error.to_string())?;
            let named = checks.iter().all(|check| body["checks"][check]["ready"] == false);
            if status == 503 && named { Ok(()) } else { Err(format!("{status} {body}")) }
        });
        tokio::select! {
            () = starting => panic!("{name} gave up"),
            () = looking => {}
        }
        assert!(server.pid().is_some(), "{name} still runs");
        server.kill().await;
    }
}
