//! Every route of the dashboard rejects requests without permission; new routes are covered automatically.

use api::Access;
use reqwest::{Method, RequestBuilder};
use schemas::id::{EndpointId, ImportId, KeyId, LinkId, SessionId, UserId, WorkspaceId};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::dashboard::{Browser, PASSWORD};
use crate::server::{Answer, Server, answer, text};

/// A route of the dashboard.
struct Route {
    method: Method,
    /// The path below `/app/api`, with names in braces.
    path: String,
    /// Whether it needs no session.
    is_open: bool,
}

/// The ids of a workspace and of a resource of each kind.
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

fn routes() -> Vec<Route> {
    let routes = api::dashboard_operations().into_iter().map(|(method, path, access)| Route {
        method,
        path,
        is_open: access == Access::Anyone,
    });
    routes.collect()
}

fn workspace_routes() -> Vec<Route> {
    routes().into_iter().filter(|route| route.path.starts_with("workspaces/{workspace}/")).collect()
}

impl Route {
    /// Returns the path with these ids.
    fn at(&self, ids: &Ids) -> String {
        let id = match self.path.trim_start_matches("workspaces/{workspace}/") {
            path if path.starts_with("links/import") => &ids.import,
            path if path.starts_with("links") => &ids.link,
            path if path.starts_with("webhooks") => &ids.endpoint,
            path if path.starts_with("keys") => &ids.key,
            path if path.starts_with("members") => &ids.user,
            path if path.starts_with("sessions") => &ids.session,
            path => {
                assert!(!path.contains("{id}"), "{path} needs an id of an unknown kind");
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

    /// Returns a body that the route accepts.
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
            ("two-factor", "POST") => json!({"password": PASSWORD}),
            ("two-factor/confirm", _) => json!({"code": "000000"}),
            ("two-factor", "DELETE") => json!({"password": PASSWORD, "code": "000000"}),
            ("workspaces", _) => json!({"name": "b", "kind": "personal"}),
            ("sign-in", _) => json!({"email": "ada@example.com", "password": PASSWORD}),
            _ => json!({}),
        }
    }

    /// Prepares the request as the page sends it.
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

/// Creates a resource of each kind in the browser's workspace.
async fn create_resources(browser: &Browser) -> Ids {
    let create = async |path: &str, body| text(&browser.post(path, body).await.body["id"]);
    let file = browser.request(Method::POST, &browser.path("/links/import?dry_run=true"));
    let file = file.header("content-type", "text/csv").body("destination\nhttps://example.com\n");
    let endpoint =
        create("/webhooks", json!({"url": "https://example.com/a", "events": ["click.created"]})).await;
    let test = browser.post(&format!("/webhooks/{endpoint}/test"), json!({})).await;
    Ids {
        workspace: browser.workspace.clone(),
        link: create("/links", json!({"name": "a", "destination": "https://example.com"})).await,
        endpoint,
        delivery: text(&test.body["delivery_id"]),
        key: create("/keys", json!({"name": "a", "scope": "read"})).await,
        import: text(&answer(file).await.body["import_id"]),
        user: text(&browser.send(Method::GET, "/app/api/session", None).await.body["user"]["id"]),
        session: text(&browser.send(Method::GET, "/app/api/sessions", None).await.body["sessions"][0]["id"]),
    }
}

/// Returns the owner's links, endpoints, keys, tags, members and workspaces, to detect a change.
async fn state_of(owner: &Browser) -> Vec<Value> {
    let links = owner.get("/links").await.body["links"].as_array().unwrap().clone();
    let mut state: Vec<Value> = links.iter().map(|link| json!([link["id"], link["name"]])).collect();
    for path in ["/webhooks", "/keys", "/tags"] {
        state.push(owner.get(path).await.body);
    }
    for path in ["/app/api/members", "/app/api/workspaces"] {
        state.push(owner.send(Method::GET, path, None).await.body);
    }
    state
}

fn assert_rejected(answer: &Answer, status: u16, code: &str, route: &Route, why: &str) {
    let request = format!("{} {}, {why}: {}", route.method, route.path, answer.body);
    assert_eq!((answer.status.as_u16(), &answer.body["code"]), (status, &json!(code)), "{request}");
}

#[tokio::test]
async fn no_operation_shows_another_workspace() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let other = owner.of_other_account(&server, "eve@example.com", "business").await;
    let theirs = create_resources(&owner).await;
    let own = create_resources(&other).await;
    let body = json!({"name": "Second", "kind": "personal"});
    let second = owner.send(Method::POST, "/app/api/workspaces", Some(body)).await.body;
    let before = state_of(&owner).await;

    // Every route in a workspace of another account, and in unknown and malformed workspaces.
    let nowhere = [WorkspaceId::from_uuid(Uuid::nil()).to_string(), "nonsense".to_owned(), "%00".to_owned()];
    for workspace in [theirs.workspace.clone()].into_iter().chain(nowhere) {
        let ids = Ids { workspace, ..theirs.clone() };
        for route in workspace_routes() {
            let refused = answer(route.request(&other, &ids)).await;
            assert_rejected(&refused, 404, "NOT_FOUND", &route, "in a foreign workspace");
        }
    }
    // Foreign, unknown and malformed ids, and ids of another workspace of the same account.
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
        for route in routes().into_iter().filter(|route| route.path.contains("{id}")) {
            let refused = answer(route.request(browser, ids)).await;
            assert_rejected(&refused, 404, "NOT_FOUND", &route, "with a foreign id");
        }
    }
    // The dashboard accepts no key, and the public API no session.
    for route in workspace_routes() {
        let request = server.request(route.method.clone(), &route.at(&theirs)).bearer_auth(&server.key);
        let request =
            request.header("x-requested-with", "hopline").header("content-type", "application/json");
        assert_rejected(&answer(request).await, 401, "UNAUTHORIZED", &route, "with a key");
    }
    assert_eq!(answer(owner.bare(Method::GET, "/api/links")).await.status, 401);
    assert_eq!(state_of(&owner).await, before, "nothing has changed");
}

#[tokio::test]
async fn a_removed_members_session_is_rejected_by_every_operation() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    // An owner, who may use every operation.
    let (removed, id) = owner.with_member(&server, "grace@example.com", "owner").await;
    let ids = create_resources(&removed).await;
    assert_eq!(owner.send(Method::DELETE, &format!("/app/api/members/{id}"), None).await.status, 204);
    let before = state_of(&owner).await;
    for route in routes().into_iter().filter(|route| !route.is_open) {
        let refused = answer(route.request(&removed, &ids)).await;
        assert_rejected(&refused, 401, "UNAUTHORIZED", &route, "after the removal");
    }
    assert_eq!(state_of(&owner).await, before, "nothing has changed");
}

#[tokio::test]
async fn no_operation_accepts_a_cross_site_change() {
    let server = Server::start().await;
    let browser = Browser::set_up(&server).await;
    let ids = create_resources(&browser).await;
    let before = state_of(&browser).await;
    // Requests that a page of another site can send, and those that a careless CORS policy would let through.
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
    let writing: Vec<Route> = routes().into_iter().filter(|route| route.method != Method::GET).collect();
    assert!(writing.len() > 20);
    for route in &writing {
        let path = route.at(&ids);
        for (what, headers) in forged {
            let mut request = browser.bare(route.method.clone(), &path).body(route.body().to_string());
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            assert_rejected(&answer(request).await, 403, "FORBIDDEN", route, what);
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
    assert_eq!(state_of(&browser).await, before, "nothing has changed, and the session is still there");
    let read = browser.bare(Method::GET, "/app/api/session").header("origin", "https://evil.example");
    let read = read.send().await.unwrap();
    assert!(!read.headers().contains_key("access-control-allow-origin"), "no other site reads it");
    assert_eq!(read.headers()["cache-control"], "private, no-store");
    assert_eq!(read.headers()["x-content-type-options"], "nosniff");
}

#[tokio::test]
async fn a_viewer_has_read_access_only() {
    let server = Server::start().await;
    let owner = Browser::set_up(&server).await;
    let (viewer, _) = owner.with_member(&server, "vera@example.com", "viewer").await;
    let ids = create_resources(&owner).await;
    let before = state_of(&owner).await;
    for route in workspace_routes().into_iter().filter(|route| !route.path.ends_with("live")) {
        let request = route.request(&viewer, &ids);
        if route.method == Method::GET && !route.path.contains("/webhooks") {
            // Some routes return files or images.
            let status = request.send().await.unwrap().status();
            assert!(status.is_success(), "{} {}: {status}", route.method, route.path);
        } else {
            assert_rejected(&answer(request).await, 403, "FORBIDDEN", &route, "by a viewer");
        }
    }
    for route in routes().into_iter().filter(|route| route.path.starts_with("audit")) {
        assert_rejected(&answer(route.request(&viewer, &ids)).await, 403, "FORBIDDEN", &route, "by a viewer");
    }
    assert_eq!(state_of(&owner).await, before, "nothing has changed");
}
