//! Live streams of clicks, with a key and in the dashboard.

use std::time::Duration;

use chrono::Utc;
use rdkafka::producer::{FutureProducer, FutureRecord};
use reqwest::Method;
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::{Class, Click, Message as _, Version};
use serde_json::{Value, json};
use tests::PATIENCE;

use crate::dashboard::Browser;
use crate::server::{Server, answer, text};

struct Clicker {
    producer: FutureProducer,
    topic: String,
}

impl Clicker {
    fn new(server: &Server) -> Self {
        Self {
            producer: server.engines.kafka().create().unwrap(),
            topic: server.engines.topic(schemas::topic::CLICKS),
        }
    }

    /// Publishes a click as the edge does, and waits until the broker has confirmed it.
    async fn click(&self, workspace: &str, link: &str, id: &str) {
        self.send(&click(workspace, link, id)).await;
    }

    async fn send(&self, click: &Click) {
        let value = click.encode();
        let record = FutureRecord::to(&self.topic).key(&click.click_id).payload(&value);
        self.producer.send(record, Duration::from_secs(10)).await.unwrap();
    }
}

fn click(workspace: &str, link: &str, id: &str) -> Click {
    Click {
        version: Version,
        click_id: id.to_owned(),
        link_id: link.parse::<LinkId>().unwrap(),
        workspace_id: workspace.parse::<WorkspaceId>().unwrap(),
        slug: "spring".to_owned(),
        occurred_at: Utc::now(),
        class: Class::Bot,
        visitor: 7,
        country: Some("DE".to_owned()),
        device_type: None,
        browser: None,
        os: None,
        referrer: None,
        utm_source: Some("two\nlines".to_owned()),
        utm_medium: None,
        utm_campaign: None,
        utm_term: None,
        utm_content: None,
        external_click_id: None,
        user_agent: Some("secret agent".to_owned()),
        purpose: None,
        again: false,
    }
}

/// A stream that is read event by event.
struct Listener {
    response: reqwest::Response,
    unread: String,
}

#[derive(Debug)]
struct Event {
    id: String,
    kind: String,
    data: Value,
}

impl Listener {
    async fn open(request: reqwest::RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        let mut listener = Self { response, unread: String::new() };
        // From now on, the stream misses no click.
        assert!(listener.block().await.unwrap().starts_with(": "));
        listener
    }

    /// Returns the text up to the next empty line, or none at the end.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.unread.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.unread = rest;
                return Some(block);
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk()).await.expect("no event came");
            self.unread.push_str(std::str::from_utf8(&chunk.unwrap()?).unwrap());
        }
    }

    async fn event(&mut self) -> Event {
        loop {
            let block = self.block().await.expect("the stream continues");
            let field =
                |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            if !field("event: ").is_empty() {
                let data = serde_json::from_str(field("data: ")).unwrap();
                return Event { id: field("id: ").to_owned(), kind: field("event: ").to_owned(), data };
            }
        }
    }

    async fn click_ids<const N: usize>(&mut self) -> [String; N] {
        let mut ids = [const { String::new() }; N];
        for id in &mut ids {
            *id = text(&self.event().await.data["click_id"]);
        }
        ids
    }
}

async fn link(browser: &Browser) -> String {
    text(&browser.post("/links", json!({"name": "a", "destination": "https://example.com"})).await.body["id"])
}

#[tokio::test]
async fn a_click_is_streamed_to_listeners_of_its_workspace_and_link() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let other = owner.of_other_account(&server, "eve@example.com", "free").await;
    let (one, two, foreign) = (link(&owner).await, link(&owner).await, link(&other).await);
    let clicker = Clicker::new(&server);
    let mut at_dashboard = Listener::open(owner.bare(Method::GET, &owner.path("/live"))).await;
    let mut of_link =
        Listener::open(owner.bare(Method::GET, &owner.path(&format!("/links/{two}/live")))).await;
    let mut with_key =
        Listener::open(server.request(Method::GET, "/api/v1/live").bearer_auth(&server.key)).await;
    let mut of_other = Listener::open(other.bare(Method::GET, &other.path("/live"))).await;
    let headers = at_dashboard.response.headers();
    assert_eq!(headers["content-type"], "text/event-stream");
    assert_eq!(headers["cache-control"], "private, no-store, no-transform");
    assert_eq!(headers["x-accel-buffering"], "no");
    assert!(!headers.contains_key("access-control-allow-origin"));

    clicker.click(&other.workspace, &foreign, "foreign").await;
    clicker.send(&Click { again: true, ..click(&owner.workspace, &one, "again") }).await;
    clicker.click(&owner.workspace, &one, "first").await;
    let first = at_dashboard.event().await;
    assert_eq!((first.kind.as_str(), &first.data["click_id"]), ("click", &json!("first")));
    assert_eq!(first.data["utm_source"], "two\nlines", "a line break does not split the event");
    assert_eq!(first.data["class"], "bot");
    assert!(!first.data.to_string().contains("visitor") && !first.data.to_string().contains("secret agent"));
    clicker.click(&owner.workspace, &two, "second").await;
    assert_eq!(at_dashboard.click_ids().await, ["second"]);
    assert_eq!(of_link.click_ids().await, ["second"]);
    assert_eq!(with_key.click_ids().await, ["first", "second"]);
    assert_eq!(of_other.click_ids().await, ["foreign"]);
}

#[tokio::test]
async fn a_viewers_stream_has_no_personal_fields() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let (viewer, _) = owner.with_member(&server, "vera@example.com", "viewer").await;
    let link = link(&owner).await;
    let clicker = Clicker::new(&server);
    let mut of_owner = Listener::open(owner.bare(Method::GET, &owner.path("/live"))).await;
    let mut of_viewer = Listener::open(viewer.bare(Method::GET, &viewer.path("/live"))).await;
    let given = Some("ada@example.com".to_owned());
    clicker.send(&Click { external_click_id: given, ..click(&owner.workspace, &link, "first") }).await;
    let (seen, of_viewer) = (of_owner.event().await, of_viewer.event().await);
    assert_eq!((&seen.data["external_click_id"], seen.id), (&json!("ada@example.com"), of_viewer.id));
    assert_eq!(of_viewer.data["external_click_id"], Value::Null);
    assert_eq!(of_viewer.data["click_id"], "first");
}

#[tokio::test]
async fn a_stream_resumes_at_another_instance() {
    let server = Server::start().await;
    let instance = Server::serve(server.engines.clone(), crate::server::config(&server.engines)).await;
    let owner = Browser::set_up(&server).await;
    let link = link(&owner).await;
    let clicker = Clicker::new(&server);
    let path = owner.path("/live");
    let mut here = Listener::open(owner.bare(Method::GET, &path)).await;
    let there = |id: &str| {
        let request = instance.request(Method::GET, &path).header("cookie", owner.cookie.clone().unwrap());
        request.header("last-event-id", id)
    };
    // An instance keeps clicks only while it has a listener.
    let mut other = Listener::open(there("")).await;
    clicker.click(&owner.workspace, &link, "seen").await;
    let seen = here.event().await;
    drop(here);
    for number in 0..5 {
        clicker.click(&owner.workspace, &link, &format!("missed-{number}")).await;
    }
    let _: [String; 6] = other.click_ids().await;
    let mut again = Listener::open(owner.bare(Method::GET, &path).header("last-event-id", &seen.id)).await;
    let mut missed: [String; 5] = again.click_ids().await;
    missed.sort();
    assert_eq!(missed, [0, 1, 2, 3, 4].map(|number| format!("missed-{number}")));
    // Another instance has the same clicks in another order, so it may repeat clicks, but skips none.
    let mut again = Listener::open(there(&seen.id)).await;
    let mut first = again.event().await;
    if first.kind == "gap" {
        first = again.event().await;
    }
    let mut ids = vec![text(&first.data["click_id"])];
    while !(0..5).all(|number| ids.contains(&format!("missed-{number}"))) {
        let [id] = again.click_ids().await;
        ids.push(id);
    }
    // An instance that no longer has the clicks after an id sends a gap.
    let mut late = Listener::open(there("1000-0-1-00000000")).await;
    assert_eq!(late.event().await.kind, "gap");
}

#[tokio::test]
async fn streams_need_permission_and_end_at_shutdown() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let unknown = LinkId::from_uuid(uuid::Uuid::now_v7());
    assert_eq!(server.send(Method::GET, &format!("/api/links/{unknown}/live"), None).await.status, 404);
    assert_eq!(answer(server.request(Method::GET, "/api/live")).await.status, 401);
    let mut listeners = Vec::new();
    for _ in 0..50 {
        listeners.push(Listener::open(owner.bare(Method::GET, &owner.path("/live"))).await);
    }
    let refused = owner.get("/live").await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (429, &json!("RATE_LIMITED")));
    let mut last = listeners.pop().unwrap();
    drop(listeners);
    let engines = server.stop().await;
    // A stream that is still open at the drain's deadline is cut, which is an error.
    while let Some(block) = last.block().await {
        assert!(block.starts_with(':'), "{block}");
    }
    drop(engines);
}

#[tokio::test]
async fn an_account_has_a_limit_of_streams_over_all_workspaces() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let mut listeners = Vec::new();
    let mut workspace = owner.clone();
    for number in 0..4 {
        let body = json!({"name": format!("w{number}"), "kind": "personal"});
        let made = owner.send(Method::POST, "/app/api/workspaces", Some(body)).await.body;
        workspace.workspace = text(&made["id"]);
        for _ in 0..50 {
            listeners.push(Listener::open(workspace.bare(Method::GET, &workspace.path("/live"))).await);
        }
    }
    let refused = owner.get("/live").await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (429, &json!("RATE_LIMITED")));
    assert_eq!(refused.headers["retry-after"], "10");
    let refused = answer(server.request(Method::GET, "/api/live").bearer_auth(&server.key)).await;
    assert_eq!(refused.status, 429, "streams of a key count, too");
    let other = owner.of_other_account(&server, "eve@example.com", "free").await;
    Listener::open(other.bare(Method::GET, &other.path("/live"))).await;
}

#[tokio::test]
async fn a_process_has_a_limit_of_streams() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let other = owner.of_other_account(&server, "eve@example.com", "free").await;
    let mut config = crate::server::config(&server.engines);
    config.limits.max_connections = 40;
    let small = Server::serve(server.engines.clone(), config).await;
    let [mut owner, mut other] = [owner, other];
    owner.at(&small);
    other.at(&small);
    let open =
        async |browser: &Browser| Listener::open(browser.bare(Method::GET, &browser.path("/live"))).await;
    let mut listeners = Vec::new();
    for number in 0..10 {
        listeners.push(open(if number % 2 == 0 { &owner } else { &other }).await);
    }
    for browser in [&owner, &other] {
        let refused = browser.get("/live").await;
        assert_eq!((refused.status.as_u16(), &refused.body["code"]), (503, &json!("UNAVAILABLE")));
        assert_eq!(refused.headers["retry-after"], "10");
        assert_eq!(browser.get("/usage").await.status, 200, "other requests are answered");
    }
    // No event is written to the streams, so no failed write reveals that a listener has left.
    for _ in 0..3 {
        listeners.pop();
        let request = || other.bare(Method::GET, &other.path("/live"));
        let again = tests::eventually("another stream may be opened", async || {
            let response = request().send().await.unwrap();
            if response.status() == 200 { Ok(response) } else { Err(response.status()) }
        });
        listeners.push(Listener { response: again.await, unread: String::new() });
        assert_eq!(owner.get("/live").await.status, 503);
    }
}

#[tokio::test]
async fn a_stream_ends_after_its_member_or_key_is_removed() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let (member, id) = owner.with_member(&server, "grace@example.com", "editor").await;
    let key = owner.post("/keys", json!({"name": "a", "scope": "read"})).await.body;
    let mut of_member = Listener::open(member.bare(Method::GET, &member.path("/live"))).await;
    let with_key = server.request(Method::GET, "/api/live").bearer_auth(text(&key["key"]));
    let mut with_key = Listener::open(with_key).await;
    let mut of_owner = Listener::open(owner.bare(Method::GET, &owner.path("/live"))).await;
    owner.send(Method::DELETE, &format!("/app/api/members/{id}"), None).await;
    owner.send(Method::DELETE, &owner.path(&format!("/keys/{}", text(&key["id"]))), None).await;
    for listener in [&mut of_member, &mut with_key] {
        while let Some(block) = listener.block().await {
            assert_eq!(block, ":", "nothing but comments");
        }
    }
    assert_eq!(of_owner.block().await.as_deref(), Some(":"), "the owner's stream continues");
}
