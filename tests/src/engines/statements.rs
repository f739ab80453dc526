//! Statements of ClickHouse, over HTTP.

use std::time::Duration;

use reqwest::Url;

use crate::PATIENCE;

/// How long a statement may take: the benchmark fills tables of a hundred million rows.
const STATEMENT: Duration = Duration::from_secs(3_600);

/// Runs a ClickHouse statement at a URL with user and database, and returns its result as text.
///
/// # Errors
/// ClickHouse's error, or why there is no answer.
pub async fn clickhouse(url: &str, query: &str, rows: Vec<u8>) -> Result<String, String> {
    let mut url = Url::parse(url).map_err(|error| error.to_string())?;
    let database = url.path().trim_start_matches('/').to_owned();
    let user = url.username().to_owned();
    let password = url.password().map(str::to_owned);
    url.set_path("/");
    // Neither call fails on an http URL.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.query_pairs_mut().append_pair("database", &database).append_pair("query", query);
    // An administrator's engine may be behind TLS, with a certificate that the system trusts.
    let client = if url.scheme() == "https" { build(reqwest::Client::builder()) } else { http_client() };
    // ClickHouse requires a length, also for an empty body.
    let mut request = client.post(url).header("content-length", rows.len()).body(rows).timeout(STATEMENT);
    if !user.is_empty() {
        request = request.basic_auth(user, password);
    }
    let answer = request.send().await.map_err(|error| error.to_string())?;
    let status = answer.status();
    let text = answer.text().await.map_err(|error| error.to_string())?;
    if status.is_success() { Ok(text) } else { Err(text) }
}

/// The same.
///
/// # Panics
/// When ClickHouse rejects it.
pub(super) async fn accepted(url: &str, query: &str, rows: Vec<u8>) -> String {
    let answer = clickhouse(url, query, rows).await;
    answer.unwrap_or_else(|error| panic!("ClickHouse rejected {query}: {error}"))
}

/// Returns a client for plain HTTP without redirects and proxies. The kernel accepts connections for a frozen server:
/// each request ends after [`PATIENCE`].
pub fn http_client() -> reqwest::Client {
    // Trusts no certificate: reading the system's takes a debug build 40 ms.
    build(reqwest::Client::builder().tls_certs_only([]))
}

fn build(builder: reqwest::ClientBuilder) -> reqwest::Client {
    // Fails when the provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    builder.no_proxy().redirect(reqwest::redirect::Policy::none()).timeout(PATIENCE).build().unwrap()
}
