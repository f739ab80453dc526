//! The limit of webhooks: a loop that signs and sends, and stores nothing.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::tests::engines::http_client;
use anyhow::ensure;
use chrono::Utc;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::stage::SECRET;

/// A body of the usual size.
const BODY: &str = r#"{"id":"00000000-0000-0000-0000-000000000000","event":"click.created","created_at":"2026-09-21T13:33:20.123Z","data":{"link_id":"lnk_01j9qkwz0vfdz9mm9f3my4ppk9","slug":"spring","country":"DE","device_type":"mobile","utm_source":"newsletter","utm_campaign":"spring","click_id":"AQGSbz58G3t-mlEvHTxLWmkBoMRQbHsJCQkJCQkJCQkJMvFk5fAerVRhyH4v","occurred_at":"2026-09-21T13:33:20.123Z","class":"human"}}"#;

/// Sends this number of requests, `concurrency` at a time.
pub(super) async fn send(url: &str, requests: usize, concurrency: usize) -> anyhow::Result<()> {
    let client = http_client();
    let left = Arc::new(AtomicUsize::new(requests));
    let mut workers = JoinSet::new();
    for _ in 0..concurrency {
        let (client, url, left) = (client.clone(), url.to_owned(), Arc::clone(&left));
        workers.spawn(async move {
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            {
                let answer = client
                    .post(&url)
                    .header("content-type", "application/json")
                    .header("x-service-event", "click.created")
                    .header("x-service-delivery", Uuid::now_v7().to_string())
                    .header("x-service-signature", signature(BODY)?)
                    .body(BODY)
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
