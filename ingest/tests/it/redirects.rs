//! What visitors are answered, and what of them arrives on topic `clicks`.

use chrono::{TimeDelta, Utc};
use reqwest::Method;
use schemas::{
    message::{Class, Link},
    topic,
};
use tests::{engines::isolated, log::records};

use crate::edge::{
    BROWSER, Edge, SpoolDir, click_id, click_id_keys, clicks, client, link, live, location, publish,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_click_arrives_on_the_topic_as_readable_json_with_the_visitors_click_id() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let link = link("spring", "https://shop.example/p?utm_term=shoes#top");
    publish(&isolated, &[live(&link)]);
    let edge = Edge::start(&isolated, &spool).await;

    let headers: [(&str, &[u8]); 3] = [
        ("user-agent", BROWSER.as_bytes()),
        ("referer", b"https://news.example/story"),
        ("x-forwarded-for", b"203.0.113.77"),
    ];
    let answer = edge.ask(Method::GET, "/spring?utm_source=mail&click_id=theirs", &headers).await;
    assert_eq!(answer.status(), 302);
    assert_eq!(answer.headers()["cache-control"], "private, no-store");
    let id = click_id(&answer);
    assert_eq!(
        location(&answer),
        format!(
            "https://shop.example/p?utm_term=shoes&utm_source=mail&external_click_id=theirs&click_id={id}#top"
        )
    );

    let (_, click) = clicks(&isolated, 1).await.remove(0);
    let verified = click_id_keys().verify(&click.click_id).unwrap();
    assert_eq!((verified.link_id, verified.occurred_at), (link.id, click.occurred_at));
    assert_eq!(click.click_id, id);
    assert_eq!(click.workspace_id, link.workspace_id);
    assert_eq!(click.class, Class::Human);
    assert_eq!(click.referrer.as_deref(), Some("news.example"));
    assert_eq!(click.browser.as_deref(), Some("Firefox"));
    assert_eq!(click.utm_source.as_deref(), Some("mail"));
    assert_eq!(click.utm_term.as_deref(), Some("shoes"));
    assert_eq!(click.external_click_id.as_deref(), Some("theirs"));
    assert!(!click.again);
    let json = records(&isolated, topic::CLICKS)[0].json();
    assert_eq!(json["slug"], "spring");
    assert!(!json.to_string().contains("203.0.113.77"), "{json}");

    edge.stop().await;
    assert!(spool.segments().is_empty(), "a clean stop leaves nothing to be sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_visitor_is_told_by_the_address_that_trusted_proxies_name() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let edge = Edge::start(&isolated, &spool).await;
    for address in ["203.0.113.1", "203.0.113.2", "203.0.113.1"] {
        let headers = [("user-agent", BROWSER.as_bytes()), ("x-forwarded-for", address.as_bytes())];
        assert_eq!(edge.ask(Method::GET, "/s", &headers).await.status(), 302);
    }
    let mut visitors: Vec<u64> =
        clicks(&isolated, 3).await.into_iter().map(|(_, click)| click.visitor).collect();
    visitors.sort_unstable();
    visitors.dedup();
    assert_eq!(visitors.len(), 2);
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn head_is_answered_and_not_counted() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let edge = Edge::start(&isolated, &spool).await;
    let head = edge.ask(Method::HEAD, "/s", &[("user-agent", BROWSER.as_bytes())]).await;
    assert_eq!(head.status(), 302);
    click_id(&head);
    let get = edge.get("/s").await;
    // The click that was asked for later is there, and so would be one for HEAD.
    edge.stop().await;
    let clicks = clicks(&isolated, 1).await;
    assert_eq!(clicks.len(), 1);
    assert_eq!(clicks[0].1.click_id, click_id(&get));
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_are_not_text_never_fail_a_redirect() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let edge = Edge::start(&isolated, &spool).await;
    let headers: [(&str, &[u8]); 6] = [
        ("user-agent", b"Mozilla/5.0 \xff\xfe"),
        ("referer", b"https://n.example/\xff"),
        ("x-forwarded-for", b"\xff"),
        ("sec-purpose", b"\xff"),
        ("cookie", b"\xff"),
        ("x-request-id", b"\xff"),
    ];
    assert_eq!(edge.ask(Method::GET, "/s", &headers).await.status(), 302);
    let (_, click) = clicks(&isolated, 1).await.remove(0);
    assert_eq!(click.user_agent.as_deref(), Some("Mozilla/5.0 \u{fffd}\u{fffd}"));
    assert_eq!(click.referrer.as_deref(), Some("n.example"));
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn classes_are_told_apart() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let edge = Edge::start(&isolated, &spool).await;
    edge.get("/s").await;
    edge.ask(Method::GET, "/s", &[("user-agent", b"curl/8.5.0")]).await;
    edge.ask(Method::GET, "/s", &[("user-agent", BROWSER.as_bytes()), ("sec-purpose", b"prefetch")]).await;
    let mut classes: Vec<&str> =
        clicks(&isolated, 3).await.iter().map(|(_, click)| click.class.as_str()).collect();
    classes.sort_unstable();
    assert_eq!(classes, ["bot", "human", "preview"]);
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_active_link_is_answered_with_a_page() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let inactive = Link { is_active: false, ..link("inactive", "https://a.example/") };
    let expired = Link {
        expires_at: Some(Utc::now() - TimeDelta::seconds(1)),
        ..link("expired", "https://a.example/")
    };
    let moved = Link { redirect_status: 301, ..link("moved", "https://a.example/") };
    publish(&isolated, &[live(&inactive), live(&expired), live(&moved)]);
    let edge = Edge::start(&isolated, &spool).await;
    for (path, status, content_type) in [
        ("/unknown", 404, Some("text/html; charset=utf-8")),
        ("/unknown/deeper", 404, Some("text/html; charset=utf-8")),
        ("/inactive", 404, Some("text/html; charset=utf-8")),
        ("/expired", 410, Some("text/html; charset=utf-8")),
        ("/moved", 301, None),
        ("/", 200, Some("text/html; charset=utf-8")),
        ("/robots.txt", 200, Some("text/plain; charset=utf-8")),
        ("/favicon.ico", 204, None),
    ] {
        let answer = edge.get(path).await;
        assert_eq!(answer.status(), status, "{path}");
        let seen = answer.headers().get("content-type").map(|value| value.to_str().unwrap());
        assert_eq!(seen, content_type, "{path}");
    }
    assert_eq!(edge.ask(Method::POST, "/moved", &[]).await.status(), 405);

    let metrics = client().get(format!("http://{}/metrics", edge.operations)).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    for name in [
        "hopline_clicks_total",
        "hopline_redirects_total",
        "hopline_clicks_dropped_total",
        "hopline_spool_bytes",
    ] {
        assert!(metrics.contains(name), "{name}");
    }
    edge.stop().await;
    assert_eq!(clicks(&isolated, 1).await.len(), 1);
}
