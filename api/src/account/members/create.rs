//! `POST /app/api/members`

use chrono::Utc;
use schemas::id::UserId;
use serde::{Deserialize, Serialize};
use serde_json::json;
use service::http::ApiError;
use uuid::Uuid;

use super::{check_email, email_taken};
use crate::account::sessions::member::Owner;
use crate::account::sessions::password::{Client, Password, check_password, draw_password};
use crate::app::App;
use crate::error::database;
use crate::store::audit::Of;
use crate::store::members::{Member, NewMember};
use crate::store::role::Role;
use crate::store::{audit, members};
use crate::web::faults::{Faults, check_name};
use crate::web::request::Json;

/// The body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct New {
    email: String,
    #[serde(default)]
    name: String,
    role: Role,
    password: Option<Password>,
}

/// The member and the generated password, which is not shown again.
#[derive(Serialize)]
pub(crate) struct Created {
    #[serde(flatten)]
    member: Member,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<String>,
}

/// Creates a member who can sign in, with a given or a generated password.
pub(crate) async fn create(Owner(owner): Owner, Json(new): Json<New>, app: App) -> Result<Created, ApiError> {
    let (name, email) = (new.name.trim(), new.email.trim());
    let mut faults = Faults::default();
    if !name.is_empty() {
        faults.note("name", check_name(name));
    }
    faults.note("email", check_email(email));
    if let Some(password) = &new.password {
        faults.note("password", check_password(password));
    }
    faults.into_result()?;
    // Before the costly hash. The index decides between two at once.
    if members::find(&app.pool, email).await.map_err(database)?.is_some() {
        return Err(email_taken());
    }
    let drawn = new.password.is_none().then(|| draw_password(&mut rand::rng()));
    let shown = drawn.as_ref().map(|password| password.reveal().to_owned());
    // One of the two is there.
    let Some(password) = new.password.or(drawn) else { return Err(ApiError::internal("no password")) };
    let hash = app.hashing.hash(Client::Account(owner.account), password).await?;

    let member =
        NewMember { id: Uuid::now_v7(), account: owner.account, name, email, role: new.role, hash: &hash };
    let mut transaction = app.pool.begin().await.map_err(database)?;
    if !members::insert(&mut transaction, &member).await.map_err(database)? {
        return Err(email_taken());
    }
    let id = UserId::from_uuid(member.id);
    let details = json!({ "email": email, "role": new.role.as_str() });
    audit::record(
        &mut transaction,
        &audit::member(owner.user),
        "create-user",
        &id.to_string(),
        Of::Account(owner.account),
        details,
    )
    .await
    .map_err(database)?;
    transaction.commit().await.map_err(database)?;
    let member = Member {
        id,
        name: name.to_owned(),
        email: email.to_owned(),
        role: new.role.as_str().to_owned(),
        two_factor: Some(false),
        created_at: Utc::now(),
    };
    Ok(Created { member, password: shown })
}
