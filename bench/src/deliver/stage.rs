//! What is there before anything is measured: accounts, workspaces, endpoints; and the clicks that are published.

use std::time::Duration;

use ::tests::{engines::Isolated, links};
use anyhow::Context as _;
use chrono::Utc;
use devstack::readiness::until;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use schemas::id::WorkspaceId;
use schemas::message::{Class, Click, Message as _};
use schemas::topic;
use service::{config::KeyRing, sealed};
use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::time::{MissedTickBehavior, interval};
use uuid::Uuid;

use super::PER_WORKSPACE;

/// The secret of every endpoint.
pub(super) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=";

/// What it is sealed with.
pub(super) const SECRET_KEYS: &str = "1:2222222222222222222222222222222222222222222222222222222222222222";

/// How long what is left in the queue may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// A body as a click makes it.
pub(super) fn body() -> String {
    let id = Uuid::nil();
    format!(
        r#"{{"id":"{id}","event":"click.created","created_at":"2026-09-21T13:33:20.123Z","data":{{"link_id":"lnk_01j9qkwz0vfdz9mm9f3my4ppk9","slug":"spring","country":"DE","device_type":"mobile","utm_source":"newsletter","utm_campaign":"spring","click_id":"AQGSbz58G3t-mlEvHTxLWmkBoMRQbHsJCQkJCQkJCQkJMvFk5fAerVRhyH4v","occurred_at":"2026-09-21T13:33:20.123Z","class":"human"}}}}"#
    )
}

/// Workspaces of an account on the Business plan, with endpoints.
pub(super) struct Stage {
    engines: Isolated,
    workspaces: Vec<WorkspaceId>,
    /// Endpoints that the workspaces had at first, shared out evenly.
    each: usize,
    pool: PgPool,
    producer: ThreadedProducer<DefaultProducerContext>,
}

impl Stage {
    /// Makes so many endpoints that all lead to `url`.
    pub(super) async fn set(engines: &Isolated, url: &str, endpoints: usize) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(2).connect(&engines.database_url).await?;
        let count = endpoints.div_ceil(PER_WORKSPACE);
        let ids: Vec<Uuid> = (0..count).map(|_| Uuid::now_v7()).collect();
        sqlx::query("INSERT INTO accounts (id, name, plan) SELECT unnest($1::uuid[]), 'Bench', 'business'")
            .bind(&ids)
            .execute(&pool)
            .await?;
        // An account and its workspace share their id, which nothing here minds.
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
            producer: config.create().context("cannot make a producer")?,
        };
        stage.add_endpoints(url, endpoints).await?;
        Ok(stage)
    }

    /// Adds so many endpoints, shared out evenly.
    pub(super) async fn add_endpoints(&self, url: &str, endpoints: usize) -> anyhow::Result<()> {
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

    /// Publishes so many links of the first workspace, and returns their slugs in the topic's order.
    pub(super) fn links(&self, count: usize) -> Vec<String> {
        links::publish_of(&self.engines, self.workspaces[0], count)
    }

    /// How many workspaces there are.
    pub(super) fn workspaces(&self) -> usize {
        self.workspaces.len()
    }

    /// Publishes as many clicks as make so many deliveries, and returns how many they make.
    pub(super) async fn publish(&self, deliveries: usize) -> anyhow::Result<usize> {
        let clicks = deliveries / self.each;
        for number in 0..clicks {
            self.click(number)?;
        }
        self.producer.flush(DEADLINE)?;
        Ok(clicks * self.each)
    }

    /// Publishes clicks one by one.
    pub(super) async fn publish_steadily(&self, clicks: usize, pause: Duration) -> anyhow::Result<()> {
        let mut turns = interval(pause);
        turns.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for number in 0..clicks {
            turns.tick().await;
            self.click(number)?;
        }
        self.producer.flush(DEADLINE)?;
        Ok(())
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

    /// Puts deliveries into the queue as if they had waited for long.
    pub(super) async fn wait_in_postgres(&self, deliveries: u32) -> anyhow::Result<()> {
        sqlx::query(
            "INSERT INTO webhook_deliveries
                 (delivery_id, endpoint_id, workspace_id, epoch, event, body, created_at, due_at)
             SELECT gen_random_uuid(), e.id, e.workspace_id, e.epoch, 'click.created', $2, now(), now()
             FROM generate_series(0, $1 - 1) AS number
             JOIN (SELECT *, row_number() OVER () - 1 AS place FROM webhook_endpoints) AS e
               ON e.place = number % (SELECT count(*) FROM webhook_endpoints)",
        )
        .bind(i64::from(deliveries))
        .bind(body().into_bytes())
        .execute(&self.pool)
        .await?;
        sqlx::query("VACUUM ANALYZE webhook_deliveries").execute(&self.pool).await?;
        Ok(())
    }

    /// Waits until the queue is empty.
    pub(super) async fn is_done(&self) -> anyhow::Result<()> {
        until("the end of every delivery", DEADLINE, || async {
            let left: i64 =
                sqlx::query_scalar("SELECT count(*) FROM webhook_deliveries").fetch_one(&self.pool).await?;
            if left == 0 { Ok(()) } else { Err(format!("{left} are left").into()) }
        })
        .await?;
        Ok(())
    }

    /// Closes the connections: a database that is in use cannot be removed.
    pub(super) async fn close(self) {
        self.pool.close().await;
    }
}
