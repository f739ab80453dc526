//! The state before a measurement of the dispatcher: workspaces with endpoints, and the clicks on the topic.

use std::time::Duration;

use ::tests::engines::Isolated;
use ::tests::links;
use anyhow::Context as _;
use chrono::Utc;
use devstack::readiness::until;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use schemas::id::WorkspaceId;
use schemas::message::{Class, Click, Message as _};
use schemas::topic;
use service::config::KeyRing;
use service::sealed;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use uuid::Uuid;

/// Endpoints of one workspace.
const PER_WORKSPACE: usize = 20;

/// The secret of every endpoint.
pub(super) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=";

/// The key that seals it, as in a deployment of the tests.
const SECRET_KEYS: &str = "1:2222222222222222222222222222222222222222222222222222222222222222";

/// How long the last deliveries in the queue may take.
const DEADLINE: Duration = ::tests::PATIENCE;

/// Workspaces of accounts on the Business plan, with endpoints.
pub(super) struct Stage {
    engines: Isolated,
    workspaces: Vec<WorkspaceId>,
    /// Endpoints of each workspace.
    each: usize,
    pool: PgPool,
    producer: ThreadedProducer<DefaultProducerContext>,
}

impl Stage {
    /// Creates this number of endpoints with the same URL.
    pub(super) async fn create(engines: &Isolated, url: &str, endpoints: usize) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(2).connect(&engines.database_url).await?;
        let count = endpoints.div_ceil(PER_WORKSPACE);
        let ids: Vec<Uuid> = (0..count).map(|_| Uuid::now_v7()).collect();
        sqlx::query("INSERT INTO accounts (id, name, plan) SELECT unnest($1::uuid[]), 'Bench', 'business'")
            .bind(&ids)
            .execute(&pool)
            .await?;
        // An account and its workspace have the same id.
        sqlx::query(
            "INSERT INTO workspaces (id, account_id, name, kind) SELECT id, id, 'Bench', 'personal'
             FROM unnest($1::uuid[]) AS id",
        )
        .bind(&ids)
        .execute(&pool)
        .await?;
        let mut config = engines.kafka();
        config
            .set("linger.ms", "5")
            .set("compression.type", "lz4")
            .set("queue.buffering.max.messages", "1000000");
        let stage = Self {
            engines: engines.clone(),
            workspaces: ids.into_iter().map(WorkspaceId::from_uuid).collect(),
            each: endpoints.min(PER_WORKSPACE),
            pool,
            producer: config.create().context("cannot create a producer")?,
        };
        stage.add_endpoints(url, endpoints).await?;
        Ok(stage)
    }

    async fn add_endpoints(&self, url: &str, endpoints: usize) -> anyhow::Result<()> {
        let keys: KeyRing = SECRET_KEYS.parse()?;
        let mut sealed_secrets = Vec::with_capacity(endpoints);
        let ids: Vec<Uuid> = (0..endpoints).map(|_| Uuid::now_v7()).collect();
        for id in &ids {
            let nonce: Vec<u8> = [id.as_bytes().as_slice(), &[0; 8]].concat();
            let nonce = nonce.try_into().ok().context("a nonce has 24 bytes")?;
            sealed_secrets.push(sealed::seal(&keys, id.as_bytes(), SECRET, nonce)?.bytes);
        }
        let workspaces: Vec<Uuid> =
            self.workspaces.iter().cycle().take(endpoints).map(|workspace| workspace.uuid()).collect();
        sqlx::query(
            "INSERT INTO webhook_endpoints (id, workspace_id, url, events, enabled_from, secret_key_id,
                                            secret_sealed, created_at, updated_at)
             SELECT id, workspace_id, $4, '{click.created}', now(), 1, sealed, now(), now()
             FROM unnest($1::uuid[], $2::uuid[], $3::bytea[]) AS e (id, workspace_id, sealed)",
        )
        .bind(ids)
        .bind(workspaces)
        .bind(sealed_secrets)
        .bind(url)
        .execute(&self.pool)
        .await?;
        sqlx::query("UPDATE endpoints_version SET version = version + 1").execute(&self.pool).await?;
        sqlx::query("ANALYZE webhook_endpoints").execute(&self.pool).await?;
        Ok(())
    }

    /// Publishes this number of links of the first workspace, and returns their slugs in the topic's order.
    pub(super) fn links(&self, count: usize) -> Vec<String> {
        links::publish_of(&self.engines, self.workspaces[0], count)
    }

    /// Publishes the clicks of about this number of deliveries, and returns the exact number.
    pub(super) async fn publish(&self, deliveries: usize) -> anyhow::Result<usize> {
        let clicks = deliveries / self.each;
        for number in 0..clicks {
            self.click(number)?;
        }
        self.producer.flush(DEADLINE)?;
        Ok(clicks * self.each)
    }

    fn click(&self, number: usize) -> anyhow::Result<()> {
        let click_id = format!("AQGSbz58G3t-mlEvHTxLWmkBoMRQbHsJ{}", Uuid::now_v7().simple());
        let click = Click {
            class: Class::Human,
            click_id: click_id.clone(),
            workspace_id: self.workspaces[number % self.workspaces.len()],
            occurred_at: Utc::now(),
            again: false,
            ..Click::decode(include_bytes!("../../../schemas/fixtures/click.v1.json"))?
        };
        let topic = self.engines.topic(topic::CLICKS);
        let value = click.encode();
        let record = BaseRecord::to(&topic).key(click_id.as_str()).payload(value.as_slice());
        self.producer.send(record).map_err(|(error, _)| error)?;
        Ok(())
    }

    /// Waits until the queue is empty.
    pub(super) async fn queue_is_empty(&self) -> anyhow::Result<()> {
        until("the end of every delivery", DEADLINE, || async {
            let left: i64 =
                sqlx::query_scalar("SELECT count(*) FROM webhook_deliveries").fetch_one(&self.pool).await?;
            if left == 0 { Ok(()) } else { Err(format!("{left} are left").into()) }
        })
        .await?;
        Ok(())
    }

    /// Closes the connections: a database in use cannot be removed.
    pub(super) async fn close(self) {
        self.pool.close().await;
    }
}
