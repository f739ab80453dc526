//! The limit: a loop that signs and sends, and keeps nothing.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ::tests::engines::http_client;
use anyhow::ensure;
use chrono::Utc;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::stage::{SECRET, body};

/// Sends so many requests, `concurrency` at a time.
pub(super) async fn send(url: &str, requests: usize, concurrency: usize) -> anyhow::Result<()> {
    let client = http_client();
    let (left, body) = (Arc::new(AtomicUsize::new(requests)), Arc::new(body()));
    let mut workers = JoinSet::new();
    for _ in 0..concurrency {
        let (client, url, left, body) =
            (client.clone(), url.to_owned(), Arc::clone(&left), Arc::clone(&body));
        workers.spawn(async move {
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            {
                let answer = client
                    .post(&url)
                    .header("content-type", "application/json")
                    .header("x-service-event", "click.created")
                    .header("x-service-delivery", Uuid::now_v7().to_string())
                    .header("x-service-signature", signature(&body)?)
                    .body(body.to_string())
                    .send()
                    .await?;
                ensure!(answer.status() == 200, "the receiver answered {}", answer.status());
            }
            Ok(())
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    Ok(())
}

fn signature(body: &str) -> anyhow::Result<String> {
    let t = Utc::now().timestamp();
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes())?;
    mac.update(t.to_string().as_bytes());
    mac.update(b".");
    mac.update(body.as_bytes());
    let mut header = format!("t={t},v1=");
    for byte in mac.finalize().into_bytes() {
        write!(header, "{byte:02x}")?;
    }
    Ok(header)
}
