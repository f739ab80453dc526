//! Seals secrets of webhooks and second factors with the present key.

use anyhow::Context as _;
use schemas::id::{EndpointId, UserId};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use service::sealed::{self, Sealed};
use uuid::Uuid;

use super::trail::record;
use crate::app::App;
use crate::store::audit::Of;
use crate::store::{endpoints, two_factor};

/// Seals every secret that another key sealed with the first key of the ring, and returns of how many endpoints and
/// members.
///
/// One transaction for each: a command that was interrupted can be run again.
pub(super) async fn reseal(app: &App) -> anyhow::Result<Value> {
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
    let mut members = 0;
    for user in two_factor::sealed_with_another_key(&app.pool, present.into()).await? {
        let mut transaction = app.pool.begin().await?;
        if let Some(factor) = two_factor::lock(&mut transaction, user).await? {
            let secret = sealed::open(&app.secret_keys, user.as_bytes(), factor.key_id, &factor.sealed)
                .with_context(|| format!("cannot open the second factor of {}", UserId::from_uuid(user)))?;
            let secret = seal(app, user, secret.expose_secret())?;
            two_factor::set_secret(&mut transaction, user, &secret).await?;
            transaction.commit().await?;
            members += 1;
        }
    }
    let mut connection = app.pool.acquire().await?;
    record(
        &mut connection,
        "reseal",
        "secrets",
        Of::Nobody,
        json!({ "endpoints": count, "members": members, "key_id": present }),
    )
    .await?;
    Ok(json!({ "endpoints": count, "members": members }))
}

fn seal(app: &App, endpoint: Uuid, secret: &str) -> anyhow::Result<Sealed> {
    Ok(sealed::seal(&app.secret_keys, endpoint.as_bytes(), secret, rand::random())?)
}
