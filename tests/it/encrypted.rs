//! An empty installation with every engine over TLS, with certificates of a private authority; and the printed rights.

use devstack::install::Cache;
use devstack::scratch::Scratch;
use devstack::{Kind, Options, Tls};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use reqwest::Url;
use schemas::grants::User;
use schemas::topic;
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use tests::deployment::{Deployment, binary};
use tests::engines::{empty_on, isolated};
use tests::{PATIENCE, eventually};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_installation_counts_clicks_over_tls_with_the_least_privileges() {
    let folders = [Scratch::new("certificates").unwrap(), Scratch::new("other-certificates").unwrap()];
    let [authority, stranger] = folders.each_ref().map(|folder| Tls::in_folder(folder.path()).unwrap());
    let start = async |kind: Kind, tls: Option<&Tls>| {
        let mut options = Options::throw_away(kind.name()).unwrap();
        options.tls = tls.cloned();
        kind.start(options).await.unwrap()
    };
    // The administrator's connections to Kafka and ClickHouse are not encrypted.
    let (kafka, clickhouse, postgres) = tokio::join!(
        start(Kind::Kafka, Some(&authority)),
        start(Kind::ClickHouse, None),
        start(Kind::Postgres, Some(&authority))
    );
    let plain = empty_on(kafka.url(), clickhouse.url(), postgres.url()).await;
    let behind = Url::parse(clickhouse.url()).unwrap().socket_addrs(|| None).unwrap()[0];
    let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut engines = plain.with_clickhouse_at(front.local_addr().unwrap());
    tokio::spawn(authority.decrypt(front, behind).unwrap());
    engines.clickhouse_url = engines.clickhouse_url.replacen("http:", "https:", 1);
    let ca = authority.ca.to_str().unwrap();
    let variables = [
        ("KAFKA_CONFIG_SECURITY_PROTOCOL", "sasl_ssl"),
        ("KAFKA_CONFIG_SSL_CA_LOCATION", ca),
        ("HOPLINE_CLICKHOUSE_CA_FILE", ca),
    ];
    let deployment = Deployment::start_on(engines, &variables).await;

    let link = deployment.create_link().await;
    let (id, slug) = (link["id"].as_str().unwrap(), link["slug"].as_str().unwrap());
    deployment.edge_knows(slug).await;
    assert_eq!(deployment.click(slug, "198.51.100.1").await.unwrap().status(), 302);
    eventually("the click is counted", async || {
        let shown = deployment.show_link(id).await;
        if shown["total_clicks"] == json!(1) { Ok(()) } else { Err(shown) }
    })
    .await;
    let mut connection = PgConnection::connect(&plain.database_url).await.unwrap();
    let encrypted: Vec<(String, bool)> = sqlx::query_as(
        "SELECT DISTINCT usename::text, ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
         WHERE usename LIKE 'hopline_%' ORDER BY 1",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert_eq!(encrypted, [("hopline_api".to_owned(), true), ("hopline_dispatcher".to_owned(), true)]);

    for program in deployment.services() {
        let log = deployment.log(program.name());
        assert!(!log.contains("uthorization failed"), "{}: {log}", program.name());
    }

    // A certificate of another authority is rejected.
    let run = async |user: User, program: &str, arguments: &[&str], variable: (&str, &str)| {
        let environment = deployment.environment_of(user);
        let output = Command::new(binary(program))
            .args(arguments)
            .envs(environment)
            .env(variable.0, variable.1)
            .output()
            .await
            .unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let audit = &["audit"][..];
    let accounts = &["admin", "list-accounts"][..];
    let other = stranger.ca.to_str().unwrap();
    let url = deployment.engines.database_url_of(User::Api).replace(ca, other);
    for (user, program, arguments, variable) in [
        (User::Processor, "processor", audit, ("HOPLINE_CLICKHOUSE_CA_FILE", other)),
        (User::Processor, "processor", audit, ("KAFKA_CONFIG_SSL_CA_LOCATION", other)),
        (User::Api, "api", accounts, ("DATABASE_URL", url.as_str())),
    ] {
        let (succeeded, errors) = run(user, program, arguments, ("NO_COLOR", "1")).await;
        assert!(succeeded, "{program} {arguments:?}: {errors}");
        let rejected = timeout(PATIENCE, run(user, program, arguments, variable)).await;
        let (succeeded, errors) = rejected.expect("a wrong certificate is an error in time");
        assert!(!succeeded && errors.contains("certificate"), "{variable:?}: {errors}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_adds_the_rights_in_kafka() {
    let with_rights = Deployment::prepare(isolated().await);
    let mut engines = with_rights.engines.clone();
    // Nobody has rights to these topics.
    engines.topic_prefix.insert_str(0, "added.");
    let deployment = Deployment::prepare(engines);
    let migrate = async |environment: Vec<(String, String)>, arguments: &[&str]| {
        let arguments = [&["migrate"], arguments].concat();
        let output = Command::new(binary("api")).args(arguments).envs(environment).output().await.unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let of_user = || deployment.environment_of(User::Migrate);
    let mut of_administrator = of_user();
    of_administrator.retain(|(name, _)| !name.starts_with("KAFKA_"));
    of_administrator.push(("KAFKA_BROKERS".to_owned(), deployment.engines.kafka_brokers.clone()));

    let (succeeded, errors) = migrate(with_rights.environment_of(User::Migrate), &["--add-acls"]).await;
    let reason = "adding rights in Kafka: Kafka rejects them: Broker: Cluster authorization failed";
    assert!(!succeeded && errors.contains(reason), "{errors}");
    let (succeeded, errors) = migrate(of_user(), &[]).await;
    assert!(!succeeded && errors.contains("creating topics"), "{errors}");
    for _ in 0..2 {
        let (succeeded, errors) = migrate(of_administrator.clone(), &["--add-acls"]).await;
        assert!(succeeded, "{errors}");
    }
    // The administrator above has created the topics.
    deployment.engines.remove_topics().await;
    let listed = async || {
        let client: BaseConsumer = deployment.engines.kafka().create().unwrap();
        let metadata = client.fetch_metadata(None, PATIENCE).unwrap();
        let names = metadata.topics().iter().map(|topic| topic.name().to_owned());
        names.filter(|name| name.starts_with(&deployment.engines.topic_prefix)).count()
    };
    let (succeeded, errors) = migrate(of_user(), &[]).await;
    assert!(succeeded, "{errors}");
    eventually("the user has created them", async || match listed().await {
        topics if topics == topic::ALL.len() => Ok(()),
        topics => Err(topics),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kafkas_tool_accepts_the_printed_rights() {
    let deployment = Deployment::prepare(isolated().await);
    let arguments = ["migrate", "--print-grants=kafka"];
    let printed = deployment.run(User::Migrate, &binary("api"), &arguments).await;

    let folder = Scratch::new("acls").unwrap();
    let classes = Cache::shared().kafka().await.unwrap().join("*");
    let tool = format!(
        "kafka-acls.sh() {{ java -Xmx128m -XX:TieredStopAtLevel=1 -cp '{}' org.apache.kafka.tools.AclCommand \"$@\"; \
            }}",
        classes.display()
    );
    std::fs::write(folder.path().join("admin.properties"), "").unwrap();
    let script = format!("set -e\n{tool}\n{}", String::from_utf8(printed).unwrap());
    let added = Command::new("bash")
        .args(["-c", &script])
        .env("BROKERS", &deployment.engines.kafka_brokers)
        .current_dir(folder.path())
        .output()
        .await
        .unwrap();
    let listed = String::from_utf8_lossy(&added.stdout);
    assert!(added.status.success(), "{listed}{}", String::from_utf8_lossy(&added.stderr));
    let prefix = &deployment.engines.topic_prefix;
    for expected in [
        "principal=User:hopline_dispatcher, host=*, operation=READ, permissionType=ALLOW",
        &format!("resourceType=TRANSACTIONAL_ID, name={prefix}outbox"),
    ] {
        assert!(listed.contains(expected), "{listed}");
    }
}
