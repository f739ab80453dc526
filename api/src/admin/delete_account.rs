//! Deletes an account with all that belongs to it.

use chrono::Utc;
use schemas::id::AccountId;
use serde_json::{Value, json};

use super::blocks::set_suspended;
use super::checks::wrong;
use super::trail::record;
use crate::app::App;
use crate::store::audit::Of;
use crate::store::{accounts, edge_tokens, endpoints, erasure};

/// Links of one transaction.
const BATCH: i64 = 1_000;

/// Deletes an account; `None` when there is none. `name` must be the account's.
///
/// Suspends it first, so that nothing is added meanwhile. A command that was interrupted can be run again.
pub(super) async fn delete_account(
    app: &App,
    account: AccountId,
    name: &str,
) -> anyhow::Result<Option<Value>> {
    let mut connection = app.pool.acquire().await?;
    let Some(row) = accounts::find(&mut connection, account.uuid()).await? else { return Ok(None) };
    if row.name != name {
        return Err(wrong("--confirm", "must be the account's name, as `show-account` prints it"));
    }
    drop(connection);
    set_suspended(app, account, Some("it is being deleted")).await?;
    let mut links = 0;
    loop {
        let mut transaction = app.pool.begin().await?;
        let now = schemas::time::to_millis(Utc::now());
        let deleted = erasure::delete_links(&mut transaction, account.uuid(), BATCH, now).await?;
        transaction.commit().await?;
        if deleted == 0 {
            break;
        }
        links += deleted;
        tracing::info!(links, "{links} links are deleted");
    }
    let mut transaction = app.pool.begin().await?;
    edge_tokens::revoke_all(&mut transaction, account.uuid()).await?;
    let mut rows = json!(erasure::delete_rest(&mut transaction, account.uuid()).await?);
    rows["links"] = json!(links);
    endpoints::raise_version(&mut transaction).await?;
    record(
        &mut transaction,
        "delete-account",
        &account.to_string(),
        Of::Account(account.uuid()),
        json!({ "rows": rows }),
    )
    .await?;
    transaction.commit().await?;
    Ok(Some(json!({ "account_id": account, "deleted": rows })))
}
