//! A link that is deleted while it is clicked.

use reqwest::Method;
use serde_json::Value;
use tests::counted::count;
use tests::deployment::Deployment;
use tests::engines::isolated;
use tests::eventually;
use tests::load::Load;

async fn rows(deployment: &Deployment, slug: &str) -> usize {
    count(&deployment.engines, &format!("SELECT count() FROM clicks WHERE slug = '{slug}'")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn clicks_of_a_link_deleted_under_load_do_not_come_back() {
    let deployment = Deployment::start_on(isolated().await, &[("HOPLINE_PURGE_SECONDS", "1")]).await;
    let text = |link: &Value, field: &str| link[field].as_str().unwrap().to_owned();
    let (gone, stays) = (deployment.create_link().await, deployment.create_link().await);
    let (gone_slug, stays_slug) = (text(&gone, "slug"), text(&stays, "slug"));
    for slug in [&gone_slug, &stays_slug] {
        deployment.edge_knows(slug).await;
    }
    let edge = deployment.edge_address();
    let on = |slug: &String| Load::start(edge, std::slice::from_ref(slug), 2, Some(100));
    let (gone_load, stays_load) = (on(&gone_slug), on(&stays_slug));
    gone_load.answers(200).await;
    eventually("the link has rows", async || match rows(&deployment, &gone_slug).await {
        0 => Err(0),
        _ => Ok(()),
    })
    .await;

    let path = format!("/api/links/{}", text(&gone, "id"));
    let (status, answer) = deployment.send(Method::DELETE, &path, None).await;
    assert!(status < 300, "{status} {answer}");
    assert_eq!(deployment.send(Method::GET, &path, None).await.0, 404);
    eventually("the edge forgets the link", async || match deployment.head(&gone_slug).await {
        Ok(404) => Ok(()),
        other => Err(other),
    })
    .await;
    eventually("the deleted link has no rows", async || match rows(&deployment, &gone_slug).await {
        0 => Ok(()),
        rows => Err(rows),
    })
    .await;
    // Visitors of the deleted link get 404 now.
    stays_load.answers(200).await;
    let refused = gone_load.stop().await.refused;
    assert!(refused > 0, "no visitor came after the deletion");

    // Replays the whole log, which contains the clicks of the deleted link.
    deployment.processor.stop().await;
    deployment.engines.delete_group("hopline-processor").await;
    deployment.engines.clickhouse("TRUNCATE TABLE clicks").await;
    deployment.processor.start().await.unwrap();
    stays_load.answers(50).await;
    let log = stays_load.stop().await;
    log.is_complete();
    let answered = log.answers.len();
    eventually("all clicks of the other link are rows", async || {
        let rows = rows(&deployment, &stays_slug).await;
        if rows == answered { Ok(()) } else { Err((rows, answered)) }
    })
    .await;
    assert_eq!(rows(&deployment, &gone_slug).await, 0);
    let repeats = "SELECT count() - uniqExact(src, koff) FROM clicks";
    assert_eq!(count(&deployment.engines, repeats).await, 0);
}
