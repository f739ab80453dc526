//! What must let nobody in, at every route of the dashboard there is: one that is added is asked too.

use api::Access;
use reqwest::{Method, RequestBuilder};
use schemas::id::{EndpointId, ImportId, KeyId, LinkId, SessionId, UserId, WorkspaceId};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::dashboard::{Browser, PASSWORD};
use crate::server::{Answer, Server, answer, text};

/// A route and the place of its ids.
struct Route {
    method: Method,
    /// The path below `/app/api`, with names in braces.
    path: String,
    /// Whether it needs no session.
    is_open: bool,
}

/// What a workspace has.
#[derive(Debug, Clone, PartialEq)]
struct Ids {
    workspace: String,
    link: String,
    endpoint: String,
    delivery: String,
    key: String,
    import: String,
    user: String,
    session: String,
}

fn every() -> Vec<Route> {
    let routes = api::dashboard_operations().into_iter().map(|(method, path, access)| Route {
        method,
        path,
        is_open: access == Access::Anyone,
    });
    routes.collect()
}

fn of_workspace() -> Vec<Route> {
    every().into_iter().filter(|route| route.path.starts_with("workspaces/{workspace}/")).collect()
}

impl Route {
    /// The path with ids in it.
    fn at(&self, ids: &Ids) -> String {
        let id = match self.path.trim_start_matches("workspaces/{workspace}/") {
            path if path.starts_with("links/import") => &ids.import,
            path if path.starts_with("links") => &ids.link,
            path if path.starts_with("webhooks") => &ids.endpoint,
            path if path.starts_with("keys") => &ids.key,
            path if path.starts_with("members") => &ids.user,
            path if path.starts_with("sessions") => &ids.session,
            path => {
                assert!(!path.contains("{id}"), "whose id has {path}?");
                &ids.link
            }
        };
        let path = self.path.replace("{workspace}", &ids.workspace).replace("{id}", id);
        let path = path.replace("{delivery_id}", &ids.delivery);
        let path = path.replace("{slug}", "free").replace("{dimension}", "country");
        assert!(!path.contains('{'), "{path}");
        let query = if path.ends_with("sparklines") { format!("?ids={}", ids.link) } else { String::new() };
        format!("/app/api/{path}{query}")
    }

    /// A body with which the route would do its work.
    fn body(&self) -> Value {
        let link = json!({"name": "b", "destination": "https://example.com", "external_id": "b"});
        match (self.path.trim_start_matches("workspaces/{workspace}/"), self.method.as_str()) {
            ("links", _) | ("links/upsert", _) => link,
            ("links/bulk", _) => json!({"links": [link]}),
            ("links/{id}", "PATCH") => json!({"name": "changed"}),
            ("webhooks", _) => json!({"url": "https://example.com/hook", "events": ["click.created"]}),
            ("webhooks/{id}", "PATCH") => json!({"description": "changed"}),
            ("webhooks/{id}/redeliver", _) => json!({"delivery_ids": [Uuid::nil()]}),
            ("keys", _) => json!({"name": "b", "scope": "read"}),
            ("members", _) => json!({"email": "mallory@example.com", "role": "owner", "password": PASSWORD}),
            ("members/{id}", "PATCH") => json!({"role": "viewer"}),
            ("password", _) => json!({"current_password": PASSWORD, "new_password": "another long password"}),
            ("two-factor/confirm", _) => json!({"code": "000000"}),
            ("two-factor", "DELETE") => json!({"password": PASSWORD, "code": "000000"}),
            ("workspaces", _) => json!({"name": "b", "kind": "personal"}),
            ("sign-in", _) => json!({"email": "ada@example.com", "password": PASSWORD}),
            _ => json!({}),
        }
    }

    /// The request as the page sends it.
    fn request(&self, browser: &Browser, ids: &Ids) -> RequestBuilder {
        let request = browser.request(self.method.clone(), &self.at(ids));
        match (&self.method, self.path.ends_with("links/import")) {
            (&Method::GET, _) => request,
            (_, true) => {
                request.header("content-type", "text/csv").body("destination\nhttps://example.com\n")
            }
            (_, false) => request.json(&self.body()),
        }
    }
}

/// Makes one of everything in the browser's workspace.
async fn make(browser: &Browser) -> Ids {
    let made = async |path: &str, body| text(&browser.post(path, body).await.body["id"]);
    let file = browser.request(Method::POST, &browser.path("/links/import?dry_run=true"));
    let file = file.header("content-type", "text/csv").body("destination\nhttps://example.com\n");
    let endpoint =
        made("/webhooks", json!({"url": "https://example.com/a", "events": ["click.created"]})).await;
    let test = browser.post(&format!("/webhooks/{endpoint}/test"), json!({})).await;
    Ids {
        workspace: browser.workspace.clone(),
        link: made("/links", json!({"name": "a", "destination": "https://example.com"})).await,
        endpoint,
        delivery: text(&test.body["delivery_id"]),
        key: made("/keys", json!({"name": "a", "scope": "read"})).await,
        import: text(&answer(file).await.body["import_id"]),
        user: text(&browser.send(Method::GET, "/app/api/session", None).await.body["user"]["id"]),
        session: text(&browser.send(Method::GET, "/app/api/sessions", None).await.body["sessions"][0]["id"]),
    }
}

/// What the owner has: what of it would differ if something had been changed.
async fn all(owner: &Browser) -> Vec<Value> {
    let links = owner.get("/links").await.body["links"].as_array().unwrap().clone();
    let mut all: Vec<Value> = links.iter().map(|link| json!([link["id"], link["name"]])).collect();
    for path in ["/webhooks", "/keys", "/tags"] {
        all.push(owner.get(path).await.body);
    }
    for path in ["/app/api/members", "/app/api/workspaces"] {
        all.push(owner.send(Method::GET, path, None).await.body);
    }
    all
}

fn is_refused(answer: &Answer, status: u16, code: &str, route: &Route, why: &str) {
    let what = format!("{} {}, {why}: {}", route.method, route.path, answer.body);
    assert_eq!((answer.status.as_u16(), &answer.body["code"]), (status, &json!(code)), "{what}");
}

#[tokio::test]
async fn no_operation_shows_another_workspace() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let other = owner.of_other_account(&server, "eve@example.com", "business").await;
    let theirs = make(&owner).await;
    let own = make(&other).await;
    let body = json!({"name": "Second", "kind": "personal"});
    let second = owner.send(Method::POST, "/app/api/workspaces", Some(body)).await.body;
    let before = all(&owner).await;

    // Everything in a workspace of another account, and in none.
    let nowhere = [WorkspaceId::from_uuid(Uuid::nil()).to_string(), "nonsense".to_owned(), "%00".to_owned()];
    for workspace in [theirs.workspace.clone()].into_iter().chain(nowhere) {
        let ids = Ids { workspace, ..theirs.clone() };
        for route in of_workspace() {
            let refused = answer(route.request(&other, &ids)).await;
            is_refused(&refused, 404, "NOT_FOUND", &route, "in a foreign workspace");
        }
    }
    // Their ids, ids of nothing, and invalid ids, in one's own workspace; and those of one's own other workspace.
    let unknown = Ids {
        workspace: own.workspace.clone(),
        link: LinkId::from_uuid(Uuid::nil()).to_string(),
        endpoint: EndpointId::from_uuid(Uuid::nil()).to_string(),
        delivery: Uuid::nil().to_string(),
        key: KeyId::from_uuid(Uuid::nil()).to_string(),
        import: ImportId::from_uuid(Uuid::nil()).to_string(),
        user: UserId::from_uuid(Uuid::nil()).to_string(),
        session: SessionId::from_uuid(Uuid::nil()).to_string(),
    };
    let nonsense = Ids {
        link: "nonsense".to_owned(),
        endpoint: theirs.link.clone(),
        delivery: "nonsense".to_owned(),
        key: "%00".to_owned(),
        import: own.link.clone(),
        user: own.key.clone(),
        session: own.key.clone(),
        ..unknown.clone()
    };
    let foreign = Ids { workspace: own.workspace.clone(), ..theirs.clone() };
    let second = Ids {
        workspace: text(&second["id"]),
        user: own.user.clone(),
        session: own.session.clone(),
        ..theirs.clone()
    };
    for (browser, ids) in [(&other, &foreign), (&other, &unknown), (&other, &nonsense), (&owner, &second)] {
        for route in every().into_iter().filter(|route| route.path.contains("{id}")) {
            let refused = answer(route.request(browser, ids)).await;
            is_refused(&refused, 404, "NOT_FOUND", &route, "with a foreign id");
        }
    }
    // A session is no way into the public API, and a key none into the dashboard.
    for route in of_workspace() {
        let request = server.request(route.method.clone(), &route.at(&theirs)).bearer_auth(&server.key);
        let request =
            request.header("x-requested-with", "hopline").header("content-type", "application/json");
        is_refused(&answer(request).await, 401, "UNAUTHORIZED", &route, "with a key");
    }
    assert_eq!(answer(owner.bare(Method::GET, "/api/links")).await.status, 401);
    assert_eq!(all(&owner).await, before, "nothing has changed");
}

#[tokio::test]
async fn a_removed_members_session_is_rejected_by_every_operation() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    // Even one who could do everything.
    let (removed, id) = owner.with_member(&server, "grace@example.com", "owner").await;
    let ids = make(&removed).await;
    assert_eq!(owner.send(Method::DELETE, &format!("/app/api/members/{id}"), None).await.status, 204);
    let before = all(&owner).await;
    for route in every().into_iter().filter(|route| !route.is_open) {
        let refused = answer(route.request(&removed, &ids)).await;
        is_refused(&refused, 401, "UNAUTHORIZED", &route, "after the removal");
    }
    assert_eq!(all(&owner).await, before, "nothing has changed");
}

#[tokio::test]
async fn no_operation_accepts_a_cross_site_change() {
    let server = Server::start().await;
    let browser = Browser::set_up(&server).await;
    let ids = make(&browser).await;
    let before = all(&browser).await;
    // What a page of another site can send: forms, texts, and whatever a careless CORS policy would let through.
    let forged: [(&str, &[(&str, &str)]); 7] = [
        ("form", &[("content-type", "application/x-www-form-urlencoded")]),
        ("text", &[("content-type", "text/plain")]),
        ("json without the header", &[("content-type", "application/json")]),
        ("csv without the header", &[("content-type", "text/csv")]),
        (
            "of another origin",
            &[
                ("content-type", "application/json"),
                ("x-requested-with", "hopline"),
                ("origin", "https://evil.example"),
            ],
        ),
        (
            "of no origin",
            &[("content-type", "application/json"), ("x-requested-with", "hopline"), ("origin", "null")],
        ),
        ("the header without json", &[("x-requested-with", "hopline")]),
    ];
    let writing: Vec<Route> = every().into_iter().filter(|route| route.method != Method::GET).collect();
    assert!(writing.len() > 20);
    for route in &writing {
        let path = route.at(&ids);
        for (what, headers) in forged {
            let mut request = browser.bare(route.method.clone(), &path).body(route.body().to_string());
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            is_refused(&answer(request).await, 403, "FORBIDDEN", route, what);
        }
        let preflight = browser
            .bare(Method::OPTIONS, &path)
            .header("origin", "https://evil.example")
            .header("access-control-request-method", route.method.as_str())
            .header("access-control-request-headers", "x-requested-with, content-type");
        let preflight = preflight.send().await.unwrap();
        assert!(!preflight.status().is_success(), "{path}");
        assert!(!preflight.headers().contains_key("access-control-allow-origin"), "{path}");
    }
    assert_eq!(all(&browser).await, before, "nothing has changed, and the session is still there");
    let read = browser.bare(Method::GET, "/app/api/session").header("origin", "https://evil.example");
    let read = read.send().await.unwrap();
    assert!(!read.headers().contains_key("access-control-allow-origin"), "no other site reads it");
    assert_eq!(read.headers()["cache-control"], "no-store");
    assert_eq!(read.headers()["x-content-type-options"], "nosniff");
}

#[tokio::test]
async fn a_viewer_sees_everything_and_changes_nothing() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let (viewer, _) = owner.with_member(&server, "vera@example.com", "viewer").await;
    let ids = make(&owner).await;
    let before = all(&owner).await;
    for route in of_workspace().into_iter().filter(|route| !route.path.ends_with("live")) {
        let request = route.request(&viewer, &ids);
        if route.method == Method::GET {
            // Some answer files and pictures.
            let status = request.send().await.unwrap().status();
            assert!(status.is_success(), "{} {}: {status}", route.method, route.path);
        } else {
            is_refused(&answer(request).await, 403, "FORBIDDEN", &route, "by a viewer");
        }
    }
    for route in every().into_iter().filter(|route| route.path.starts_with("audit")) {
        is_refused(&answer(route.request(&viewer, &ids)).await, 403, "FORBIDDEN", &route, "by a viewer");
    }
    assert_eq!(all(&owner).await, before, "nothing has changed");
}
