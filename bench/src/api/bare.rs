//! The statements without a service: the least that an operation asks of the engines.

use std::collections::HashMap;

use ::tests::engines::Isolated;
use ::tests::links::DESTINATION;
use anyhow::ensure;
use clickhouse::Row;
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::{ForwardQuery, Link, LinkRecord, Message as _, Version};
use schemas::topic::{LINK_EVENTS, LINKS};
use serde::Deserialize;
use service::clickhouse::ClickhouseConfig;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::stage::{PAGE, Stage};

/// The newest links of a workspace.
const PAGE_OF_LINKS: &str =
    "SELECT l.* FROM links l WHERE l.workspace_id = $1 ORDER BY l.created_at DESC, l.id DESC LIMIT $2";

/// The counters of links, from raw rows.
const COUNTERS: &str = "SELECT link_id, count() AS total, uniqCombined64(17)(visitor) AS unique FROM clicks
    WHERE workspace_id = toUUID(?) AND link_id IN (SELECT toUUID(arrayJoin(?))) AND class = 'human'
    GROUP BY link_id";

/// A link, its two outbox rows and their notification, without the API's lock and limit.
const INSERT_LINK: &str = "WITH link AS (
        INSERT INTO links (id, workspace_id, user_id, slug, name, destination, created_at, updated_at)
        VALUES ($1, $2, $3, $4, $5, $6, now(), now())
    ), queued AS (
        INSERT INTO outbox (topic, key, value)
        SELECT * FROM unnest($7::text[], $8::text[], $9::bytea[]) RETURNING seq
    )
    SELECT count(pg_notify('hopline_outbox', '')) FROM queued";

/// A connection to Postgres and one to ClickHouse.
pub(super) struct Bare {
    postgres: PgConnection,
    clickhouse: clickhouse::Client,
    workspace: Uuid,
    user: Uuid,
    /// The ids of the newest links.
    newest: Vec<String>,
}

#[derive(Row, Deserialize)]
struct CountRow {
    #[serde(with = "clickhouse::serde::uuid")]
    link_id: Uuid,
    total: u64,
    unique: u64,
}

impl Bare {
    /// Connects, and reads which links are the newest.
    pub(super) async fn new(engines: &Isolated, stage: &Stage) -> anyhow::Result<Self> {
        let mut postgres = engines.postgres().await;
        let newest: Vec<Uuid> = sqlx::query_scalar(
            "SELECT id FROM links WHERE workspace_id = $1 ORDER BY created_at DESC, id DESC LIMIT $2",
        )
        .bind(stage.workspace)
        .bind(limit()?)
        .fetch_all(&mut postgres)
        .await?;
        let config = ClickhouseConfig::of(engines.clickhouse_url.parse()?);
        Ok(Self {
            postgres,
            clickhouse: service::clickhouse::Clickhouse::new(&config).client(),
            workspace: stage.workspace,
            user: stage.user,
            newest: newest.iter().map(Uuid::to_string).collect(),
        })
    }

    /// Runs the list's two queries concurrently. The API must wait for the ids from the first one.
    pub(super) async fn page_and_counters(&mut self) -> anyhow::Result<()> {
        let counters = counters(&self.clickhouse, self.workspace, &self.newest);
        let page =
            sqlx::query(PAGE_OF_LINKS).bind(self.workspace).bind(limit()?).fetch_all(&mut self.postgres);
        let (page, counters) = tokio::join!(page, counters);
        ensure!(page?.len() > PAGE, "the page is not full");
        ensure!(counters?.len() > PAGE, "a link of the page has no clicks");
        Ok(())
    }

    /// Returns the total clicks of the newest links.
    pub(super) async fn totals(&self) -> anyhow::Result<HashMap<Uuid, u64>> {
        let rows = counters(&self.clickhouse, self.workspace, &self.newest).await?;
        ensure!(rows.iter().all(|row| row.unique <= row.total), "more visitors than clicks");
        Ok(rows.into_iter().map(|row| (row.link_id, row.total)).collect())
    }

    /// Inserts a link and two outbox rows with the link's message.
    pub(super) async fn create(&mut self) -> anyhow::Result<()> {
        let id = Uuid::now_v7();
        let slug = id.simple().to_string().split_off(22);
        let link_id = LinkId::from_uuid(id);
        let message = LinkRecord::Live(Link {
            version: Version,
            id: link_id,
            revision: 1,
            workspace_id: WorkspaceId::from_uuid(self.workspace),
            slug: slug.clone(),
            destination: DESTINATION.to_owned(),
            is_active: true,
            redirect_status: 302,
            forward_query: ForwardQuery::Append,
            append_click_id: true,
            expires_at: None,
            is_blocked: false,
        })
        .encode();
        sqlx::query(INSERT_LINK)
            .bind(id)
            .bind(self.workspace)
            .bind(self.user)
            .bind(&slug)
            .bind("A link of the bench")
            .bind(DESTINATION)
            .bind(&[LINKS.name, LINK_EVENTS.name][..])
            .bind(&[link_id.to_string(), link_id.to_string()][..])
            .bind(&[message.clone(), message][..])
            .execute(&mut self.postgres)
            .await?;
        Ok(())
    }

    /// Closes the connection: a database in use cannot be removed.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        Ok(self.postgres.close().await?)
    }
}

/// One more than a page, as the API reads to know whether there is a next one.
fn limit() -> anyhow::Result<i64> {
    Ok(i64::try_from(PAGE + 1)?)
}

async fn counters(
    clickhouse: &clickhouse::Client,
    workspace: Uuid,
    links: &[String],
) -> clickhouse::error::Result<Vec<CountRow>> {
    clickhouse.query(COUNTERS).bind(workspace.to_string()).bind(links).fetch_all().await
}
