//! Access to the engines of `./dev up --cluster`, and the users of its services.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use devstack::scratch::Scratch;
use devstack::{Tls, clickhouse};
use futures_util::future::join_all;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use tests::ANSWER;

/// The servers of a status whose names begin with this, each with its URL.
fn urls(status: &Value, of: &str) -> Vec<String> {
    let servers = status["services"].as_array().unwrap().iter();
    let of_engine = servers.filter(|server| server["name"].as_str().unwrap().starts_with(of));
    of_engine.map(|server| server["url"].as_str().unwrap().to_owned()).collect()
}

/// Checks that no server of an engine can be used without TLS, with another authority or with a wrong password.
pub(crate) async fn strangers_are_rejected(status: &Value) {
    let folder = Scratch::new("stranger").unwrap();
    let stranger = Tls::in_folder(folder.path()).unwrap();
    let ca = status["ca_file"].as_str().unwrap();
    let password = status["kafka_client"]["sasl.password"].as_str().unwrap();

    for url in urls(status, "postgres-") {
        let connect = async |url: &str| PgConnection::connect(url).await.map(drop);
        connect(&url).await.unwrap();
        let without_tls = url.replace("verify-full", "disable");
        let other_ca = url.replace(ca, stranger.ca.to_str().unwrap());
        for rejected in [without_tls, other_ca, url.replace(password, "wrong")] {
            connect(&rejected).await.unwrap_err();
        }
    }
    for url in urls(status, "clickhouse-") {
        let select = async |url: &str, ca| clickhouse::query(url, Some(ca), "SELECT 1").await;
        select(&url, Path::new(ca)).await.unwrap();
        select(&url, &stranger.ca).await.unwrap_err();
        for rejected in [url.replace("https:", "http:"), url.replace(password, "wrong")] {
            select(&rejected, Path::new(ca)).await.unwrap_err();
        }
        let default_user = url.replace(&format!("hopline:{password}"), "default");
        select(&default_user, Path::new(ca)).await.unwrap_err();
        // The servers of both shards trust each other.
        let shards = "SELECT count() FROM cluster('hopline', system.one)";
        assert_eq!(clickhouse::query(&url, Some(Path::new(ca)), shards).await.unwrap().trim(), "2");
    }
    let settings = status["kafka_client"].as_object().unwrap();
    let answers = async |broker: &str, changed: Option<(&str, &str)>| {
        let mut client: ClientConfig =
            settings.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect();
        client.set("bootstrap.servers", broker).set("log_level", "0");
        if let Some((name, value)) = changed {
            client.set(name, value);
        }
        let metadata =
            move || client.create::<BaseConsumer>().unwrap().fetch_metadata(None, ANSWER).map(drop);
        tokio::task::spawn_blocking(metadata).await.unwrap()
    };
    let changed = [
        ("security.protocol", "plaintext"),
        ("security.protocol", "sasl_plaintext"),
        ("ssl.ca.location", stranger.ca.to_str().unwrap()),
        ("sasl.password", "wrong"),
    ];
    // Concurrently, because librdkafka retries a rejected connection until the timeout.
    join_all(urls(status, "kafka-").iter().map(async |broker| {
        answers(broker, None).await.unwrap();
        for rejected in join_all(changed.map(|changed| answers(broker, Some(changed)))).await {
            rejected.unwrap_err();
        }
    }))
    .await;
}

/// Checks that each service connects to each engine over TLS, with its own user.
pub(crate) async fn services_use_their_own_users(status: &Value) {
    let administrator = status["kafka_client"]["sasl.password"].as_str().unwrap();
    for server in status["services"].as_array().unwrap().iter().take(8) {
        let (name, pid) = (server["name"].as_str().unwrap(), &server["pid"]);
        let service = name.split('-').next().unwrap();
        let environment = String::from_utf8(fs::read(format!("/proc/{pid}/environ")).unwrap()).unwrap();
        let variables: BTreeSet<&str> = environment.split('\0').collect();
        assert!(!environment.contains(administrator), "{name}");
        assert!(variables.contains(&*format!("KAFKA_CONFIG_SASL_USERNAME=hopline_{service}")), "{name}");
        assert!(variables.contains("KAFKA_CONFIG_SECURITY_PROTOCOL=sasl_ssl"), "{name}");
    }

    let mut primary = PgConnection::connect(&urls(status, "postgres-1")[0]).await.unwrap();
    let connected: Vec<(String, String, bool)> = sqlx::query_as(
        "SELECT DISTINCT usename::text, backend_type, ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
         WHERE client_addr IS NOT NULL AND pid <> pg_backend_pid() ORDER BY 1",
    )
    .fetch_all(&mut primary)
    .await
    .unwrap();
    let connected: Vec<_> =
        connected.iter().map(|(user, kind, ssl)| (user.as_str(), kind.as_str(), *ssl)).collect();
    let client = "client backend";
    let expected =
        [("hopline", "walsender", true), ("hopline_api", client, true), ("hopline_dispatcher", client, true)];
    assert_eq!(connected, expected);

    let ca = Path::new(status["ca_file"].as_str().unwrap());
    let mut users = BTreeSet::new();
    for url in urls(status, "clickhouse-") {
        let asked = "SELECT user FROM system.user_processes WHERE user LIKE 'hopline_%'";
        let answer = clickhouse::query(&url, Some(ca), asked).await.unwrap();
        users.extend(answer.lines().map(str::to_owned));
    }
    assert!(users.iter().eq(["hopline_api", "hopline_migrate", "hopline_processor"]), "{users:?}");
}
