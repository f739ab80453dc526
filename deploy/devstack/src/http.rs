//! Plain HTTP to servers on this machine.

use std::time::Duration;

use reqwest::{Client, redirect};

use crate::Cause;

/// A client that follows no redirect, uses no proxy, and gives up after 10 s.
///
/// # Errors
/// What the HTTP library says when it cannot be set up.
pub fn client() -> Result<Client, Cause> {
    // The library wants a TLS provider even for plain HTTP. A second call finds it installed, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .timeout(Duration::from_secs(10))
        // A pooled connection to a server that was killed would fail the first request after its restart.
        .pool_max_idle_per_host(0)
        .build()?;
    Ok(client)
}

/// Asks for a page and says whether it was answered with a 2xx status.
///
/// # Errors
/// The connection's error, or the status with the beginning of the answer.
pub async fn page(url: &str) -> Result<(), Cause> {
    accepted(client()?.get(url).send().await?).await.map(drop)
}

/// Returns the text of a 2xx answer.
///
/// # Errors
/// The status of any other, with the beginning of its text.
pub async fn accepted(answer: reqwest::Response) -> Result<String, Cause> {
    let status = answer.status();
    let text = answer.text().await?;
    if status.is_success() {
        return Ok(text);
    }
    let beginning: String = text.chars().take(300).collect();
    Err(format!("{status}: {}", beginning.trim()).into())
}
