//! Signing secrets: drawn here, shown once, stored sealed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use service::http::ApiError;
use service::sealed::{self, Sealed};
use uuid::Uuid;

use crate::app::App;

/// Draws a secret for an endpoint: the text to show once, and the sealed form to store.
pub(super) fn draw(app: &App, endpoint: Uuid) -> Result<(String, Sealed), ApiError> {
    let secret = format!("whsec_{}", STANDARD.encode(rand::random::<[u8; 32]>()));
    let sealed = sealed::seal(&app.secret_keys, endpoint.as_bytes(), &secret, rand::random())
        .map_err(ApiError::internal)?;
    Ok((secret, sealed))
}
