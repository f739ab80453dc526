//! What is there before anything is measured: an account, a key, many links, clicks.

use std::{collections::HashMap, time::Duration};

use ::tests::engines::Isolated;
use anyhow::{Context as _, ensure};
use devstack::readiness::until;
use schemas::id::{LinkId, WorkspaceId};
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::server::Server;

/// The body of a request for a new link; its slug is drawn.
pub(super) const NEW_LINK: &str =
    r#"{"name":"A link of the bench","destination":"https://shop.example.com/landing"}"#;

/// The account's plan: it has no cap of links, so nothing is counted when one is made.
pub(super) const PLAN: &str = "business";

/// How long what a round has left in the outbox may take to Kafka.
const DRAIN: Duration = Duration::from_secs(60);

/// An account of the Business plan with its workspace and links, and a connection to look after them.
pub(crate) struct Stage {
    pub(crate) workspace: Uuid,
    pub(super) user: Uuid,
    /// A read,write key.
    pub(crate) key: String,
    links: u32,
    postgres: PgConnection,
}

impl Stage {
    /// Makes an account and so many links of it, numbered from 0 as in [`link`] and created in this order.
    pub(crate) async fn set(engines: &Isolated, api: &Server, links: u32) -> anyhow::Result<Self> {
        let account = api.admin(&["create-account", "--name", "Bench", "--plan", PLAN]).await?;
        let workspace = text(&account, "workspace_id")?;
        let created = api.admin(&["create-key", "--workspace", workspace, "--scope", "read,write"]).await?;
        let key = text(&created, "key")?.to_owned();
        let workspace = workspace.parse::<WorkspaceId>()?.uuid();
        let mut postgres = engines.postgres().await;
        let user = sqlx::query_scalar(
            "SELECT u.id FROM users u JOIN workspaces w ON w.account_id = u.account_id WHERE w.id = $1",
        )
        .bind(workspace)
        .fetch_one(&mut postgres)
        .await?;
        sqlx::query(
            "INSERT INTO links (id, workspace_id, user_id, slug, name, destination, created_at, updated_at)
             SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, $1, $2, 'bench-' || i,
                    'Link ' || i, 'https://shop.example.com/landing', at, at
             FROM (SELECT i, date_trunc('second', now()) - ($3 - i) * interval '1 second' AS at
                   FROM generate_series(0, $3 - 1) AS i) AS made",
        )
        .bind(workspace)
        .bind(user)
        .bind(i32::try_from(links)?)
        .execute(&mut postgres)
        .await?;
        sqlx::query("VACUUM ANALYZE links").execute(&mut postgres).await?;
        // A processor that is up to date.
        engines
            .clickhouse("INSERT INTO progress SELECT 65536 + number, now64(3, 'UTC') FROM numbers(12)")
            .await;
        engines
            .clickhouse("INSERT INTO sources SELECT 65536 + number, generateUUIDv4(), 0, now64(3), '' FROM numbers(12)")
            .await;
        Ok(Self { workspace, user, key, links, postgres })
    }

    /// Makes a day of clicks, as many as no slice has closed over and raw rows answer for; a tenth of them by bots.
    /// Each link's are of all hours.
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

    /// Waits until Kafka has all changes.
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

    /// Closes the connection: a database that is in use cannot be removed.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        Ok(self.postgres.close().await?)
    }
}

/// The id of a link by its number: in the order of creation, as UUIDs v7 are, and such as ClickHouse can make too.
pub(crate) fn link(number: u32) -> LinkId {
    LinkId::from_uuid(Uuid::from_u128(0x7000_8000_0000_0000_0000 | u128::from(number)))
}

fn text<'a>(answer: &'a Value, field: &str) -> anyhow::Result<&'a str> {
    answer[field].as_str().with_context(|| format!("the answer has no {field}"))
}

/// Checks that an answer is a page of so many links with the totals that ClickHouse has, none of them zero.
pub(super) fn is_page(answer: &[u8], links: usize, totals: &HashMap<Uuid, u64>) -> anyhow::Result<()> {
    let answer: Value = serde_json::from_slice(answer).context("the list is no JSON")?;
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
    fn a_page_without_the_right_counters_is_no_result() {
        let totals = HashMap::from([(Uuid::nil(), 7)]);
        let page = |total: Value| {
            let link = json!({ "id": LinkId::from_uuid(Uuid::nil()).to_string(), "total_clicks": total });
            json!({ "links": [link] }).to_string().into_bytes()
        };
        assert!(is_page(&page(json!(7)), 1, &totals).is_ok());
        assert!(is_page(&page(json!(7)), 2, &totals).is_err());
        for wrong in [json!(8), json!(0), Value::Null] {
            assert!(is_page(&page(wrong), 1, &totals).is_err());
        }
    }
}
