//! HTTP requests to servers on this machine.

use std::fs;
use std::path::Path;
use std::time::Duration;

use reqwest::{Certificate, Client, ClientBuilder, Url, redirect};

use crate::Cause;

/// Returns a client for plain HTTP that follows no redirects, uses no proxy, and has a timeout of 10 s.
///
/// # Errors
/// The HTTP library's error when it cannot be set up.
pub fn client() -> Result<Client, Cause> {
    // Trusts no certificate: reading the system's takes a debug build 40 ms.
    build(Client::builder().tls_certs_only([]))
}

/// Returns the same for a server at `url`. Over TLS, it trusts certificates of this authority, or else of the system's.
pub(crate) fn client_for(url: &Url, ca: Option<&Path>) -> Result<Client, Cause> {
    match ca {
        Some(ca) => build(Client::builder().tls_certs_only([Certificate::from_pem(&fs::read(ca)?)?])),
        None if url.scheme() == "https" => build(Client::builder()),
        None => client(),
    }
}

fn build(builder: ClientBuilder) -> Result<Client, Cause> {
    // The library needs a TLS provider even for plain HTTP. The error says that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = builder
        .no_proxy()
        .redirect(redirect::Policy::none())
        .timeout(Duration::from_secs(10))
        // After a server's restart a pooled connection would fail the first request.
        .pool_max_idle_per_host(0)
        .build()?;
    Ok(client)
}

/// Requests a page and fails unless the status is 2xx.
///
/// # Errors
/// The connection's error, or the status with the beginning of the response.
pub async fn page(url: &str) -> Result<(), Cause> {
    accepted(client()?.get(url).send().await?).await.map(drop)
}

/// Returns the text of a response with a 2xx status.
///
/// # Errors
/// Any other status, with the beginning of the text.
pub async fn accepted(response: reqwest::Response) -> Result<String, Cause> {
    let status = response.status();
    let text = response.text().await?;
    if status.is_success() {
        return Ok(text);
    }
    let beginning: String = text.chars().take(300).collect();
    Err(format!("{status}: {}", beginning.trim()).into())
}
