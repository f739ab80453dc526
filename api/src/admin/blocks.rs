//! Blocked links, blocked hosts of destinations, and suspended accounts.

use chrono::Utc;
use schemas::id::{AccountId, LinkId};
use schemas::message::Message as _;
use serde_json::{Value, json};

use super::checks::wrong;
use super::trail::record;
use crate::app::App;
use crate::background::blocked_hosts::INTERVAL;
use crate::resources::links::block::{self, compare_all};
use crate::resources::links::destination::normal_host;
use crate::store::audit::Of;
use crate::store::outbox::Outgoing;
use crate::store::{accounts, blocked_hosts, directory, endpoints, links, outbox};
use crate::web::faults::check_new_text;

/// Longest reason, in characters.
const MAX_REASON: usize = 500;

/// Links of one transaction.
const BATCH: i64 = 1_000;

/// Blocks a link, or, without a reason, ends that block.
pub(super) async fn set_link_block(app: &App, id: LinkId, reason: Option<&str>) -> anyhow::Result<Value> {
    if let Some(reason) = reason {
        check_new_text(reason, MAX_REASON).map_err(|fault| wrong("--reason", fault))?;
    }
    let mut transaction = app.pool.begin().await?;
    anyhow::ensure!(links::exists(&mut transaction, id.uuid()).await?, "--id: there is no link {id}");
    let now = schemas::time::to_millis(Utc::now());
    let changed = links::set_blocked_reason(&mut transaction, id.uuid(), reason, now).await?;
    if let Some(row) = &changed {
        block::tell(&mut transaction, row, app).await?;
        let action = if reason.is_some() { "block-link" } else { "unblock-link" };
        record(
            &mut transaction,
            action,
            &id.to_string(),
            Of::Workspace(row.workspace_id),
            json!({ "reason": reason }),
        )
        .await?;
    }
    transaction.commit().await?;
    let is_blocked = links::is_blocked(&app.pool, id.uuid()).await?;
    Ok(json!({ "link_id": id, "is_blocked": is_blocked, "changed": changed.is_some() }))
}

/// Blocks a host and the links with destinations on it, or ends that block.
pub(super) async fn set_host_block(app: &App, host: &str, is_blocked: bool) -> anyhow::Result<Value> {
    let host = normal_host(host)
        .ok_or_else(|| wrong("--host", "must be a host name or an address, such as example.com"))?;
    let mut transaction = app.pool.begin().await?;
    let changed = if is_blocked {
        blocked_hosts::insert(&mut transaction, &host).await?
    } else {
        let mut stored = blocked_hosts::all(&mut *transaction).await?;
        stored.retain(|stored| normal_host(stored).as_ref() == Some(&host));
        blocked_hosts::remove(&mut transaction, &stored).await?
    };
    if changed {
        let action = if is_blocked { "block-destination" } else { "unblock-destination" };
        record(&mut transaction, action, &host, Of::Nobody, json!({})).await?;
    }
    transaction.commit().await?;
    if is_blocked {
        // Until every instance knows the host, links to it may still be created; those are compared as well.
        tokio::time::sleep(INTERVAL * 2).await;
    }
    let links = compare_all(app).await?;
    Ok(json!({
        "host": host,
        "changed": changed,
        "links_blocked": links.blocked,
        "links_unblocked": links.unblocked,
    }))
}

/// Lists blocked hosts, blocked links, and suspended accounts.
pub(super) async fn list_blocked(app: &App) -> anyhow::Result<Value> {
    let hosts = blocked_hosts::with_times(&app.pool).await?;
    let hosts: Vec<Value> = hosts
        .into_iter()
        .map(|(host, at)| json!({ "host": host, "blocked_at": schemas::time::text(at) }))
        .collect();
    Ok(json!({
        "hosts": hosts,
        "links": directory::blocked_links(&app.pool).await?,
        "accounts": directory::suspended_accounts(&app.pool).await?,
    }))
}

/// Suspends an account, or, without a reason, resumes it. `None` when there is none.
///
/// Its operations are rejected at once. Its links follow in batches; a command that was interrupted can be run again.
pub(super) async fn set_suspended(
    app: &App,
    account: AccountId,
    reason: Option<&str>,
) -> anyhow::Result<Option<Value>> {
    if let Some(reason) = reason {
        check_new_text(reason, MAX_REASON).map_err(|fault| wrong("--reason", fault))?;
    }
    let mut transaction = app.pool.begin().await?;
    if accounts::find(&mut transaction, account.uuid()).await?.is_none() {
        return Ok(None);
    }
    let changed = accounts::set_suspended(&mut transaction, account.uuid(), reason).await?;
    if changed {
        let action = if reason.is_some() { "suspend-account" } else { "resume-account" };
        record(
            &mut transaction,
            action,
            &account.to_string(),
            Of::Account(account.uuid()),
            json!({ "reason": reason }),
        )
        .await?;
        // The dispatcher sends nothing for a suspended account.
        endpoints::raise_version(&mut transaction).await?;
    }
    transaction.commit().await?;
    let mut links = 0;
    loop {
        let mut transaction = app.pool.begin().await?;
        let rows = links::set_suspended(&mut transaction, account.uuid(), reason.is_some(), BATCH).await?;
        if rows.is_empty() {
            break;
        }
        links += rows.len();
        // Only for the edges: receivers of a suspended account get nothing.
        let messages = rows.iter().map(|row| Outgoing {
            topic: schemas::topic::LINKS,
            key: row.link_id().to_string(),
            value: row.record().encode(),
        });
        outbox::enqueue_all(&mut transaction, messages).await?;
        transaction.commit().await?;
        tracing::info!(links, "{links} links of the account are changed");
    }
    let status = if reason.is_some() { "suspended" } else { "active" };
    Ok(Some(json!({ "account_id": account, "status": status, "changed": changed, "links": links })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_normalised_like_a_destination() {
        assert_eq!(normal_host("Evil.Example.").as_deref(), Some("evil.example"));
        assert_eq!(normal_host("bücher.example").as_deref(), Some("xn--bcher-kva.example"));
        assert_eq!(normal_host("0x7f.1").as_deref(), Some("127.0.0.1"));
        for bad in [
            "",
            "https://evil.example",
            "evil.example/x",
            "evil.example:8080",
            "a@evil.example",
            "evil.example?x",
            "a b",
        ] {
            assert_eq!(normal_host(bad), None, "{bad}");
        }
    }
}
