//! The loss of Postgres' primary, and the promotion of its standby.

use devstack::{Server, postgres};
use serde_json::Value;

use super::super::import::{Member, file, is_complete};
use super::super::progress;
use super::{ARRIVED, OwnEngines, SOME, Stage, delivering, receiver};
use crate::arrivals::{Arrivals, Interruption};
use crate::deployment::Deployment;
use crate::engines::{host_of, http_client};
use crate::{eventually, eventually_within};

/// The load.
#[derive(Debug, Clone, Copy)]
pub struct Promotion {
    /// Visitors.
    pub connections: u32,
    /// Clicks per second of all visitors together.
    pub rate: u32,
}

/// Rows of the import that continues during the promotion.
const ROWS: u32 = 3_000;

/// Kills the primary of Postgres under load and promotes its synchronous standby, without restarting a program. Links
/// are created all the time, and a file is imported.
///
/// # Panics
/// When a program ends, a click is not answered, a delivery never arrives, a link that was answered is lost, a member
/// is signed out, requests are not limited any more, or a row of the file is lost or done twice.
pub async fn promotion(plan: Promotion) -> Arrivals {
    let (own, standby) = OwnEngines::start_with_standby().await;
    // A promotion then loses nothing that was answered.
    postgres::set_synchronous(&own.postgres, true).await.unwrap();
    let mut engines = own.isolated().await;
    engines.other_postgres = Some(host_of(standby.url()));

    let receiver = receiver().await;
    let deployment = Deployment::start_on(engines, &[]).await;
    let mut stage = Stage::on(deployment, &receiver.url("/in"), &["click.created"]).await;
    let before = stage.deployment.services().map(Server::pid);
    let load = stage.load(plan.connections, plan.rate);
    let some = u64::from(plan.rate) * 5;
    load.answers(some).await;
    delivering(&receiver, SOME).await;
    let mut created = Vec::new();
    while created.len() < SOME {
        created.extend(create(&stage.deployment).await);
    }
    let limited = stage.deployment.create_account("free").await;
    let member = Member::new(&stage.deployment).await;
    let file = file(ROWS);
    let import: Value = member.send(&file).send().await.unwrap().json().await.unwrap();
    let import = import["import_id"].as_str().unwrap_or_else(|| panic!("{import}"));
    let interruption = Interruption::of(async {
        // Links are created until the primary has ended.
        let mut killed = std::pin::pin!(own.postgres.kill());
        loop {
            tokio::select! {
                () = &mut killed => break,
                link = create(&stage.deployment) => created.extend(link),
            }
        }
        postgres::promote(&standby).await.unwrap();
        progress(&format!("promoted: {} clicks answered, {} links created", load.answered(), created.len()));
        let slug = eventually_within("the API writes again", ARRIVED, async || {
            create(&stage.deployment).await.ok_or("no link")
        })
        .await;
        stage.deployment.edge_knows(&slug).await;
        created.push(slug);
    })
    .await;
    is_complete(&member.done(import).await, ROWS);
    // The count begins again with each minute.
    eventually("requests of a minute are counted", async || {
        let first = remaining(&stage.deployment, &limited).await;
        let second = remaining(&stage.deployment, &limited).await;
        if second < first { Ok(()) } else { Err((first, second)) }
    })
    .await;
    load.answers(some).await;
    delivering(&receiver, SOME).await;
    let log = load.stop().await;
    log.is_complete();
    for slug in &created {
        stage.deployment.edge_knows(slug).await;
    }
    let (gone, present) = (host_of(own.postgres.url()), host_of(standby.url()));
    stage.deployment.engines.database_url = stage.deployment.engines.database_url.replace(&gone, &present);
    let stored: i64 = sqlx::query_scalar("SELECT count(*) FROM links WHERE slug = ANY($1)")
        .bind(&created)
        .fetch_one(&mut stage.deployment.engines.postgres().await)
        .await
        .unwrap();
    assert_eq!(stored, created.len() as i64, "links that were answered are lost");
    let arrivals = stage.arrivals(&log, &receiver, &[interruption]).await;
    assert_eq!(before, stage.deployment.services().map(Server::pid), "a program was restarted");
    arrivals
}

/// Returns a key's remaining requests of this minute.
async fn remaining(deployment: &Deployment, key: &str) -> i64 {
    let request = http_client().get(format!("{}/api/links?limit=1", deployment.api_url()));
    let answer = request.bearer_auth(key).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.headers()["x-ratelimit-remaining"].to_str().unwrap().parse().unwrap()
}

/// Creates a link and returns its slug, unless the API cannot write.
async fn create(deployment: &Deployment) -> Option<String> {
    let (status, link) = deployment.try_create_link().await;
    (status == 201).then(|| link["slug"].as_str().unwrap().to_owned())
}
