//! The SQL of imports.

use schemas::id::ImportId;
use sqlx::{Connection as _, PgConnection, PgPool};
use uuid::Uuid;

use super::report::{Refusal, Report};
use crate::auth::Caller;
use crate::plan::Plan;

/// The advisory locks of accounts whose imports are counted are pairs of this, "imc" as ASCII, and a number of each.
const COUNTS: i32 = 0x69_6d63;

/// Begins an import whose file is on its way; false when the account has too many that are not done.
pub(super) async fn begin(
    pool: &PgPool,
    id: ImportId,
    caller: &Caller,
    is_dry_run: bool,
    most: i64,
) -> sqlx::Result<bool> {
    let mut transaction = pool.begin().await?;
    // Two that count at once would both find the last place. Not the lock of the account's links: a batch of rows holds
    // that for as long as it takes.
    let account = (caller.account.as_u128() & 0xffff_ffff) as u32;
    sqlx::query("SELECT pg_advisory_xact_lock($1, $2)")
        .bind(COUNTS)
        .bind(account.cast_signed())
        .execute(&mut *transaction)
        .await?;
    // What has not arrived after an hour never will: its process was killed.
    let begun = sqlx::query(
        "INSERT INTO link_imports (id, workspace_id, user_id, is_dry_run)
         SELECT $1, $2, $3, $4
         WHERE (SELECT count(*) FROM link_imports i JOIN workspaces w ON w.id = i.workspace_id
                WHERE w.account_id = $5 AND i.done_at IS NULL
                  AND (i.received_at IS NOT NULL OR i.created_at > now() - interval '61 minutes')) < $6",
    )
    .bind(id.uuid())
    .bind(caller.workspace)
    .bind(caller.user)
    .bind(is_dry_run)
    .bind(caller.account)
    .bind(most)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(begun.rows_affected() == 1)
}

/// Stores a piece of the file.
pub(super) async fn add_piece(pool: &PgPool, id: ImportId, number: i32, bytes: &[u8]) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO link_import_pieces (import_id, number, bytes) VALUES ($1, $2, $3)")
        .bind(id.uuid())
        .bind(number)
        .bind(bytes)
        .execute(pool)
        .await?;
    Ok(())
}

/// Says that the whole file is there.
///
/// # Errors
/// `RowNotFound` when the import was removed meanwhile.
pub(super) async fn set_received(transaction: &mut PgConnection, id: ImportId) -> sqlx::Result<()> {
    let set = sqlx::query("UPDATE link_imports SET received_at = now() WHERE id = $1")
        .bind(id.uuid())
        .execute(transaction)
        .await?;
    if set.rows_affected() == 1 { Ok(()) } else { Err(sqlx::Error::RowNotFound) }
}

/// Forgets an import with its file.
pub(super) async fn remove(pool: &PgPool, id: ImportId) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM link_imports WHERE id = $1").bind(id.uuid()).execute(pool).await?;
    Ok(())
}

/// Reads how far an import of a workspace is, with the first `most` rejected rows.
pub(super) async fn report(
    pool: &PgPool,
    workspace: Uuid,
    id: ImportId,
    is_dry_run: Option<bool>,
    most: i64,
) -> sqlx::Result<Option<Report>> {
    let row: Option<(i64, i64, bool)> = sqlx::query_as(
        "SELECT created, failed, done_at IS NOT NULL FROM link_imports
         WHERE id = $1 AND workspace_id = $2 AND ($3::bool IS NULL OR is_dry_run = $3)",
    )
    .bind(id.uuid())
    .bind(workspace)
    .bind(is_dry_run)
    .fetch_optional(pool)
    .await?;
    let Some((created, failed, done)) = row else { return Ok(None) };
    let mut results = if failed > 0 { refusals(pool, id, 0, most).await? } else { Vec::new() };
    // More may have come since the numbers were read.
    results.truncate(usize::try_from(failed).unwrap_or(usize::MAX));
    Ok(Some(Report { import_id: id, rows: created + failed, created, failed, results, done }))
}

/// Reads the rejected rows after a line, in their order.
pub(super) async fn refusals(
    pool: &PgPool,
    id: ImportId,
    after: i64,
    most: i64,
) -> sqlx::Result<Vec<Refusal>> {
    sqlx::query_as(
        "SELECT line, status, message, content FROM link_import_refusals
         WHERE import_id = $1 AND line > $2 ORDER BY line LIMIT $3",
    )
    .bind(id.uuid())
    .bind(after)
    .bind(most)
    .fetch_all(pool)
    .await
}

/// An import that is to be worked off.
#[derive(Debug, Clone, sqlx::FromRow)]
pub(super) struct Import {
    pub(super) id: Uuid,
    pub(super) workspace_id: Uuid,
    pub(super) user_id: Uuid,
    pub(super) is_dry_run: bool,
    pub(super) created: i64,
    pub(super) failed: i64,
    pub(super) account_id: Uuid,
    #[sqlx(try_from = "String")]
    pub(super) plan: Plan,
}

/// An import whose file is there, and that is not done.
#[derive(Debug, sqlx::FromRow)]
pub(super) struct Waiting {
    pub(super) id: Uuid,
    pub(super) is_dry_run: bool,
}

/// The imports whose files are there and that are not done, the oldest first.
pub(super) async fn waiting(connection: &mut PgConnection) -> sqlx::Result<Vec<Waiting>> {
    sqlx::query_as(
        "SELECT id, is_dry_run FROM link_imports
         WHERE done_at IS NULL AND received_at IS NOT NULL ORDER BY created_at LIMIT 1000",
    )
    .fetch_all(connection)
    .await
}

/// Reads an import that is not done.
pub(super) async fn find(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<Import>> {
    sqlx::query_as(
        "SELECT i.id, i.workspace_id, i.user_id, i.is_dry_run, i.created, i.failed, a.id AS account_id, a.plan
         FROM link_imports i JOIN workspaces w ON w.id = i.workspace_id JOIN accounts a ON a.id = w.account_id
         WHERE i.id = $1 AND i.done_at IS NULL",
    )
    .bind(id)
    .fetch_optional(connection)
    .await
}

/// Reads a piece of the file; none is after the last.
pub(super) async fn piece(
    connection: &mut PgConnection,
    id: Uuid,
    number: i32,
) -> sqlx::Result<Option<Vec<u8>>> {
    sqlx::query_scalar("SELECT bytes FROM link_import_pieces WHERE import_id = $1 AND number = $2")
        .bind(id)
        .bind(number)
        .fetch_optional(connection)
        .await
}

/// What a batch of rows came to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) created: i64,
    pub(super) failed: i64,
    pub(super) refusals: Vec<Refusal>,
}

/// Notes that the rows after the first `done` are done too; false when somebody else has gone on.
pub(super) async fn advance(
    transaction: &mut PgConnection,
    id: Uuid,
    done: i64,
    outcome: &Outcome,
) -> sqlx::Result<bool> {
    let advanced = sqlx::query(
        "UPDATE link_imports SET created = created + $3, failed = failed + $4
         WHERE id = $1 AND created + failed = $2 AND done_at IS NULL",
    )
    .bind(id)
    .bind(done)
    .bind(outcome.created)
    .bind(outcome.failed)
    .execute(&mut *transaction)
    .await?;
    if advanced.rows_affected() != 1 {
        return Ok(false);
    }
    if !outcome.refusals.is_empty() {
        let refusals = &outcome.refusals;
        sqlx::query(
            "INSERT INTO link_import_refusals (import_id, line, status, message, content)
             SELECT $1, * FROM unnest($2::bigint[], $3::smallint[], $4::text[], $5::text[])",
        )
        .bind(id)
        .bind(refusals.iter().map(|refusal| refusal.row).collect::<Vec<_>>())
        .bind(refusals.iter().map(|refusal| refusal.status).collect::<Vec<_>>())
        .bind(refusals.iter().map(|refusal| refusal.message.as_str()).collect::<Vec<_>>())
        .bind(refusals.iter().map(|refusal| refusal.content.as_str()).collect::<Vec<_>>())
        .execute(transaction)
        .await?;
    }
    Ok(true)
}

/// Begins a dry run anew.
pub(super) async fn restart(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    let mut transaction = connection.begin().await?;
    sqlx::query("DELETE FROM link_import_refusals WHERE import_id = $1")
        .bind(id)
        .execute(&mut *transaction)
        .await?;
    sqlx::query("UPDATE link_imports SET created = 0, failed = 0 WHERE id = $1")
        .bind(id)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await
}

/// Notes that an import is done, and removes its file.
pub(super) async fn finish(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query("UPDATE link_imports SET done_at = now() WHERE id = $1")
        .bind(id)
        .execute(&mut *connection)
        .await?;
    sqlx::query("DELETE FROM link_import_pieces WHERE import_id = $1").bind(id).execute(connection).await?;
    Ok(())
}

/// Removes reports after a week, and what never arrived in full after some hours.
pub(super) async fn sweep(connection: &mut PgConnection) -> sqlx::Result<()> {
    loop {
        // One at a time: a million refused rows may go with each.
        let removed = sqlx::query(
            "DELETE FROM link_imports WHERE id = (
                 SELECT id FROM link_imports
                 WHERE created_at < now() - interval '7 days' AND done_at IS NOT NULL
                    OR created_at < now() - interval '3 hours' AND received_at IS NULL
                 ORDER BY created_at LIMIT 1)",
        )
        .execute(&mut *connection)
        .await?;
        if removed.rows_affected() == 0 {
            return Ok(());
        }
    }
}
