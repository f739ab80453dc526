//! Seals webhook secrets with the present key.

use anyhow::Context as _;
use schemas::id::EndpointId;
use secrecy::ExposeSecret as _;
use serde_json::json;
use service::sealed::{self, Sealed};
use uuid::Uuid;

use super::trail::record;
use crate::app::App;
use crate::store::endpoints;

/// Seals every secret that another key sealed with the first key of the ring, and returns of how many endpoints.
///
/// One transaction for each endpoint: a command that was interrupted can be run again.
pub(super) async fn reseal(app: &App) -> anyhow::Result<usize> {
    let (present, _) = app.secret_keys.current();
    let (mut count, mut after) = (0, Uuid::nil());
    loop {
        let mut transaction = app.pool.begin().await?;
        let found = endpoints::next_sealed_with_another_key(&mut transaction, after, present.into()).await?;
        let Some((id, secrets)) = found else { break };
        after = id;
        let mut resealed = Vec::with_capacity(secrets.len());
        for (key_id, bytes) in secrets {
            let secret = sealed::open(&app.secret_keys, id.as_bytes(), key_id, &bytes)
                .with_context(|| format!("cannot open a secret of {}", EndpointId::from_uuid(id)))?;
            resealed.push(seal(app, id, secret.expose_secret())?);
        }
        endpoints::set_secrets(&mut transaction, id, &resealed).await?;
        transaction.commit().await?;
        count += 1;
    }
    let mut connection = app.pool.acquire().await?;
    record(&mut connection, "reseal", "webhook secrets", json!({ "endpoints": count, "key_id": present }))
        .await?;
    Ok(count)
}

fn seal(app: &App, endpoint: Uuid, secret: &str) -> anyhow::Result<Sealed> {
    Ok(sealed::seal(&app.secret_keys, endpoint.as_bytes(), secret, rand::random())?)
}
