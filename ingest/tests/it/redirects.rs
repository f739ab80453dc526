//! Redirects, and the clicks that arrive on topic `clicks`.

use std::path::PathBuf;

use chrono::{TimeDelta, Utc};
use devstack::install::Cache;
use reqwest::Method;
use schemas::message::{Class, ForwardQuery, Link};
use schemas::topic;
use tests::engines::isolated;
use tests::log::records;
use tests::{eventually, metrics_page};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::edge::{BROWSER, Edge, SpoolDir, click_id, click_id_keys, clicks, link, live, location, publish};

#[tokio::test(flavor = "multi_thread")]
async fn a_click_arrives_on_the_topic_with_the_visitors_click_id() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let link = link("spring", "https://shop.example/p?utm_term=shoes#top");
    publish(&isolated, &[live(&link)]);
    let edge = Edge::start(&isolated, &spool).await;

    let headers: [(&str, &[u8]); 3] = [
        ("user-agent", BROWSER.as_bytes()),
        ("referer", b"https://news.example/story"),
        ("x-forwarded-for", b"203.0.113.77"),
    ];
    let answer = edge.request(Method::GET, "/spring?utm_source=mail&click_id=theirs", &headers).await;
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
    assert!(spool.segments().is_empty(), "a clean stop leaves no segments");
}

#[tokio::test(flavor = "multi_thread")]
async fn visitors_have_the_address_that_a_trusted_proxy_sends() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let edge = Edge::start(&isolated, &spool).await;
    for address in ["203.0.113.1", "203.0.113.2", "203.0.113.1"] {
        let headers = [("user-agent", BROWSER.as_bytes()), ("x-forwarded-for", address.as_bytes())];
        let redirect = edge.request(Method::GET, "/s", &headers).await;
        assert_eq!(redirect.status(), 302);
        assert!(!redirect.headers().contains_key("strict-transport-security"));
    }
    let page = edge.request(Method::GET, "/none", &[("x-forwarded-proto", b"https")]).await;
    assert_eq!(page.status(), 404);
    assert_eq!(page.headers()["strict-transport-security"], "max-age=31536000");
    assert_eq!(page.headers()["x-content-type-options"], "nosniff");
    let policy = page.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    let mut visitors: Vec<u64> =
        clicks(&isolated, 3).await.into_iter().map(|(_, click)| click.visitor).collect();
    visitors.sort_unstable();
    visitors.dedup();
    assert_eq!(visitors.len(), 2);
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn head_is_answered_without_a_click_id_and_not_counted() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let edge = Edge::start(&isolated, &spool).await;
    let head = edge.request(Method::HEAD, "/s?b=c", &[("user-agent", BROWSER.as_bytes())]).await;
    assert_eq!(head.status(), 302);
    assert_eq!(location(&head), "https://a.example/?b=c");
    let get = edge.get("/s").await;
    // The later click has arrived, so one for HEAD would have arrived too.
    edge.stop().await;
    let clicks = clicks(&isolated, 1).await;
    assert_eq!(clicks.len(), 1);
    assert_eq!(clicks[0].1.click_id, click_id(&get));
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_are_not_utf8_do_not_fail_a_redirect() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let edge = Edge::start(&isolated, &spool).await;
    let headers: [(&str, &[u8]); 8] = [
        ("user-agent", b"Mozilla/5.0 \xff\xfe"),
        ("referer", b"https://n.example/\xff"),
        ("x-forwarded-for", b"\xff"),
        ("forwarded", b"\xff"),
        ("accept-language", b"\xff"),
        ("sec-purpose", b"\xff"),
        ("cookie", b"\xff"),
        ("x-request-id", b"\xff"),
    ];
    assert_eq!(edge.request(Method::GET, "/s", &headers).await.status(), 302);
    let (_, click) = clicks(&isolated, 1).await.remove(0);
    assert_eq!(click.user_agent.as_deref(), Some("Mozilla/5.0 \u{fffd}\u{fffd}"));
    assert_eq!(click.referrer.as_deref(), Some("n.example"));
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clicks_are_classified() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let edge = Edge::start(&isolated, &spool).await;
    edge.get("/s").await;
    edge.request(Method::GET, "/s", &[("user-agent", b"curl/8.5.0")]).await;
    edge.request(Method::GET, "/s", &[("user-agent", BROWSER.as_bytes()), ("sec-purpose", b"prefetch")])
        .await;
    let mut classes: Vec<&str> =
        clicks(&isolated, 3).await.iter().map(|(_, click)| click.class.as_str()).collect();
    classes.sort_unstable();
    assert_eq!(classes, ["bot", "human", "preview"]);
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_without_an_active_link_answer_with_a_page() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let inactive = Link { is_active: false, ..link("inactive", "https://a.example/") };
    let expired = Link {
        expires_at: Some(Utc::now() - TimeDelta::seconds(1)),
        ..link("expired", "https://a.example/")
    };
    let moved = Link { redirect_status: 301, ..link("moved", "https://a.example/") };
    // The API has reserved the slug since, in every case.
    let old = Link { redirect_status: 308, ..link("API", "https://a.example/") };
    publish(&isolated, &[live(&inactive), live(&expired), live(&moved), live(&old)]);
    let edge = Edge::start(&isolated, &spool).await;
    for (path, status, content_type) in [
        ("/unknown", 404, Some("text/html; charset=utf-8")),
        ("/unknown/deeper", 404, Some("text/html; charset=utf-8")),
        ("/inactive", 404, Some("text/html; charset=utf-8")),
        ("/expired", 410, Some("text/html; charset=utf-8")),
        ("/moved", 301, None),
        ("/API", 308, None),
        ("/api", 404, Some("text/html; charset=utf-8")),
        ("/ROBOTS.TXT", 404, Some("text/html; charset=utf-8")),
        ("/", 200, Some("text/html; charset=utf-8")),
        ("/robots.txt", 200, Some("text/plain; charset=utf-8")),
        ("/favicon.ico", 204, None),
    ] {
        let answer = edge.get(path).await;
        assert_eq!(answer.status(), status, "{path}");
        let seen = answer.headers().get("content-type").map(|value| value.to_str().unwrap());
        assert_eq!(seen, content_type, "{path}");
    }
    assert_eq!(edge.request(Method::POST, "/moved", &[]).await.status(), 405);

    let metrics = metrics_page(&format!("http://{}", edge.operations)).await;
    for name in [
        "hopline_clicks_total",
        "hopline_redirects_total",
        "hopline_clicks_dropped_total",
        "hopline_spool_bytes",
    ] {
        assert!(metrics.contains(name), "{name}");
    }
    edge.stop().await;
    assert_eq!(clicks(&isolated, 2).await.len(), 2);
}

/// Sends bytes that a client library would reject, and returns the answer.
async fn send_raw(edge: &Edge, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(edge.address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // The request has `connection: close`, so the edge closes after the answer.
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// A target with characters that the HTTP library rejects.
const UNENCODED: &[u8] = b"/s?a=<b>\"c\"`";

#[tokio::test(flavor = "multi_thread")]
async fn every_request_is_answered_and_every_redirect_is_counted() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/%7e?x=%zz#f?g"))]);
    let edge = Edge::start(&isolated, &spool).await;
    let long = "a=%00&".repeat(16_000 / 6);
    let mut counted = 0;
    for (target, status) in [
        (&b"/s?q=\xc3\xa9"[..], "302"),
        (format!("/s?{long}").as_bytes(), "302"),
        (b"/s?click_id=1&click_id=2&click%5fid=3", "302"),
        (b"//s", "302"),
        (b"/s?", "302"),
        (b"/s/", "302"),
        (b"/%73", "302"),
        (b"/%73/?q=1", "302"),
        (b"/s//", "404"),
        (b"/s%2F", "404"),
        (b"/%2573", "404"),
        (b"/s%20", "404"),
        (b"/S", "404"),
        (b"/../s", "404"),
        (b"/%ff", "404"),
        (UNENCODED, "302"),
        (b"/s?q=\xff", "302"),
    ] {
        let request = [
            b"GET ",
            target,
            b" HTTP/1.1\r\nhost: a\r\nuser-agent: Mozilla/5.0\r\nconnection: close\r\n\r\n",
        ]
        .concat();
        let answer = send_raw(&edge, &request).await;
        let shown = String::from_utf8_lossy(&target[..target.len().min(60)]).into_owned();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{shown}: {:.200}", answer);
        if status == "302" {
            counted += 1;
            let location = answer.lines().find_map(|line| line.strip_prefix("location: ")).unwrap();
            assert!(
                location.starts_with("https://a.example/%7e?x=%zz&") && location.ends_with("#f?g"),
                "{shown}"
            );
            assert!(target != UNENCODED || location.contains("&a=%3Cb%3E%22c%22%60"), "{location}");
            assert_eq!(
                location.matches("click_id=").count() - location.matches("external_click_id=").count(),
                1
            );
            assert!(location.matches("external_click_id=").count() <= 1, "{location}");
        }
    }
    edge.stop().await;
    let clicks = clicks(&isolated, counted).await;
    assert_eq!(clicks.len(), counted);
    assert!(clicks.iter().all(|(_, click)| click.slug == "s"), "the slug in each spelling of the path");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_respects_the_links_status_and_settings() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let statuses = [301, 302, 307, 308];
    let of = |status: u16| Link {
        redirect_status: status,
        ..link(&format!("s{status}"), "https://a.example/?x=1#f")
    };
    let bare = Link {
        forward_query: ForwardQuery::Off,
        append_click_id: false,
        ..link("bare", "https://a.example/%7e?&x=1&&click_id=own#f")
    };
    let mut records: Vec<_> = statuses.map(|status| live(&of(status))).into();
    records.push(live(&bare));
    publish(&isolated, &records);
    let edge = Edge::start(&isolated, &spool).await;
    for status in statuses {
        for method in [Method::GET, Method::HEAD] {
            let answer = edge.request(method.clone(), &format!("/s{status}?x=2&y=3"), &[]).await;
            assert_eq!(answer.status().as_u16(), status);
            // If browsers cached a permanent redirect, only the first click would be counted.
            assert_eq!(answer.headers()["cache-control"], "private, no-store");
            let id = match method {
                Method::GET => format!("&click_id={}", click_id(&answer)),
                _ => String::new(),
            };
            assert_eq!(location(&answer), format!("https://a.example/?x=1&y=3{id}#f"));
        }
    }
    let answer = edge.get("/bare?y=3&click_id=theirs").await;
    assert_eq!(location(&answer), "https://a.example/%7e?&x=1&&click_id=own#f");
    edge.stop().await;
    assert_eq!(clicks(&isolated, 5).await.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_reveal_nothing_and_load_nothing() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let expired = Link {
        expires_at: Some(Utc::now() - TimeDelta::seconds(1)),
        ..link("expired", "https://secret.example/")
    };
    let inactive = Link { is_active: false, ..link("inactive", "https://secret.example/") };
    publish(&isolated, &[live(&expired), live(&inactive)]);
    let edge = Edge::start(&isolated, &spool).await;
    let (unknown, inactive, expired) =
        (edge.get("/unknown").await, edge.get("/inactive").await, edge.get("/expired").await);
    for answer in [&unknown, &inactive, &expired] {
        assert_eq!(answer.headers()["cache-control"], "private, no-store");
    }
    let (unknown, inactive, expired) =
        (unknown.text().await.unwrap(), inactive.text().await.unwrap(), expired.text().await.unwrap());
    assert_eq!(unknown, inactive, "the page does not reveal whether there is a link");
    assert!(expired.contains("no longer in use"));
    for page in [&unknown, &expired] {
        assert!(page.contains("prefers-color-scheme:dark") && page.contains("noindex"), "{page}");
        for outside in ["http", "src=", "href=", "<script", "secret", "url("] {
            assert!(!page.contains(outside), "{outside} in {page}");
        }
    }
    let head = edge.request(Method::HEAD, "/unknown", &[]).await;
    assert_eq!((head.status().as_u16(), head.text().await.unwrap()), (404, String::new()));
    edge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clicks_with_a_privacy_signal_have_no_stable_visitor() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let mut config = crate::edge::config(&isolated.kafka_brokers, &isolated.topic_prefix, spool.path());
    config.respect_privacy_signals = true;
    let edge = Edge::start_as(config).await;
    edge.is_ready().await;
    for signal in [&b"1"[..], b"1", b"0", b"0"] {
        let headers = [("user-agent", BROWSER.as_bytes()), ("sec-gpc", signal)];
        assert_eq!(edge.request(Method::GET, "/s?utm_source=mail", &headers).await.status(), 302);
    }
    edge.stop().await;
    let clicks: Vec<_> = clicks(&isolated, 4).await.into_iter().map(|(_, click)| click).collect();
    let (private, others): (Vec<_>, Vec<_>) = clicks.iter().partition(|click| click.user_agent.is_none());
    assert_eq!((private.len(), others.len()), (2, 2));
    assert_ne!(private[0].visitor, private[1].visitor);
    assert_eq!(others[0].visitor, others[1].visitor);
    assert!(clicks.iter().all(|click| click.utm_source.as_deref() == Some("mail")));
}

#[tokio::test(flavor = "multi_thread")]
async fn clicks_above_a_clients_limit_redirect_and_count_as_bots() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let mut config = crate::edge::config(&isolated.kafka_brokers, &isolated.topic_prefix, spool.path());
    config.clicks_per_minute = 2;
    let edge = Edge::start_as(config).await;
    edge.is_ready().await;
    for address in ["203.0.113.1", "203.0.113.1", "203.0.113.1", "203.0.113.2"] {
        let headers = [("user-agent", BROWSER.as_bytes()), ("x-forwarded-for", address.as_bytes())];
        assert_eq!(edge.request(Method::HEAD, "/s", &headers).await.status(), 302, "not counted");
        assert_eq!(edge.request(Method::GET, "/s", &headers).await.status(), 302);
    }
    edge.stop().await;
    let clicks: Vec<_> = clicks(&isolated, 4).await.into_iter().map(|(_, click)| click).collect();
    let (bots, people): (Vec<_>, Vec<_>) = clicks.iter().partition(|click| click.class == Class::Bot);
    assert_eq!((bots.len(), people.len()), (1, 3));
    assert_eq!(bots[0].purpose.as_deref(), Some("over-limit"));
    assert!(people.iter().all(|click| click.class == Class::Human && click.purpose.is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_agents_are_used_and_shown_in_readiness() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    publish(&isolated, &[live(&link("s", "https://a.example/"))]);
    let detail = async |edge: &Edge| {
        edge.is_ready().await;
        edge.readyz().await.1["checks"]["agents"]["detail"].as_str().unwrap().to_owned()
    };
    let start = async |data_dir: Option<PathBuf>| {
        let mut config = crate::edge::config(&isolated.kafka_brokers, &isolated.topic_prefix, spool.path());
        config.data_dir = data_dir;
        Edge::start_as(config).await
    };
    // The built-in table does not recognize it.
    let crawler = "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; Google-Site-Verification/1.0)";

    let edge = start(None).await;
    assert!(detail(&edge).await.contains("built-in"));
    edge.request(Method::GET, "/s?utm_source=without", &[("user-agent", crawler.as_bytes())]).await;
    edge.stop().await;

    let edge = start(Some(spool.path().join("nowhere"))).await;
    let missing = detail(&edge).await;
    assert!(missing.contains("built-in") && missing.contains("crawler-user-agents.json"), "{missing}");
    edge.stop().await;

    let edge = start(Some(Cache::shared().data().await.unwrap())).await;
    assert!(detail(&edge).await.contains("crawlers and"));
    edge.request(Method::GET, "/s?utm_source=with", &[("user-agent", crawler.as_bytes())]).await;
    edge.stop().await;

    let mut seen: Vec<_> = clicks(&isolated, 2)
        .await
        .into_iter()
        .map(|(_, click)| (click.utm_source.unwrap(), click.class))
        .collect();
    seen.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(seen, [("with".to_owned(), Class::Bot), ("without".to_owned(), Class::Human)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_link_answers_410_and_is_not_counted() {
    let (isolated, spool) = (isolated().await, SpoolDir::new());
    let mut blocked = Link { is_blocked: true, ..link("s", "https://a.example/") };
    publish(&isolated, &[live(&blocked)]);
    let edge = Edge::start(&isolated, &spool).await;
    edge.is_ready().await;
    let page = edge.get("/s").await;
    assert_eq!(page.status(), 410);
    let text = page.text().await.unwrap();
    assert!(text.contains("disabled") && !text.contains("a.example"), "{text}");
    edge.stop().await;
    // The snapshot keeps the link blocked until the topic unblocks it.
    let edge = Edge::start(&isolated, &spool).await;
    assert_eq!(edge.get("/s").await.status(), 410);
    edge.is_ready().await;
    (blocked.is_blocked, blocked.revision) = (false, 2);
    publish(&isolated, &[live(&blocked)]);
    eventually("the link redirects", async || match edge.get("/s").await.status().as_u16() {
        302 => Ok(()),
        status => Err(status),
    })
    .await;
    edge.stop().await;
    assert_eq!(clicks(&isolated, 1).await.len(), 1, "no click of the blocked link");
}
