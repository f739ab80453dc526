//! Wrong configuration, and unreachable engines.

use schemas::grants::User;
use serde_json::Value;
use tests::deployment::{Deployment, binary};
use tests::engines::{http_client, isolated};
use tests::eventually;

const PROGRAMS: [&str; 4] = ["ingest", "processor", "api", "dispatcher"];

/// Runs a program with these variables only, and returns its exit code and output.
async fn run(program: &str, arguments: &[&str], environment: &[(String, String)]) -> (Option<i32>, String) {
    let output = tokio::process::Command::new(binary(program))
        .env_clear()
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .args(arguments)
        .output()
        .await
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(printed).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_configuration_names_every_wrong_variable_and_exits_with_64() {
    let deployment = Deployment::prepare(isolated().await);
    for program in PROGRAMS {
        let mut environment = deployment.environment_of(User::Api);
        environment.retain(|(name, _)| name != "KAFKA_BROKERS");
        environment.push(("HOPLINE_DRAIN_SECONDS".to_owned(), "soon".to_owned()));
        environment.push(("HOPLINE_TOPIC_PREFFIX".to_owned(), "x".to_owned()));
        let (code, printed) = run(program, &[], &environment).await;
        assert_eq!(code, Some(64), "{program}: {printed}");
        for fault in ["KAFKA_BROKERS", "HOPLINE_DRAIN_SECONDS", "HOPLINE_TOPIC_PREFFIX"] {
            assert!(printed.contains(fault), "{program} does not name {fault}: {printed}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_exits_64_and_help_exits_0() {
    let deployment = Deployment::prepare(isolated().await);
    for program in PROGRAMS {
        for wrong in [&["--nonsense"][..], &["nonsense"], &["--log-format", "xml"], &["--drain-seconds"]] {
            let (code, printed) = run(program, wrong, &deployment.environment_of(User::Api)).await;
            assert_eq!(code, Some(64), "{program} {wrong:?}: {printed}");
        }
        for right in ["--help", "--version"] {
            assert_eq!(run(program, &[right], &[]).await.0, Some(0), "{program} {right}");
        }
        assert_eq!(run(program, &["healthcheck", "--help"], &[]).await.0, Some(0), "{program}");
        assert_eq!(run(program, &["healthcheck", "nonsense"], &[]).await.0, Some(64), "{program}");
    }
    for (program, wrong) in [
        ("ingest", &["spool", "--nonsense"][..]),
        ("processor", &["audit", "--nonsense"]),
        ("processor", &["replay", "--from", "soon"]),
        ("processor", &["dead-letters", "nonsense"]),
        ("api", &["admin"]),
        ("api", &["admin", "nonsense"]),
        ("api", &["admin", "create-account", "--name", "a", "--plan", "gold"]),
        ("api", &["admin", "create-account", "--name", "", "--plan", "pro"]),
        ("api", &["admin", "show-account", "--account", "lnk_1"]),
    ] {
        let (code, printed) = run(program, wrong, &deployment.environment_of(User::Api)).await;
        assert_eq!(code, Some(64), "{program} {wrong:?}: {printed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_prints_nothing_but_its_answer() {
    let engines = isolated().await;
    let deployment = Deployment::prepare(engines);
    for (program, user, command) in [
        ("api", User::Api, &["admin", "--json", "create-account", "--name", "a", "--plan", "pro"][..]),
        ("processor", User::Processor, &["lag", "--json"]),
    ] {
        let (code, printed) = run(program, command, &deployment.environment_of(user)).await;
        assert_eq!(code, Some(0), "{program}: {printed}");
        assert!(serde_json::from_str::<Value>(&printed).is_ok(), "{program}: {printed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_listed_in_help_are_the_accepted_ones() {
    for program in PROGRAMS {
        let (_, help) = run(program, &["--help"], &[]).await;
        let mut listed: Vec<(String, Vec<String>)> = Vec::new();
        let mut values: Vec<String> = Vec::new();
        for line in help.lines().map(str::trim) {
            if line.starts_with("--") {
                values.clear();
            } else if let Some(value) = line.strip_prefix("- ").and_then(|line| line.split(':').next()) {
                values.push(value.to_owned());
            } else if let Some(inner) = line.strip_prefix("[possible values: ") {
                values.extend(inner.trim_end_matches(']').split(", ").map(str::to_owned));
                if let Some((_, of)) = listed.last_mut().filter(|(_, of)| of.is_empty()) {
                    of.clone_from(&values);
                }
            } else if let Some(inner) = line.strip_prefix("[env: ") {
                let name = inner.trim_end_matches(']').split('=').next().unwrap().to_owned();
                listed.push((name, values.clone()));
            } else if let Some(inner) = line.strip_prefix("[default: ") {
                // A default must be an accepted value.
                let default = inner.trim_end_matches(']').trim_matches('"').to_owned();
                assert_accepted(program, &listed.last().unwrap().0, &default).await;
            }
        }
        assert!(
            listed.iter().any(|(name, values)| name == "HOPLINE_LOG_FORMAT" && values.len() == 3),
            "{help}"
        );
        for (name, values) in listed.iter().filter(|(_, values)| !values.is_empty()) {
            for value in values {
                assert_accepted(program, name, value).await;
            }
            let fault = fault(program, name, "nonsense").await.unwrap();
            assert!(fault.ends_with(&format!("expected one of {}", values.join(", "))), "{fault}");
        }
    }
}

/// Returns a program's error about one variable, if there is one. The program does not start, because other variables
/// are missing.
async fn fault(program: &str, name: &str, value: &str) -> Option<String> {
    let (code, printed) = run(program, &[], &[(name.to_owned(), value.to_owned())]).await;
    assert_eq!(code, Some(64), "{program}: {printed}");
    printed.lines().find(|line| line.starts_with(&format!("{name}: "))).map(str::to_owned)
}

async fn assert_accepted(program: &str, name: &str, value: &str) {
    let fault = fault(program, name, value).await;
    assert_eq!(fault, None, "{program} does not accept {value:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_is_named_and_not_shown() {
    let deployment = Deployment::prepare(isolated().await);
    for (program, variable) in [
        ("ingest", "HOPLINE_VISITOR_KEY"),
        ("api", "HOPLINE_CLICK_ID_KEYS"),
        ("dispatcher", "HOPLINE_SECRET_KEYS"),
    ] {
        let mut environment = deployment.environment_of(User::Api);
        environment.retain(|(name, _)| name != variable);
        environment.push((variable.to_owned(), "hunter2hunter2".to_owned()));
        let (code, printed) = run(program, &[], &environment).await;
        assert_eq!(code, Some(64), "{program}: {printed}");
        assert!(printed.contains(variable) && !printed.contains("hunter2"), "{program}: {printed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_start_while_their_engines_are_down_and_name_them() {
    let mut engines = isolated().await;
    // Nothing listens on port 1.
    engines.kafka_brokers = "127.0.0.1:1".to_owned();
    engines.clickhouse_url = "http://127.0.0.1:1/none".to_owned();
    engines.database_url = "postgres://nobody@127.0.0.1:1/none".to_owned();
    let deployment = Deployment::prepare(engines);
    let expected: [(&str, &[&str]); 4] = [
        ("ingest", &["kafka"]),
        ("processor", &["kafka", "clickhouse"]),
        ("api", &["kafka", "postgres", "clickhouse"]),
        ("dispatcher", &["kafka", "postgres"]),
    ];
    for (server, (name, checks)) in deployment.services().into_iter().zip(expected) {
        assert_eq!(server.name(), name);
        let starting = async {
            // Never ready, so this never returns.
            let _ = server.start().await;
        };
        let looking = eventually("/readyz names the engines", async || {
            let answer = http_client().get(format!("{}/readyz", server.url())).send().await;
            let answer = answer.map_err(|error| error.to_string())?;
            let status = answer.status().as_u16();
            let body: Value = answer.json().await.map_err(|error| error.to_string())?;
            let named = checks.iter().all(|check| body["checks"][check]["ready"] == false);
            if status == 503 && named { Ok(()) } else { Err(format!("{status} {body}")) }
        });
        tokio::select! {
            () = starting => panic!("{name} ended"),
            () = looking => {}
        }
        let listen = format!("HOPLINE_{}_OPERATIONS_LISTEN", name.to_uppercase());
        let port = server.url().rsplit_once(':').unwrap().1;
        // It listens on every address in a container.
        let environment = [(listen, format!("0.0.0.0:{port}"))];
        assert_eq!(run(name, &["healthcheck"], &environment).await, (Some(0), String::new()));
        let (code, printed) = run(name, &["healthcheck", "--ready"], &environment).await;
        assert!(code == Some(1) && checks.iter().all(|check| printed.contains(check)), "{printed}");
        assert!(server.pid().is_some(), "{name} still runs");
        server.kill().await;
        let (code, printed) = run(name, &["healthcheck"], &environment).await;
        assert!(code == Some(1) && printed.contains(port), "{printed}");
    }
}
