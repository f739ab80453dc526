//! A standby of Postgres is promoted although it lacks the primary's last commits.

use std::collections::BTreeSet;

use devstack::postgres;
use sqlx::{Connection as _, PgConnection};
use tests::deployment::Deployment;
use tests::engines::host_of;
use tests::eventually;
use tests::faults::OwnEngines;
use tests::receiver::{Answer, Receiver, Request};

use crate::disaster::Clicked;

/// Waits until deliveries of this number of clicks have arrived; returns their ids.
async fn delivered(receiver: &Receiver, clicks: usize) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    eventually("every click is delivered", async || {
        ids = receiver.requests().iter().map(|request| request.delivery().to_owned()).collect();
        if ids.len() >= clicks { Ok(()) } else { Err(ids.len()) }
    })
    .await;
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_keep_their_ids_after_a_lossy_promotion() {
    let (own, standby) = OwnEngines::start_with_standby().await;
    let mut engines = own.isolated().await;
    let [first, other] = [&own.postgres, &standby].map(|server| host_of(server.url()));
    let on_standby = engines.database_url.replace(&first, &other);
    engines.other_postgres = Some(other);
    let deployment = Deployment::start_on(engines, &[]).await;

    let receiver = Receiver::start(|_, _| Answer::Status(200)).await;
    deployment.create_endpoint(&receiver.url("/in"), &["click.created"]).await;
    let mut known = Clicked::create(&deployment).await;
    known.click(&deployment, 3).await;
    assert_eq!(delivered(&receiver, 3).await.len(), 3);
    known.shows(&deployment, 3, 0).await;
    eventually("the standby has the link", async || {
        let mut standby = PgConnection::connect(&on_standby).await.unwrap();
        let links: i64 =
            sqlx::query_scalar("SELECT count(*) FROM links").fetch_one(&mut standby).await.unwrap();
        if links == 1 { Ok(()) } else { Err(links) }
    })
    .await;

    // The standby lacks everything from here on.
    standby.kill().await;
    let mut lost = Clicked::create(&deployment).await;
    known.click(&deployment, 20).await;
    lost.click(&deployment, 2).await;
    assert_eq!(deployment.convert(&known.clicks[0]).await, 201);
    let before = delivered(&receiver, 25).await;
    known.shows(&deployment, 23, 1).await;
    own.postgres.kill().await;
    standby.start().await.unwrap();
    postgres::promote(&standby).await.unwrap();

    eventually("the API writes again", async || match deployment.try_create_link().await {
        (201, _) => Ok(()),
        other => Err(other),
    })
    .await;
    let (status, _) = deployment.send(reqwest::Method::GET, &format!("/api/links/{}", lost.id), None).await;
    assert_eq!(status, 404, "the standby lacks this link");
    deployment.admin(&["publish-links", "--restored"]).await;
    // The edge still redirects the lost link, and everything else works.
    known.click(&deployment, 20).await;
    lost.click(&deployment, 1).await;
    assert_eq!(deployment.convert(&known.clicks[0]).await, 201, "the standby lacks the conversion");
    known.shows(&deployment, 43, 1).await;
    let after = delivered(&receiver, 46).await;
    assert!(before.is_subset(&after), "a repeated delivery keeps its id");
    let bodies: BTreeSet<_> =
        receiver.requests().iter().map(|request: &Request| request.body.clone()).collect();
    assert_eq!((after.len(), bodies.len()), (46, 46));
    let rows = deployment.engines.clickhouse("SELECT count(), uniqExact(click_id) FROM clicks").await;
    assert_eq!(rows.trim(), "46\t46");
}
