//! A link that is deleted while it is clicked.

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use reqwest::Method;
use serde_json::Value;
use tests::deployment::Deployment;
use tests::engines::isolated;
use tests::eventually;
use tests::load::Load;

async fn rows(deployment: &Deployment, slug: &str) -> usize {
    let query = format!("SELECT count() FROM clicks WHERE slug = '{slug}'");
    deployment.engines.clickhouse(&query).await.trim().parse().unwrap()
}

async fn knows(deployment: &Deployment, slug: &str, status: u16) {
    eventually(&format!("{slug} is answered with {status}"), async || match deployment.head(slug).await {
        Ok(found) if found == status => Ok(()),
        other => Err(other),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_deleted_under_load_disappears_and_a_replay_does_not_restore_its_clicks() {
    let deployment = Deployment::start_on(isolated().await, &[("HOPLINE_PURGE_SECONDS", "1")]).await;
    let text = |link: &Value, field: &str| link[field].as_str().unwrap().to_owned();
    let (gone, stays) = (deployment.create_link().await, deployment.create_link().await);
    let (gone_slug, stays_slug) = (text(&gone, "slug"), text(&stays, "slug"));
    for slug in [&gone_slug, &stays_slug] {
        knows(&deployment, slug, 302).await;
    }
    let address = deployment.edge_url().trim_start_matches("http://").parse().unwrap();
    let on = |slug: &String| Load::start(address, std::slice::from_ref(slug), 2, Some(100));
    let (gone_load, stays_load) = (on(&gone_slug), on(&stays_slug));
    gone_load.answers(200).await;
    eventually("it has rows", async || match rows(&deployment, &gone_slug).await {
        0 => Err(0),
        _ => Ok(()),
    })
    .await;

    let path = format!("/api/links/{}", text(&gone, "id"));
    let (status, answer) = deployment.send(Method::DELETE, &path, None).await;
    assert!(status < 300, "{status} {answer}");
    assert_eq!(deployment.send(Method::GET, &path, None).await.0, 404);
    knows(&deployment, &gone_slug, 404).await;
    eventually("its rows are gone", async || match rows(&deployment, &gone_slug).await {
        0 => Ok(()),
        rows => Err(rows),
    })
    .await;
    // Visitors of the deleted link get 404 now.
    stays_load.answers(200).await;
    let refused = gone_load.stop().await.refused;
    assert!(refused > 0, "nobody came after the deletion");

    // Replays the whole log, which contains the clicks of the deleted link.
    deployment.processor.stop().await;
    let group = format!("{}hopline-processor", deployment.engines.topic_prefix);
    let admin: AdminClient<DefaultClientContext> = deployment.engines.kafka().create().unwrap();
    eventually("the group is forgotten", async || {
        let results = admin.delete_groups(&[&group], &AdminOptions::new()).await.unwrap();
        results.into_iter().next().unwrap()
    })
    .await;
    deployment.engines.clickhouse("TRUNCATE TABLE clicks").await;
    deployment.processor.start().await.unwrap();
    stays_load.answers(50).await;
    let log = stays_load.stop().await;
    log.is_complete();
    let answered = log.answers.len();
    eventually("the other link's clicks are all there", async || {
        let rows = rows(&deployment, &stays_slug).await;
        if rows == answered { Ok(()) } else { Err((rows, answered)) }
    })
    .await;
    assert_eq!(rows(&deployment, &gone_slug).await, 0);
    let others = "SELECT count() - uniqExact(src, koff) FROM clicks";
    assert_eq!(deployment.engines.clickhouse(others).await.trim(), "0");
}
