//! A browser that uses the dashboard.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::server::{Answer, Server, answer, text};

/// A valid password.
pub(crate) const PASSWORD: &str = "correct horse battery";

/// A browser that keeps one cookie and sends the headers of the page.
#[derive(Clone)]
pub(crate) struct Browser {
    pub(crate) cookie: Option<String>,
    client: reqwest::Client,
    url: String,
    /// The workspace of [`Browser::path`], [`Browser::get`] and [`Browser::post`].
    pub(crate) workspace: String,
}

impl Browser {
    /// Creates a browser without a session.
    pub(crate) fn new(server: &Server) -> Self {
        let client = tests::engines::http_client();
        Self { cookie: None, client, url: server.url.clone(), workspace: server.workspace.clone() }
    }

    /// Continues at another instance.
    pub(crate) fn at(&mut self, server: &Server) {
        self.url = server.url.clone();
    }

    /// Sets up the server's account and returns a browser with a session of its owner, ada@example.com.
    pub(crate) async fn set_up(server: &Server) -> Self {
        let mut browser = Self::new(server);
        let token = text(&server.admin(&["setup-token"]).await["setup_token"]);
        let owner = json!({"name": "Ada", "email": "ada@example.com", "password": PASSWORD, "token": token});
        let answer = browser.send(Method::POST, "/app/api/setup", Some(owner)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        browser.keep_cookie(&answer);
        browser
    }

    /// Signs in and keeps the cookie.
    pub(crate) async fn sign_in(&mut self, email: &str, password: &str) -> Answer {
        let answer = self
            .send(Method::POST, "/app/api/sign-in", Some(json!({"email": email, "password": password})))
            .await;
        self.keep_cookie(&answer);
        answer
    }

    /// Creates a member of this owner's account. Returns a browser with the member's session, and the member's id.
    pub(crate) async fn with_member(&self, server: &Server, email: &str, role: &str) -> (Self, String) {
        let body = json!({"email": email, "role": role, "password": PASSWORD});
        let created = self.send(Method::POST, "/app/api/members", Some(body)).await;
        assert_eq!(created.status, 201, "{}", created.body);
        let mut browser = Self::new(server);
        assert_eq!(browser.sign_in(email, PASSWORD).await.status, 200);
        (browser, text(&created.body["id"]))
    }

    /// Creates another account on a plan, and returns a browser with a session of its owner.
    pub(crate) async fn of_other_account(&self, server: &Server, email: &str, plan: &str) -> Self {
        let account = server.admin(&["create-account", "--name", "Other", "--plan", plan]).await;
        let (mut browser, _) = self.with_member(server, email, "owner").await;
        let id: schemas::id::AccountId = text(&account["account_id"]).parse().unwrap();
        sqlx::query("UPDATE users SET account_id = $1 WHERE email = $2")
            .bind(id.uuid())
            .bind(email)
            .execute(&mut server.engines.postgres().await)
            .await
            .unwrap();
        browser.workspace = text(&account["workspace_id"]);
        browser
    }

    pub(crate) fn keep_cookie(&mut self, answer: &Answer) {
        if let Some(header) = answer.headers.get("set-cookie") {
            let pair = header.to_str().unwrap().split(';').next().unwrap().to_owned();
            self.cookie = Some(pair).filter(|pair| !pair.ends_with('='));
        }
    }

    /// Prepares a request as the page sends it.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let mut request = self.bare(method.clone(), path);
        if method != Method::GET {
            request = request.header("x-requested-with", "hopline").header("origin", &self.url);
        }
        request
    }

    /// Prepares a request with only the cookie.
    pub(crate) fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if let Some(cookie) = &self.cookie {
            request = request.header("cookie", cookie);
        }
        request
    }

    /// Sends a request with a body of JSON, as the page does.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let mut request = self.request(method.clone(), path);
        if method != Method::GET {
            request = request.json(&body.unwrap_or(json!({})));
        }
        answer(request).await
    }

    /// Returns a path in the browser's workspace.
    pub(crate) fn path(&self, below: &str) -> String {
        format!("/app/api/workspaces/{}{below}", self.workspace)
    }

    /// Reads a resource of the workspace.
    pub(crate) async fn get(&self, below: &str) -> Answer {
        self.send(Method::GET, &self.path(below), None).await
    }

    /// Creates a resource in the workspace.
    pub(crate) async fn post(&self, below: &str, body: Value) -> Answer {
        self.send(Method::POST, &self.path(below), Some(body)).await
    }
}
