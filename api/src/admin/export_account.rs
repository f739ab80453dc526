//! Writes everything of an account to files.

use std::path::Path;

use anyhow::Context as _;
use futures_util::TryStreamExt as _;
use schemas::id::AccountId;
use serde_json::{Map, Value, json};
use service::clickhouse::Clickhouse;
use tokio::fs::{DirBuilder, File};
use tokio::io::{AsyncWriteExt as _, BufWriter};

use super::trail::record;
use crate::app::App;
use crate::store::audit::Of;
use crate::store::{accounts, portable};

/// Writes a file of JSON lines for each kind of row into a new directory; `None` when there is no such account.
///
/// A directory that exists is an error, and what an interrupted command wrote is incomplete: it lacks `account.json`,
/// which comes last.
pub(super) async fn export_account(
    app: &App,
    clickhouse: &Clickhouse,
    account: AccountId,
    to: &Path,
) -> anyhow::Result<Option<Value>> {
    let mut connection = app.pool.acquire().await?;
    let Some(row) = accounts::find(&mut connection, account.uuid()).await? else { return Ok(None) };
    drop(connection);
    let folder = DirBuilder::new().mode(0o700).create(to).await;
    folder.with_context(|| format!("--to: cannot create {}", to.display()))?;
    let mut counts = Map::new();
    for (name, statement) in portable::TABLES {
        let mut file = create(to, &format!("{name}.jsonl")).await?;
        let mut rows = portable::rows(&app.pool, statement, account.uuid());
        let mut count = 0_u64;
        while let Some(row) = rows.try_next().await? {
            file.write_all(format!("{row}\n").as_bytes()).await?;
            count += 1;
        }
        finish(file).await?;
        counts.insert((*name).to_owned(), json!(count));
    }
    let mut file = create(to, "clicks.jsonl").await?;
    let mut clicks = portable::clicks(&app.pool, clickhouse, account.uuid()).await?;
    let mut count = 0;
    while let Some(bytes) = clicks.next().await? {
        file.write_all(&bytes).await?;
        count += bytes.iter().filter(|byte| **byte == b'\n').count();
    }
    finish(file).await?;
    counts.insert("clicks".to_owned(), json!(count));
    let summary = json!({
        "account_id": account,
        "name": row.name,
        "plan": row.plan.as_str(),
        "created_at": schemas::time::text(row.created_at),
        "rows": counts,
    });
    let mut file = create(to, "account.json").await?;
    file.write_all(format!("{summary}\n").as_bytes()).await?;
    finish(file).await?;
    let mut connection = app.pool.acquire().await?;
    record(
        &mut connection,
        "export-account",
        &account.to_string(),
        Of::Account(account.uuid()),
        json!({ "rows": summary["rows"] }),
    )
    .await?;
    Ok(Some(summary))
}

/// Creates a file that only its owner can read, as its directory.
async fn create(to: &Path, name: &str) -> anyhow::Result<BufWriter<File>> {
    let path = to.join(name);
    let file = File::options().write(true).create_new(true).mode(0o600).open(&path).await;
    let file = file.with_context(|| format!("cannot create {}", path.display()))?;
    tracing::info!("writing {}", path.display());
    Ok(BufWriter::new(file))
}

async fn finish(mut file: BufWriter<File>) -> std::io::Result<()> {
    file.flush().await?;
    file.into_inner().sync_all().await
}
