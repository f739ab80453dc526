//! Slugs move between links while two APIs compete for publishing. In the end, the edge agrees with Postgres.

use reqwest::Method;
use serde_json::{Value, json};
use tests::deployment::Deployment;
use tests::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn slugs_end_at_the_right_link_while_publishers_are_frozen() {
    let deployment = Deployment::start().await;
    let (other, other_url) = deployment.another_api();
    other.start().await.unwrap();

    let mut expected = Vec::new();
    for round in 0..3 {
        // The API that publishes is frozen, so the other one must take over.
        let stopped = if round % 2 == 0 { &deployment.api } else { &other };
        let asked = (round % 2 == 0).then_some(other_url.as_str());
        stopped.pause().await.unwrap();
        for pair in 0..4 {
            let (left, right) = (format!("l-{round}-{pair}"), format!("r-{round}-{pair}"));
            expected.extend(hand_over(&deployment, asked, &left, &right).await);
        }
        follows(&deployment, &expected).await;
        stopped.resume().await.unwrap();
    }
    follows(&deployment, &expected).await;

    // A new edge reads the compacted topic from its beginning.
    deployment.ingest.kill().await;
    deployment.ingest.start().await.unwrap();
    follows(&deployment, &expected).await;
    let waiting: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox")
        .fetch_one(&mut deployment.engines.postgres().await)
        .await
        .unwrap();
    assert_eq!(waiting, 0);
}

/// Creates a link, moves its slug to another link by deletion, then swaps two slugs by way of a third, and changes
/// the destination of one link.
///
/// Returns the final destination of each slug; `None` for a free slug.
async fn hand_over(
    deployment: &Deployment,
    api: Option<&str>,
    left: &str,
    right: &str,
) -> Vec<(String, Option<String>)> {
    let send = async |method: Method, path: &str, body: Option<Value>| {
        let (status, answer) = match api {
            Some(api) => deployment.send_to(api, method, path, body.as_ref()).await,
            None => deployment.send(method, path, body.as_ref()).await,
        };
        assert!(status < 300, "{status} {answer}");
        answer
    };
    let create = async |slug: &str, destination: &str| -> String {
        let body = json!({ "name": "a", "slug": slug, "destination": destination });
        let link = send(Method::POST, "/api/links", Some(body)).await;
        format!("/api/links/{}", link["id"].as_str().unwrap())
    };
    let patch = async |path: &str, slug: &str| {
        send(Method::PATCH, path, Some(json!({ "slug": slug }))).await;
    };
    let first = create(left, "https://example.com/first").await;
    send(Method::DELETE, &first, None).await;
    let one = create(left, "https://example.com/one").await;
    let two = create(right, "https://example.com/two").await;
    let aside = format!("{left}-aside");
    patch(&one, &aside).await;
    patch(&two, left).await;
    patch(&one, right).await;
    let moved = json!({ "destination": "https://example.com/moved" });
    send(Method::PATCH, &one, Some(moved)).await;
    vec![
        (left.to_owned(), Some("https://example.com/two".to_owned())),
        (right.to_owned(), Some("https://example.com/moved".to_owned())),
        (aside, None),
    ]
}

/// Waits until every slug has its final destination.
async fn follows(deployment: &Deployment, expected: &[(String, Option<String>)]) {
    for (slug, destination) in expected {
        eventually("the edge follows", async || {
            let answer = deployment.click(slug, "198.51.100.1").await.map_err(|error| error.to_string())?;
            let location = answer.headers().get("location").and_then(|value| value.to_str().ok());
            let there = match (destination, location) {
                (Some(wanted), Some(location)) => location.starts_with(wanted.as_str()),
                (None, None) => answer.status() == 404,
                _ => false,
            };
            if there { Ok(()) } else { Err(format!("{slug}: {} {location:?}", answer.status())) }
        })
        .await;
    }
}
