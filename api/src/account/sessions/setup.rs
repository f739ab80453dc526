//! `GET` and `POST /app/api/setup`: the first sign-in of a new deployment.
//!
//! The set-up token is in the log of `api`, so that not just anybody who finds the page first becomes its owner.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use service::Shutdown;
use service::http::ApiError;
use subtle::ConstantTimeEq as _;

use super::deployment_hash::deployment_hash;
use super::sign_in::{SignedIn, begin};
use crate::account::members::{check_email, email_taken};
use crate::account::sessions::member::SentByPage;
use crate::account::sessions::password::{Client, Password, check_password};
use crate::app::App;
use crate::error::{database, violates};
use crate::store::members;
use crate::web::caller::Anyone;
use crate::web::faults::{Faults, check_name};
use crate::web::request::Json;

/// Wait between tries while the database is not ready.
const PAUSE: Duration = Duration::from_secs(2);

/// Whether set-up is needed: nobody can sign in yet.
#[derive(Debug, Serialize)]
pub(crate) struct Needed {
    needed: bool,
}

/// The body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FirstOwner {
    name: String,
    email: String,
    password: Password,
    token: String,
}

/// Answers whether nobody can sign in yet.
pub(crate) async fn is_needed(_: Anyone, app: App) -> Result<Needed, ApiError> {
    let mut connection = app.pool.acquire().await.map_err(database)?;
    Ok(Needed { needed: members::nobody_can_sign_in(&mut connection).await.map_err(database)? })
}

/// Creates the sign-in of the first account's owner, and the account if there is none.
pub(crate) async fn set_up(
    SentByPage(head): SentByPage,
    Json(owner): Json<FirstOwner>,
    app: App,
) -> Result<SignedIn, ApiError> {
    if !bool::from(owner.token.trim().as_bytes().ct_eq(token(&app).as_bytes())) {
        return Err(ApiError::forbidden("The set-up token is wrong. The log of api shows the right one."));
    }
    let (name, email) = (owner.name.trim(), owner.email.trim());
    let mut faults = Faults::default();
    faults.note("name", check_name(name));
    faults.note("email", check_email(email));
    faults.note("password", check_password(&owner.password));
    faults.into_result()?;
    let hash = app.hashing.hash(Client::Operator, owner.password).await?;

    let mut transaction = app.pool.begin().await.map_err(database)?;
    members::lock_setup(&mut transaction).await.map_err(database)?;
    if !members::nobody_can_sign_in(&mut transaction).await.map_err(database)? {
        return Err(ApiError::forbidden("Hopline is already set up. Sign in instead."));
    }
    let user = match members::set_first_owner(&mut transaction, name, email, &hash).await {
        Ok(Some(user)) => user,
        Ok(None) => return Err(email_taken()),
        // Another member got it meanwhile.
        Err(error) if violates(&error, "users_email") => return Err(email_taken()),
        Err(error) => return Err(database(error)),
    };
    transaction.commit().await.map_err(database)?;
    begin(&app, &head, user, &hash, None).await
}

/// Returns the set-up token, which is the same on all instances of a deployment.
pub(crate) fn token(app: &App) -> String {
    let bytes = deployment_hash(app, "set-up token", b"");
    bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Logs the token while nobody can sign in.
pub(crate) async fn announce(app: App, shutdown: Shutdown) {
    let needed = async {
        loop {
            let asked = async { members::nobody_can_sign_in(&mut *app.pool.acquire().await?).await };
            match asked.await {
                Ok(needed) => return needed,
                // Not started, or not migrated.
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    tokio::select! {
        needed = needed => if needed {
            tracing::info!(setup_token = token(&app), "nobody can sign in yet: open /app and use this token");
        },
        () = shutdown.wait() => {}
    }
}
