//! The statements without a service around them, on connections of their own.
//!
//! They are those of crate `api`, which nobody may depend on, stated again; a test holds them to its text.

use std::collections::HashMap;

use ::tests::engines::Isolated;
use anyhow::{Context as _, ensure};
use chrono::{DateTime, Utc};
use clickhouse::Row;
use schemas::{
    id::{LinkId, WorkspaceId},
    message::{ForwardQuery, Link, LinkEvent, LinkEventKind, LinkRecord, Message as _, Version},
    topic::{LINK_EVENTS, LINKS},
};
use serde::Deserialize;
use serde_json::json;
use service::clickhouse::ClickhouseConfig;
use sha2::{Digest as _, Sha256};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::{
    PAGE,
    stage::{PLAN, Stage},
};

/// The newest links of a workspace. The API puts it together from pieces, so no test holds it to the API's text.
const PAGE_OF_LINKS: &str =
    "SELECT l.* FROM links l WHERE l.workspace_id = $1 ORDER BY l.created_at DESC, l.id DESC LIMIT $2";

/// The counters of links from the raw rows alone, in one statement. The API adds what its slices have counted and
/// puts its statement together from pieces, so no test holds this to the API's text either.
const COUNTERS: &str = "SELECT link_id, count() AS total, uniqCombined64(17)(visitor) AS unique
             FROM clicks
             WHERE workspace_id = toUUID(?) AND link_id IN (SELECT toUUID(arrayJoin(?)))
               AND class = 'human'
               AND occurred_at >= fromUnixTimestamp64Milli(?, 'UTC')
               AND occurred_at < fromUnixTimestamp64Milli(?, 'UTC')
               AND broker_ts <= fromUnixTimestamp64Milli(?, 'UTC')
             GROUP BY link_id";

/// From `api/src/links/store.rs`.
const INSERT_LINK: &str =
        "WITH queue AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared($17)),
              held AS MATERIALIZED (
             SELECT a.plan FROM queue CROSS JOIN accounts a WHERE a.id = $16 FOR SHARE OF a
         ), link AS (
             INSERT INTO links (id, workspace_id, user_id, slug, name, destination, is_active, redirect_status,
                                forward_query, append_click_id, expires_at, external_id, tags, created_at, updated_at)
             SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15 FROM held WHERE held.plan = $18
             ON CONFLICT DO NOTHING
             RETURNING id
         ), queued AS (
             INSERT INTO outbox (topic, key, value)
             SELECT topic, key, value
             FROM link
             CROSS JOIN unnest($19::text[], $20::text[], $21::bytea[]) WITH ORDINALITY AS m (topic, key, value, place)
             ORDER BY place
             RETURNING seq
         )
         SELECT count(pg_notify($22, '')) > 0 FROM queued";

/// From `api/src/auth.rs`.
const LOOK_UP_AND_COUNT: &str = "
    WITH caller AS (
        SELECT k.id, k.last_used_at, k.workspace_id, k.scope, a.id AS account_id, a.plan, plans.requests_per_minute,
               (SELECT u.id FROM users u WHERE u.account_id = a.id AND u.role = 'owner'
                ORDER BY u.created_at, u.id LIMIT 1) AS owner_id
        FROM api_keys k
        JOIN workspaces w ON w.id = k.workspace_id
        JOIN accounts a ON a.id = w.account_id
        JOIN unnest($2::text[], $3::bigint[]) AS plans (plan, requests_per_minute) ON plans.plan = a.plan
        WHERE k.key_sha256 = $1 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
    ), counted AS (
        INSERT INTO request_windows AS w (account_id, minute, used)
        SELECT account_id, date_trunc('minute', now()), 1 FROM caller WHERE requests_per_minute IS NOT NULL
        ON CONFLICT (account_id) DO UPDATE
        SET minute = greatest(w.minute, excluded.minute),
            used = CASE WHEN w.minute < excluded.minute THEN 1 ELSE w.used + 1 END
        WHERE w.minute < excluded.minute OR w.used < (SELECT requests_per_minute FROM caller)
        RETURNING used
    ), noted AS (
        UPDATE api_keys AS k SET last_used_at = now() FROM caller
        WHERE k.id = caller.id
          AND (caller.last_used_at IS NULL OR caller.last_used_at < now() - interval '1 minute')
    )
    SELECT caller.*, counted.used, date_trunc('minute', now()) + interval '1 minute' AS window_end
    FROM caller LEFT JOIN counted ON true";

/// A key, and nothing that depends on it.
const LOOK_UP: &str = "SELECT workspace_id, scope FROM api_keys
    WHERE key_sha256 = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())";

/// The plans that [`LOOK_UP_AND_COUNT`] is told of.
const PLANS: [&str; 5] = ["free", "starter", "pro", "agency", "business"];

/// A limit under which every request is counted and none refused.
const REQUESTS_PER_MINUTE: i64 = 1_000_000_000;

/// 1970 and 2200, in milliseconds: every click is in between.
const EARLIEST_MILLIS: i64 = 0;
const LATEST_MILLIS: i64 = 7_258_118_400_000;

/// A connection to Postgres and one to ClickHouse.
pub(super) struct Bare {
    postgres: PgConnection,
    clickhouse: clickhouse::Client,
    account: Uuid,
    workspace: Uuid,
    user: Uuid,
    key_sha256: Vec<u8>,
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
    pub(super) async fn new(engines: &Isolated, stage: &Stage) -> anyhow::Result<Self> {
        let mut postgres = engines.postgres().await;
        let newest: Vec<Uuid> = sqlx::query_scalar(
            "SELECT id FROM links WHERE workspace_id = $1 ORDER BY created_at DESC, id DESC LIMIT $2",
        )
        .bind(stage.workspace)
        .bind(limit()?)
        .fetch_all(&mut postgres)
        .await?;
        let account = sqlx::query_scalar("SELECT account_id FROM workspaces WHERE id = $1")
            .bind(stage.workspace)
            .fetch_one(&mut postgres)
            .await?;
        Ok(Self {
            postgres,
            account,
            clickhouse: service::clickhouse::client(&ClickhouseConfig {
                url: engines.clickhouse_url.parse()?,
            }),
            workspace: stage.workspace,
            user: stage.user,
            key_sha256: Sha256::digest(stage.key.as_bytes()).to_vec(),
            newest: newest.iter().map(Uuid::to_string).collect(),
        })
    }

    /// The list's two queries at the same time. That takes the ids of the links for known, which the list must wait for.
    pub(super) async fn page_and_counters(&mut self) -> anyhow::Result<()> {
        let counters = counters(&self.clickhouse, self.workspace, &self.newest);
        let page =
            sqlx::query(PAGE_OF_LINKS).bind(self.workspace).bind(limit()?).fetch_all(&mut self.postgres);
        let (page, counters) = tokio::join!(page, counters);
        ensure!(page?.len() > PAGE, "the page is not full");
        ensure!(counters?.len() > PAGE, "a link of the page has no clicks");
        Ok(())
    }

    /// Total clicks of the newest links.
    pub(super) async fn totals(&self) -> anyhow::Result<HashMap<Uuid, u64>> {
        let rows = counters(&self.clickhouse, self.workspace, &self.newest).await?;
        ensure!(rows.iter().all(|row| row.unique <= row.total), "more visitors than clicks");
        Ok(rows.into_iter().map(|row| (row.link_id, row.total)).collect())
    }

    /// Key, plan and limit in one statement.
    pub(super) async fn authenticate(&mut self) -> anyhow::Result<()> {
        sqlx::query(LOOK_UP_AND_COUNT)
            .bind(&self.key_sha256)
            .bind(&PLANS[..])
            .bind(&[REQUESTS_PER_MINUTE; PLANS.len()][..])
            .fetch_optional(&mut self.postgres)
            .await?
            .map(drop)
            .context("the key is not valid")
    }

    /// The key alone.
    pub(super) async fn look_up_key(&mut self) -> anyhow::Result<()> {
        sqlx::query(LOOK_UP)
            .bind(&self.key_sha256)
            .fetch_optional(&mut self.postgres)
            .await?
            .map(drop)
            .context("the key is not there")
    }

    /// A link and what the outbox says of it, in one statement.
    pub(super) async fn create(&mut self) -> anyhow::Result<()> {
        let id = Uuid::now_v7();
        let slug = id.simple().to_string().split_off(22);
        let now = schemas::time::to_millis(Utc::now());
        let messages = messages(id, self.workspace, &slug, now);
        let key = LinkId::from_uuid(id).to_string();
        let (_, queue) = self.account.as_u64_pair();
        let inserted: bool = sqlx::query_scalar(INSERT_LINK)
            .bind(id)
            .bind(self.workspace)
            .bind(self.user)
            .bind(&slug)
            .bind("A link of the bench")
            .bind(DESTINATION)
            .bind(true)
            .bind(302_i16)
            .bind("append")
            .bind(true)
            .bind(None::<DateTime<Utc>>)
            .bind(None::<String>)
            .bind(Vec::<String>::new())
            .bind(now)
            .bind(now)
            .bind(self.account)
            .bind(queue.cast_signed())
            .bind(PLAN)
            .bind(&[LINKS.name, LINK_EVENTS.name][..])
            .bind(&[key.clone(), key][..])
            .bind(&messages[..])
            .bind("hopline_outbox")
            .fetch_one(&mut self.postgres)
            .await?;
        ensure!(inserted, "slug {slug} is taken");
        Ok(())
    }

    /// Closes the connections: a database that is in use cannot be removed.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        Ok(self.postgres.close().await?)
    }
}

/// Where new links lead.
const DESTINATION: &str = "https://shop.example.com/landing";

/// One more than a page has, as the API reads to know whether there is a next one.
fn limit() -> anyhow::Result<i64> {
    Ok(i64::try_from(PAGE + 1)?)
}

async fn counters(
    clickhouse: &clickhouse::Client,
    workspace: Uuid,
    links: &[String],
) -> clickhouse::error::Result<Vec<CountRow>> {
    clickhouse
        .query(COUNTERS)
        .bind(workspace.to_string())
        .bind(links)
        .bind(EARLIEST_MILLIS)
        .bind(LATEST_MILLIS)
        .bind(LATEST_MILLIS)
        .fetch_all()
        .await
}

/// What the edges and what the receivers are told of a new link, as long as what the API tells them.
fn messages(id: Uuid, workspace: Uuid, slug: &str, now: DateTime<Utc>) -> [Vec<u8>; 2] {
    let (link_id, workspace_id) = (LinkId::from_uuid(id), WorkspaceId::from_uuid(workspace));
    let record = LinkRecord::Live(Link {
        version: Version,
        id: link_id,
        revision: 1,
        workspace_id,
        slug: slug.to_owned(),
        destination: DESTINATION.to_owned(),
        is_active: true,
        redirect_status: 302,
        forward_query: ForwardQuery::Append,
        append_click_id: true,
        expires_at: None,
    });
    let event = LinkEvent {
        version: Version,
        event_id: Uuid::now_v7(),
        event: LinkEventKind::Created,
        link_id,
        workspace_id,
        occurred_at: now,
        data: json!({
            "id": link_id.to_string(), "slug": slug, "short_url": format!("https://go.example.com/{slug}"),
            "name": "A link of the bench", "destination": DESTINATION, "is_active": true, "is_locked": false,
            "redirect_status": 302, "forward_query": "append", "append_click_id": true, "expires_at": null,
            "external_id": null, "tags": [], "created_at": now, "updated_at": now,
        }),
    };
    [record.encode(), event.encode()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statements_are_those_of_the_api() {
        for (statement, source) in [
            (INSERT_LINK, include_str!("../../../api/src/links/store.rs")),
            (LOOK_UP_AND_COUNT, include_str!("../../../api/src/auth.rs")),
        ] {
            assert!(source.contains(statement), "the API has another statement now than {statement}");
        }
    }
}
