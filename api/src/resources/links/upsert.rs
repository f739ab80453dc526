//! `PUT /links/upsert`

use http::StatusCode;
use service::http::{ApiError, Code};

use super::{create, show, update};
use crate::account::quota::LinkQuota;
use crate::app::App;
use crate::error::{database, retry_deadlocks};
use crate::resources::links::fields::{Checked, Fields};
use crate::store::links;
use crate::store::links::LinkRow;
use crate::web::caller::{Caller, Editor};
use crate::web::idempotency::Answer;
use crate::web::request::Json;
use crate::web::revision::{IfMatch, Tagged};

/// Attempts to find the link, each after another request created it meanwhile.
const ATTEMPTS: usize = 5;

/// Creates the link with an external id, or changes the existing one, and returns it.
pub(crate) async fn upsert(
    Editor(caller): Editor,
    unchanged: IfMatch,
    Json(fields): Json<Fields>,
    app: App,
) -> Result<Tagged<Answer>, ApiError> {
    let Some(external_id) = fields.external_id.clone().flatten() else {
        return Err(ApiError::invalid_field("external_id", "is required"));
    };
    let checked = fields.check(&app.destinations)?;
    let once = || upsert_once(&external_id, &unchanged, &checked, &caller, &app);
    for _ in 1..ATTEMPTS {
        match retry_deadlocks(once).await {
            Err(error) if error.code() == Code::ExternalIdTaken => {}
            settled => return answer(settled?, &caller, &app).await,
        }
    }
    answer(retry_deadlocks(once).await?, &caller, &app).await
}

enum Upserted {
    Created(LinkRow),
    Updated(LinkRow),
}

async fn answer(upserted: Upserted, caller: &Caller, app: &App) -> Result<Tagged<Answer>, ApiError> {
    Ok(match upserted {
        Upserted::Created(row) => Tagged(create::created(&row, app)?, row.revision),
        Upserted::Updated(row) => {
            let link = show::full_of_retention(&row, caller, app).await?;
            Tagged(Answer::new(StatusCode::OK, &link, None)?, row.revision)
        }
    })
}

/// Tries once. `EXTERNAL_ID_TAKEN` means that the link was created after it was looked up.
async fn upsert_once(
    external_id: &str,
    unchanged: &IfMatch,
    checked: &Checked,
    caller: &Caller,
    app: &App,
) -> Result<Upserted, ApiError> {
    // The quota is taken before the look-up; otherwise this link could be created while waiting for the quota.
    let (mut transaction, mut quota) = LinkQuota::begin(app, caller).await?;
    let found = links::find_external_for_update(&mut transaction, caller.workspace, external_id)
        .await
        .map_err(database)?;
    let upserted = match found {
        Some(mut row) => {
            unchanged.check(row.revision)?;
            update::change(&mut transaction, &mut row, checked, app).await?;
            Upserted::Updated(row)
        }
        None => {
            unchanged.check_new()?;
            checked.check_new()?;
            Upserted::Created(create::insert(&mut transaction, checked, caller, &mut quota, app).await?)
        }
    };
    transaction.commit().await.map_err(database)?;
    Ok(upserted)
}
