//! `demo`: fills the demo workspace with links, their [`history`] of clicks and conversions, and a webhook endpoint.
//!
//! Clicks are written to their topic directly, because the edge accepts none older than ten days. Everything else is
//! created through the API and then backdated in Postgres.

use std::str::FromStr as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use chrono::{DateTime, Utc};
use devstack::{http, readiness};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use reqwest::Method;
use schemas::click_id::ClickIdKeys;
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::{Class, Click, Message as _};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};

use crate::control;
use crate::folder::Folder;
use crate::history::{Data, Link, Visit};
use crate::state::{DEMO, DemoAccount, History};
use crate::status::Status;
use crate::terminal::print_line;

/// How long Kafka may take to confirm the clicks, and the processor to count them.
const DEADLINE: Duration = Duration::from_secs(120);

/// A created link and its clicks.
struct CreatedLink<'a> {
    link: &'a Link,
    id: LinkId,
    visits: Vec<Visit>,
}

/// Fills the workspace unless an earlier run has.
pub(crate) async fn fill(folder: &Folder) -> anyhow::Result<()> {
    let began = Instant::now();
    let status = control::status(folder).await?;
    let services = control::services(folder).await?;
    let api = Api::new(&status)?;
    let demo: DemoAccount = folder.read(DEMO)?.context("there is no demo account yet: see `./dev status`")?;
    let address = status.dashboard_address().unwrap_or_default();
    if demo.history.as_ref().is_some_and(|history| history.is_complete) {
        print_line(&format!("The demo data is already there: {address}"));
        return Ok(());
    }
    api.ensure_no_endpoint_gets_clicks().await?;
    // An interrupted run is continued with the same clicks: they have the same ids and count once.
    let (is_repeat, end) = match &demo.history {
        Some(history) => (true, history.end),
        None => (false, schemas::time::to_millis(Utc::now())),
    };
    let save = |is_complete| {
        folder.write(DEMO, &DemoAccount { history: Some(History { end, is_complete }), ..demo.clone() })
    };
    save(false)?;

    let data = Data::load()?;
    let mut links = Vec::new();
    for link in &data.links {
        links.push(CreatedLink { link, id: api.upsert(link).await?, visits: data.visits(link, end) });
    }
    // The one of a cluster's servers that accepts writes: this client takes only one.
    let primary = status.services.iter().find(|service| service.role.as_deref() == Some("primary"));
    let url = primary.and_then(|primary| primary.url.as_ref());
    let url = url.or(status.postgres.as_ref()).context("Postgres is not running")?;
    let mut postgres = PgConnection::connect(url).await.context("connecting to Postgres")?;
    for CreatedLink { link, id, .. } in &links {
        backdate_link(&mut postgres, *id, link.created_at(end)).await?;
    }
    let keys =
        services.variables.get("HOPLINE_CLICK_ID_KEYS").context("the stack has no HOPLINE_CLICK_ID_KEYS")?;
    let keys = click_id_keys(keys)?;
    let workspace = demo.workspace_id.parse().context("the demo account's workspace id")?;
    let (mut clicks, mut converting) = (Vec::new(), Vec::new());
    for link in &links {
        for visit in &link.visits {
            let click = click(link, visit, &keys, workspace, is_repeat);
            if visit.converts {
                converting.push(click.click_id.clone());
            }
            clicks.push(click);
        }
    }
    let sent = clicks.len();
    let client = status.kafka_client().context("Kafka is not running")?;
    tokio::task::spawn_blocking(move || publish(client, &clicks)).await??;
    api.await_counts(&links).await?;
    for (number, click_id) in converting.iter().enumerate() {
        api.convert(click_id, number).await?;
    }
    for CreatedLink { id, .. } in &links {
        backdate_conversions(&mut postgres, *id).await?;
    }
    let receiver = status.receiver.as_deref().context("the stack has no webhook receiver")?;
    api.ensure_endpoint(receiver).await?;
    save(true)?;
    print_line(&format!(
        "Created {} links with {sent} clicks of {} days, {} conversions and a webhook endpoint in {:.1} s.\n\
         Dashboard: {address}",
        links.len(),
        data.links.iter().map(|link| link.age_days).max().unwrap_or_default(),
        converting.len(),
        began.elapsed().as_secs_f32()
    ));
    Ok(())
}

/// Returns the click of a visit as the edge would write it.
fn click(
    link: &CreatedLink<'_>,
    visit: &Visit,
    keys: &ClickIdKeys,
    workspace: WorkspaceId,
    again: bool,
) -> Click {
    let text = |text: &str| text.to_owned();
    let [utm_source, utm_medium, utm_campaign] =
        visit.source.and_then(|source| source.utm).map_or([None; 3], |utm| utm.map(Some));
    Click {
        version: Default::default(),
        click_id: keys.mint(link.id, visit.at, visit.random),
        link_id: link.id,
        workspace_id: workspace,
        slug: text(link.link.slug),
        occurred_at: visit.at,
        class: visit.class,
        visitor: visit.visitor,
        country: Some(text(visit.country)),
        device_type: Some(text(visit.agent.device_type)),
        browser: visit.agent.browser.map(text),
        os: visit.agent.os.map(text),
        referrer: visit.source.and_then(|source| source.referrer).map(text),
        utm_source: utm_source.map(text),
        utm_medium: utm_medium.map(text),
        utm_campaign: utm_campaign.map(text),
        utm_term: None,
        utm_content: None,
        external_click_id: None,
        user_agent: Some(text(visit.agent.user_agent)),
        purpose: None,
        again,
    }
}

/// Writes the clicks to their topic and waits until Kafka has confirmed them.
fn publish(mut client: ClientConfig, clicks: &[Click]) -> anyhow::Result<()> {
    let producer: ThreadedProducer<DefaultProducerContext> =
        client.set("acks", "all").set("enable.idempotence", "true").set("linger.ms", "20").create()?;
    let prefix = std::env::var("HOPLINE_TOPIC_PREFIX").unwrap_or_default();
    let topic = format!("{prefix}{}", schemas::topic::CLICKS.name);
    for click in clicks {
        let value = click.encode();
        let mut record = BaseRecord::to(&topic).key(&click.click_id).payload(&value);
        while let Err((error, back)) = producer.send(record) {
            match error {
                KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull) => record = back,
                error => return Err(error).context("writing a click"),
            }
            producer.poll(Duration::from_millis(50));
        }
    }
    producer.flush(DEADLINE).context("Kafka has not confirmed the clicks")
}

/// Parses `HOPLINE_CLICK_ID_KEYS` with one key, as `./dev` generates it.
fn click_id_keys(text: &str) -> anyhow::Result<ClickIdKeys> {
    let parsed = || {
        let (id, key) = text.split_once(':')?;
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(key.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some((u8::from_str(id).ok()?, bytes))
    };
    Ok(ClickIdKeys::new(parsed().context("HOPLINE_CLICK_ID_KEYS is not one key")?, []))
}

async fn backdate_link(postgres: &mut PgConnection, id: LinkId, at: DateTime<Utc>) -> sqlx::Result<()> {
    let statement = "UPDATE links SET created_at = $2, updated_at = $2 WHERE id = $1";
    sqlx::query(statement).bind(id.uuid()).bind(at).execute(postgres).await.map(drop)
}

/// Spreads the conversions over the two days after their clicks.
async fn backdate_conversions(postgres: &mut PgConnection, link: LinkId) -> sqlx::Result<()> {
    let statement = "UPDATE conversions
        SET created_at = least(clicked_at + abs(hashtext(click_id) % 2880) * interval '1 minute', created_at)
        WHERE link_id = $1";
    sqlx::query(statement).bind(link.uuid()).execute(postgres).await.map(drop)
}

/// The stack's API, with the demo account's key.
struct Api {
    client: reqwest::Client,
    url: String,
    key: String,
}

impl Api {
    fn new(status: &Status) -> anyhow::Result<Self> {
        ensure!(status.ready, "the stack is not ready: see `./dev status`");
        let (url, key) =
            status.api.clone().zip(status.api_key.clone()).context("the stack has no API key")?;
        Ok(Self { client: http::client().map_err(anyhow::Error::from_boxed)?, url, key })
    }

    /// Sends a request and returns the body of the response; fails unless the status is 2xx or `allowed`.
    async fn send(&self, method: Method, path: &str, body: Value, allowed: u16) -> anyhow::Result<Value> {
        let request = self.client.request(method, format!("{}/api{path}", self.url)).bearer_auth(&self.key);
        let request = if body.is_null() { request } else { request.json(&body) };
        let answer = request.send().await.context("the API does not answer")?;
        let status = answer.status();
        let answer: Value = answer.json().await.unwrap_or_default();
        ensure!(
            status.is_success() || status == allowed,
            "the API answered {path} with {status}: {}",
            answer["message"].as_str().unwrap_or("")
        );
        Ok(answer)
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send(Method::GET, path, Value::Null, 200).await
    }

    async fn post(&self, path: &str, body: Value) -> anyhow::Result<Value> {
        self.send(Method::POST, path, body, 200).await
    }

    /// Fails when an endpoint of the user's would get every click of the history.
    async fn ensure_no_endpoint_gets_clicks(&self) -> anyhow::Result<()> {
        for endpoint in self.endpoints().await? {
            let gets_clicks = endpoint["events"]
                .as_array()
                .is_some_and(|events| events.iter().any(|e| e == "click.created"));
            ensure!(
                !gets_clicks,
                "the webhook endpoint {} would get every click of the demo: delete it first",
                endpoint["url"].as_str().unwrap_or("")
            );
        }
        Ok(())
    }

    async fn endpoints(&self) -> anyhow::Result<Vec<Value>> {
        let mut answer = self.get("/webhooks").await?;
        Ok(answer["webhooks"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    async fn upsert(&self, link: &Link) -> anyhow::Result<LinkId> {
        let body = json!({
            "external_id": format!("demo-{}", link.slug),
            "slug": link.slug,
            "name": link.name,
            "destination": link.destination,
            "tags": link.tags,
        });
        let answer = self.send(Method::PUT, "/links/upsert", body, 200).await;
        let answer = answer.with_context(|| format!("creating the link {}", link.slug))?;
        answer["id"].as_str().and_then(|id| id.parse().ok()).context("the API returned a link without an id")
    }

    /// Waits until every human click is counted.
    async fn await_counts(&self, links: &[CreatedLink<'_>]) -> anyhow::Result<()> {
        let is_human = |visit: &&Visit| visit.class == Class::Human;
        let wanted: usize = links.iter().map(|link| link.visits.iter().filter(is_human).count()).sum();
        let counted = readiness::until("the count of all clicks", DEADLINE, async || {
            let mut counted = 0;
            for CreatedLink { id, .. } in links {
                let answer = self.get(&format!("/links/{id}")).await?;
                counted += answer["total_clicks"].as_u64().unwrap_or(0);
            }
            if counted >= wanted as u64 {
                Ok(())
            } else {
                Err(format!("{counted} of {wanted} are counted").into())
            }
        });
        Ok(counted.await?)
    }

    async fn convert(&self, click_id: &str, number: usize) -> anyhow::Result<()> {
        let body =
            json!({ "click_id": click_id, "external_user_id": format!("customer-{}", 1_000 + number) });
        // 409: an interrupted run has registered it.
        self.send(Method::POST, "/conversions", body, 409).await.map(drop)
    }

    async fn ensure_endpoint(&self, receiver: &str) -> anyhow::Result<()> {
        if self.endpoints().await?.iter().any(|endpoint| endpoint["url"] == receiver) {
            return Ok(());
        }
        let body = json!({
            "url": receiver,
            "description": "Demo receiver of `./dev`: accepts everything",
            "events": ["click.created", "link.created", "link.updated", "link.deleted"],
        });
        let endpoint = self.post("/webhooks", body).await?;
        let id = endpoint["id"].as_str().context("the API returned an endpoint without an id")?;
        self.post(&format!("/webhooks/{id}/test"), Value::Null).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Secrets;

    #[test]
    fn demo_clicks_have_valid_ids_and_can_be_decoded() {
        let keys = click_id_keys(&Secrets::generate().unwrap().click_id_keys).unwrap();
        let id: LinkId = "lnk_01j9qkwz0vfdz9mm9f3my4ppk9".parse().unwrap();
        let end: DateTime<Utc> = "2026-11-22T14:20:00Z".parse().unwrap();
        let data = Data::load().unwrap();
        let link = CreatedLink { link: &data.links[0], id, visits: data.visits(&data.links[0], end) };
        let workspace = "wsp_01j9qkwz0vfdz9mm9f3my4ppk9".parse().unwrap();
        for visit in &link.visits {
            let click = click(&link, visit, &keys, workspace, false);
            let verified = keys.verify(&click.click_id).unwrap();
            assert_eq!((verified.link_id, verified.occurred_at), (id, click.occurred_at));
            assert_eq!(Click::decode(&click.encode()).unwrap(), click);
            assert!(!visit.converts || click.class == Class::Human);
        }
    }
}
