//! The state before a measurement of the API: an account, a key, many links, clicks; and the running API.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use ::tests::deployment::Deployment;
use ::tests::engines::Isolated;
use anyhow::{Context as _, ensure};
use devstack::Server;
use devstack::readiness::until;
use schemas::id::LinkId;
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::server;

/// Links in a page of the list.
pub(super) const PAGE: usize = 100;

/// The body of a request for a new link with a generated slug.
pub(super) const NEW_LINK: &str =
    r#"{"name":"A link of the bench","destination":"https://shop.example.com/landing"}"#;

/// The account's plan, which has no limit of links.
const PLAN: &str = "business";

/// How long publishing the rest of the outbox may take.
const DRAIN: Duration = Duration::from_secs(60);

/// A running API with an account, and a connection to its database.
pub(crate) struct Stage {
    pub(crate) workspace: Uuid,
    pub(super) user: Uuid,
    /// A read,write key.
    pub(crate) key: String,
    /// Where the API answers.
    pub(crate) address: SocketAddr,
    links: u32,
    postgres: PgConnection,
    api: Server,
    // Declared after the server, which writes its log to the deployment's folder.
    _deployment: Deployment,
}

impl Stage {
    /// Starts the API and creates an account with this number of links, numbered from 0 as in [`link`].
    pub(crate) async fn start(engines: &Isolated, links: u32) -> anyhow::Result<Self> {
        let deployment = Deployment::prepare(engines.clone());
        let api = server::start(&deployment.api).await?;
        let address = deployment.api_url().trim_start_matches("http://").parse()?;
        let key = deployment.create_account(PLAN).await;
        let mut postgres = engines.postgres().await;
        let (workspace, user): (Uuid, Uuid) =
            sqlx::query_as("SELECT w.id, u.id FROM users u JOIN workspaces w ON w.account_id = u.account_id")
                .fetch_one(&mut postgres)
                .await?;
        sqlx::query(
            "INSERT INTO links (id, workspace_id, user_id, slug, name, destination, created_at, updated_at)
             SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, $1, $2, 'bench-' || i,
                    'Link ' || i, 'https://shop.example.com/landing', at, at
             FROM (SELECT i, date_trunc('second', now()) - ($3 - i) * interval '1 second' AS at
                   FROM generate_series(0, $3 - 1) AS i) AS numbered",
        )
        .bind(workspace)
        .bind(user)
        .bind(i32::try_from(links)?)
        .execute(&mut postgres)
        .await?;
        sqlx::query("VACUUM ANALYZE links").execute(&mut postgres).await?;
        // The state of a processor without lag.
        engines
            .clickhouse("INSERT INTO progress SELECT 65536 + number, now64(3, 'UTC') FROM numbers(12)")
            .await;
        engines
            .clickhouse(
                "INSERT INTO sources (src, topic_id, at) SELECT 65536 + number, generateUUIDv4(), now64(3) \
                FROM numbers(12)",
            )
            .await;
        Ok(Self { workspace, user, key, address, links, postgres, api, _deployment: deployment })
    }

    /// Inserts an open day of clicks, spread over all links and hours, a tenth of them by bots.
    pub(super) async fn clicks(&self, engines: &Isolated, clicks: u32) {
        let Self { workspace, links, .. } = self;
        engines
            .clickhouse(&format!(
                "INSERT INTO clicks (workspace_id, link_id, occurred_at, click_id, slug, class, visitor,
                                     src, koff, broker_ts)
                 SELECT toUUID('{workspace}'),
                        toUUID(concat('00000000-0000-7000-8000-', leftPad(lower(hex(number % {links})), 12, '0'))),
                        at, concat('click-', toString(number)), concat('bench-', toString(number % {links})),
                        if(intDiv(number, {links}) % 10 = 9, 'bot', 'human'), sipHash64(number % 77777), 1, number, at
                 FROM (SELECT number, now64(3, 'UTC') - toIntervalSecond(sipHash64(number) % 86400) AS at
                       FROM numbers({clicks}))"
            ))
            .await;
        engines.clickhouse("OPTIMIZE TABLE clicks FINAL").await;
    }

    /// Waits until Kafka has all rows of the outbox.
    pub(super) async fn outbox_is_empty(&mut self) -> anyhow::Result<()> {
        let postgres = tokio::sync::Mutex::new(&mut self.postgres);
        until("the publishing of the outbox", DRAIN, || async {
            let left: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox")
                .fetch_one(&mut **postgres.lock().await)
                .await?;
            if left == 0 { Ok(()) } else { Err(format!("{left} rows are left").into()) }
        })
        .await?;
        Ok(())
    }

    /// Stops the API and closes the connection: a database in use cannot be removed.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.postgres.close().await?;
        server::stop(&self.api).await
    }
}

/// Returns the id of a link by its number; ids are in the order of creation, as UUIDs v7 are.
pub(crate) fn link(number: u32) -> LinkId {
    LinkId::from_uuid(Uuid::from_u128(0x7000_8000_0000_0000_0000 | u128::from(number)))
}

fn text<'a>(answer: &'a Value, field: &str) -> anyhow::Result<&'a str> {
    answer[field].as_str().with_context(|| format!("the answer has no {field}"))
}

/// Checks that an answer is a page of this number of links with the totals that ClickHouse has, none of them zero.
pub(super) fn check_page(answer: &[u8], links: usize, totals: &HashMap<Uuid, u64>) -> anyhow::Result<()> {
    let answer: Value = serde_json::from_slice(answer).context("the list is not JSON")?;
    let page = answer["links"].as_array().context("the list has no links")?;
    ensure!(page.len() == links, "the list has {} links and not {links}", page.len());
    for link in page {
        let id = text(link, "id")?.parse::<LinkId>()?;
        let total = link["total_clicks"].as_u64().filter(|total| *total > 0);
        let total = total.with_context(|| format!("link {id} has no clicks in the list"))?;
        ensure!(totals.get(&id.uuid()) == Some(&total), "link {id} has other clicks than ClickHouse");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_with_wrong_counters_is_an_error() {
        let totals = HashMap::from([(Uuid::nil(), 7)]);
        let page = |total: Value| {
            let link = json!({ "id": LinkId::from_uuid(Uuid::nil()).to_string(), "total_clicks": total });
            json!({ "links": [link] }).to_string().into_bytes()
        };
        assert!(check_page(&page(json!(7)), 1, &totals).is_ok());
        assert!(check_page(&page(json!(7)), 2, &totals).is_err());
        for wrong in [json!(8), json!(0), Value::Null] {
            assert!(check_page(&page(wrong), 1, &totals).is_err());
        }
    }
}
