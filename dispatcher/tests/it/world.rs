//! Workspaces with endpoints, events of their links, and dispatchers that can be stopped or killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use dispatcher::Config;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};
use schemas::grants::User;
use schemas::id::{EndpointId, LinkId, WorkspaceId};
use schemas::message::{Class, Click, LinkEvent, LinkEventKind, Message, Version};
use schemas::topic;
use schemas::topic::Topic;
use serde_json::json;
use service::config::KeyRing;
use service::metrics::Metrics;
use service::{Shutdown, sealed};
use sqlx::{PgPool, Row as _};
use tests::engines::{Isolated, isolated};
use tests::{ANSWER, PATIENCE, eventually};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, spawn_blocking};
use uuid::Uuid;

/// The secret of every endpoint.
pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The wait after a first failed attempt, unless a test wants another one.
const RETRY_BASE: Duration = Duration::from_millis(10);

/// The timeout of an attempt, unless a test wants another one: longer than a test waits, so that neither an attempt nor
/// a lease ends by itself on a busy machine.
const ATTEMPT_DEADLINE: Duration = Duration::from_secs(600);

pub(crate) const SECRET_KEYS: &str = "1:0707070707070707070707070707070707070707070707070707070707070707";

/// The isolated environment of a test.
pub(crate) struct World {
    pub(crate) isolated: Isolated,
    pub(crate) pool: PgPool,
    producer: FutureProducer,
}

/// A workspace with its own account.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workspace {
    pub(crate) id: WorkspaceId,
    account: Uuid,
}

impl World {
    pub(crate) async fn new() -> Self {
        let isolated = isolated().await;
        let pool = PgPool::connect(&isolated.database_url).await.unwrap();
        let producer = isolated.kafka().create().unwrap();
        Self { isolated, pool, producer }
    }

    pub(crate) async fn workspace(&self, plan: &str) -> Workspace {
        let (account, id) = (Uuid::now_v7(), Uuid::now_v7());
        sqlx::query("INSERT INTO accounts (id, name, plan) VALUES ($1, 'Test', $2)")
            .bind(account)
            .bind(plan)
            .execute(&self.pool)
            .await
            .unwrap();
        self.workspace_of(account, id).await
    }

    /// Creates another workspace of the same account.
    pub(crate) async fn another_workspace(&self, of: Workspace) -> Workspace {
        self.workspace_of(of.account, Uuid::now_v7()).await
    }

    async fn workspace_of(&self, account: Uuid, id: Uuid) -> Workspace {
        sqlx::query(
            "INSERT INTO workspaces (id, account_id, name, kind) VALUES ($1, $2, 'Test', 'personal')",
        )
        .bind(id)
        .bind(account)
        .execute(&self.pool)
        .await
        .unwrap();
        Workspace { id: WorkspaceId::from_uuid(id), account }
    }

    /// Creates an endpoint as the API does.
    pub(crate) async fn endpoint(&self, workspace: Workspace, url: &str, events: &[&str]) -> EndpointId {
        let id = Uuid::now_v7();
        let keys: KeyRing = SECRET_KEYS.parse().unwrap();
        let nonce = [id.as_bytes().as_slice(), &[0; 8]].concat().try_into().unwrap();
        let secret = sealed::seal(&keys, id.as_bytes(), SECRET, nonce).unwrap();
        let mut transaction = self.pool.begin().await.unwrap();
        sqlx::query(
            "INSERT INTO webhook_endpoints (id, workspace_id, url, events, enabled_from, secret_key_id,
                                            secret_sealed, created_at, updated_at)
             VALUES ($1, $2, $3, $4, now(), $5, $6, now(), now())",
        )
        .bind(id)
        .bind(workspace.id.uuid())
        .bind(url)
        .bind(events.iter().map(ToString::to_string).collect::<Vec<_>>())
        .bind(i16::from(secret.key_id))
        .bind(secret.bytes)
        .execute(&mut *transaction)
        .await
        .unwrap();
        raise_version(&mut transaction).await;
        transaction.commit().await.unwrap();
        EndpointId::from_uuid(id)
    }

    pub(crate) async fn set_plan(&self, workspace: Workspace, plan: &str) {
        let mut transaction = self.pool.begin().await.unwrap();
        sqlx::query("UPDATE accounts SET plan = $2 WHERE id = $1")
            .bind(workspace.account)
            .bind(plan)
            .execute(&mut *transaction)
            .await
            .unwrap();
        raise_version(&mut transaction).await;
        transaction.commit().await.unwrap();
    }

    pub(crate) async fn suspend(&self, workspace: Workspace, is_suspended: bool) {
        let mut transaction = self.pool.begin().await.unwrap();
        sqlx::query("UPDATE accounts SET suspended_at = CASE WHEN $2 THEN now() END WHERE id = $1")
            .bind(workspace.account)
            .bind(is_suspended)
            .execute(&mut *transaction)
            .await
            .unwrap();
        raise_version(&mut transaction).await;
        transaction.commit().await.unwrap();
    }

    /// Publishes a click as the edge does, and returns its id.
    pub(crate) async fn click(&self, workspace: Workspace, class: Class) -> String {
        let click = Self::new_click(workspace, class);
        self.publish_click(&click).await;
        click.click_id
    }

    /// Creates a click as the edge does.
    pub(crate) fn new_click(workspace: Workspace, class: Class) -> Click {
        Click {
            class,
            click_id: format!("click-{}", Uuid::now_v7().simple()),
            workspace_id: workspace.id,
            occurred_at: chrono::Utc::now(),
            again: false,
            ..Click::decode(include_bytes!("../../../schemas/fixtures/click.v1.json")).unwrap()
        }
    }

    /// Publishes a click; the same click always goes to the same partition.
    pub(crate) async fn publish_click(&self, click: &Click) {
        self.publish(topic::CLICKS, &click.click_id, &click.encode()).await;
    }

    /// Publishes a link's event as the API does, and returns its id.
    pub(crate) async fn link_event(&self, workspace: Workspace, event: LinkEventKind) -> String {
        let link_id = LinkId::from_uuid(Uuid::now_v7());
        let event = LinkEvent {
            version: Version,
            event_id: Uuid::now_v7(),
            event,
            link_id,
            workspace_id: workspace.id,
            occurred_at: chrono::Utc::now(),
            data: json!({"id": link_id, "name": "Café ☕ \"quoted\" </p>", "tags": []}),
        };
        self.publish(topic::LINK_EVENTS, &link_id.to_string(), &event.encode()).await;
        event.event_id.to_string()
    }

    pub(crate) async fn publish(&self, topic: Topic, key: &str, value: &[u8]) {
        let name = self.isolated.topic(topic);
        let record = FutureRecord::to(&name).key(key).payload(value);
        self.producer.send(record, PATIENCE).await.unwrap();
    }

    /// Starts a dispatcher that may reach this machine, and changes its configuration first.
    pub(crate) async fn dispatcher_with(&self, change: impl FnOnce(&mut Config)) -> Dispatcher {
        let mut config = Config::parse_from([
            "dispatcher",
            "--kafka-brokers",
            &self.isolated.kafka_brokers,
            "--topic-prefix",
            &self.isolated.topic_prefix,
            "--database-url",
            &self.isolated.database_url_of(User::Dispatcher),
            "--secret-keys",
            SECRET_KEYS,
            "--public-url",
            "http://127.0.0.1:1",
            "--webhook-allow",
            "127.0.0.0/8,::1/128",
        ]);
        config.tuning.retry_base = RETRY_BASE;
        config.tuning.attempt_deadline = ATTEMPT_DEADLINE;
        change(&mut config);
        let operations = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let operations_url = format!("http://{}", operations.local_addr().unwrap());
        let metrics = Metrics::install("dispatcher", dispatcher::METRICS).unwrap();
        let shutdown = Shutdown::new(Duration::from_secs(20));
        let run = tokio::spawn(dispatcher::run(config, operations, metrics, shutdown.clone()));
        Dispatcher { run, shutdown, operations_url }
    }

    pub(crate) async fn dispatcher(&self) -> Dispatcher {
        self.dispatcher_with(|_| {}).await
    }

    /// Publishes to a partition.
    pub(crate) async fn publish_to(&self, topic: Topic, partition: i32, value: &[u8]) {
        let name = self.isolated.topic(topic);
        let record = FutureRecord::<(), _>::to(&name).partition(partition).payload(value);
        self.producer.send(record, PATIENCE).await.unwrap();
    }

    /// Waits until every event that is now on the topics is in the queue, by the positions in Postgres.
    pub(crate) async fn enqueued(&self) {
        let ends = self.ends().await;
        assert!(!ends.is_empty(), "there is no event to wait for");
        eventually("the positions are at the ends of the topics", async || {
            let positions = self.positions().await;
            let is_there = ends.iter().all(|(partition, end)| positions.get(partition) == Some(end));
            if is_there { Ok(()) } else { Err(positions) }
        })
        .await;
    }

    /// Waits until the group has committed the offsets of every event that is now on the topics.
    pub(crate) async fn committed(&self) {
        let mut ends = TopicPartitionList::new();
        for ((topic, partition), end) in self.ends().await {
            ends.add_partition_offset(&topic, partition, Offset::Offset(end)).unwrap();
        }
        let consumer = Arc::new(self.consumer());
        eventually("the committed offsets are at the ends of the topics", async || {
            let (consumer, asked) = (Arc::clone(&consumer), ends.clone());
            let committed = spawn_blocking(move || consumer.committed_offsets(asked, ANSWER).unwrap());
            let committed = committed.await.unwrap();
            if committed == ends { Ok(()) } else { Err(committed) }
        })
        .await;
    }

    /// Returns the next offset of each partition in Postgres.
    async fn positions(&self) -> BTreeMap<(String, i32), i64> {
        let rows: Vec<(String, i32, i64)> =
            sqlx::query_as("SELECT topic, partition_id, next_offset FROM webhook_offsets")
                .fetch_all(&self.pool)
                .await
                .unwrap();
        rows.into_iter().map(|(topic, partition, next)| ((topic, partition), next)).collect()
    }

    /// Returns the end of each partition that is not empty.
    async fn ends(&self) -> BTreeMap<(String, i32), i64> {
        // The partition of a new topic may have no leader yet.
        eventually("the topics have ends", async || {
            let (consumer, isolated) = (self.consumer(), self.isolated.clone());
            let asking = spawn_blocking(move || {
                let mut ends = BTreeMap::new();
                for topic in [topic::CLICKS, topic::LINK_EVENTS] {
                    for partition in 0..topic.partitions {
                        let name = isolated.topic(topic);
                        let (_, end) = consumer.fetch_watermarks(&name, partition, ANSWER)?;
                        if end > 0 {
                            ends.insert((name, partition), end);
                        }
                    }
                }
                Ok::<_, KafkaError>(ends)
            });
            asking.await.unwrap()
        })
        .await
    }

    fn consumer(&self) -> BaseConsumer {
        let group = format!("{}hopline-dispatcher", self.isolated.topic_prefix);
        self.isolated.kafka().set("group.id", group).create().unwrap()
    }

    pub(crate) async fn pending(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM webhook_deliveries").fetch_one(&self.pool).await.unwrap()
    }

    /// Returns the failure log of an endpoint: attempt, status, error class, body; in order of attempts.
    pub(crate) async fn failures(
        &self,
        endpoint: EndpointId,
    ) -> Vec<(i16, Option<i16>, Option<String>, String)> {
        sqlx::query(
            "SELECT attempt, status_code, error_class, response_body FROM webhook_failures
             WHERE endpoint_id = $1 ORDER BY delivery_id, attempt",
        )
        .bind(endpoint.uuid())
        .fetch_all(&self.pool)
        .await
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3)))
        .collect()
    }

    /// Returns the status and the number of consecutive exhausted deliveries of an endpoint.
    pub(crate) async fn state(&self, endpoint: EndpointId) -> (String, i32) {
        let row = sqlx::query("SELECT status, consecutive_exhausted FROM webhook_endpoints WHERE id = $1")
            .bind(endpoint.uuid())
            .fetch_one(&self.pool)
            .await
            .unwrap();
        (row.get(0), row.get(1))
    }
}

impl World {
    /// Enables an endpoint again, as the API does.
    pub(crate) async fn enable(&self, endpoint: EndpointId) {
        let mut transaction = self.pool.begin().await.unwrap();
        sqlx::query(
            "UPDATE webhook_endpoints SET status = 'enabled', disabled_reason = NULL, consecutive_exhausted = 0,
                    epoch = epoch + 1, enabled_from = now() WHERE id = $1",
        )
        .bind(endpoint.uuid())
        .execute(&mut *transaction)
        .await
        .unwrap();
        raise_version(&mut transaction).await;
        transaction.commit().await.unwrap();
    }

    /// Gives an endpoint a new secret, as the API does, encrypted with the key of that id.
    pub(crate) async fn rotate(&self, endpoint: EndpointId, secret: &str, keys: &str) {
        let keys: KeyRing = keys.parse().unwrap();
        let nonce = [Uuid::now_v7().as_bytes().as_slice(), &[0; 8]].concat().try_into().unwrap();
        let sealed = sealed::seal(&keys, endpoint.uuid().as_bytes(), secret, nonce).unwrap();
        sqlx::query(
            "UPDATE webhook_endpoints
             SET previous_secret_key_id = secret_key_id, previous_secret_sealed = secret_sealed,
                 previous_secret_until = now() + interval '24 hours', secret_key_id = $2, secret_sealed = $3
             WHERE id = $1",
        )
        .bind(endpoint.uuid())
        .bind(i16::from(sealed.key_id))
        .bind(sealed.bytes)
        .execute(&self.pool)
        .await
        .unwrap();
    }

    /// Waits until no delivery is left.
    pub(crate) async fn done(&self) {
        eventually("no delivery is left", async || match self.pending().await {
            0 => Ok(()),
            left => Err(left),
        })
        .await;
    }

    /// Makes every delivery due that waits for its next attempt. A dispatcher itself does that only for deliveries that
    /// are due in more than 20 minutes.
    pub(crate) async fn make_due(&self) {
        sqlx::query("UPDATE webhook_deliveries SET due_at = now()").execute(&self.pool).await.unwrap();
    }

    /// Waits until the only delivery has failed this many times, and returns the seconds until its next attempt.
    pub(crate) async fn failed(&self, attempts: i16) -> f64 {
        let next =
            "SELECT extract(epoch FROM due_at - now())::float8 FROM webhook_deliveries WHERE attempts = $1";
        eventually("an attempt has failed", async || {
            let next = sqlx::query_scalar(next).bind(attempts).fetch_optional(&self.pool).await.unwrap();
            next.ok_or("it has not")
        })
        .await
    }

    /// Waits until this number of dispatchers is registered.
    pub(crate) async fn dispatchers(&self, number: i64) {
        eventually("the dispatchers are registered", async || {
            match self.number("SELECT count(*) FROM dispatchers").await {
                count if count == number => Ok(()),
                count => Err(count),
            }
        })
        .await;
    }

    /// Runs a statement and returns its only number.
    pub(crate) async fn number(&self, statement: &'static str) -> i64 {
        sqlx::query_scalar(statement).fetch_one(&self.pool).await.unwrap()
    }
}

async fn raise_version(connection: &mut sqlx::PgConnection) {
    sqlx::query("UPDATE endpoints_version SET version = version + 1").execute(connection).await.unwrap();
}

/// A running dispatcher.
pub(crate) struct Dispatcher {
    run: JoinHandle<anyhow::Result<()>>,
    shutdown: Shutdown,
    pub(crate) operations_url: String,
}

impl Dispatcher {
    /// Stops the dispatcher and waits until it has ended.
    pub(crate) async fn stop(self) {
        self.shutdown.request();
        self.run.await.unwrap().unwrap();
    }

    /// Aborts the dispatcher at once: it finishes, writes and releases nothing.
    pub(crate) async fn kill(self) {
        self.run.abort();
        assert!(self.run.await.unwrap_err().is_cancelled());
    }
}
