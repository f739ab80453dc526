//! Imports of links: their files, how far they are, and the rows that were rejected.

use schemas::id::ImportId;
use serde::Serialize;
use sqlx::{Connection as _, PgConnection, PgPool};
use uuid::Uuid;

use crate::plan::Plan;

/// Advisory locks for counting an account's imports: this number ("imc" as ASCII) and one of the account.
const COUNTS: i32 = 0x69_6d63;

/// Advisory locks of running imports: this number ("imp" as ASCII) and one of the import.
const LOCKS: i32 = 0x69_6d70;

/// The progress of an import, and its rejected rows.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) import_id: ImportId,
    /// Imported and rejected rows so far.
    pub(crate) rows: i64,
    pub(crate) created: i64,
    pub(crate) failed: i64,
    /// The first rejected rows.
    pub(crate) results: Vec<RejectedRow>,
    pub(crate) done: bool,
}

/// A rejected row, with the error that a request for its link would get.
#[derive(Debug, Serialize, sqlx::FromRow)]
pub(crate) struct RejectedRow {
    /// The row's number in a spreadsheet: the header is 1, and empty rows count.
    #[sqlx(rename = "line")]
    pub(crate) row: i64,
    pub(crate) status: i16,
    pub(crate) message: String,
    /// The beginning of the row in the file.
    pub(crate) content: String,
}

/// Begins an import, before its file is received; false when the account has too many unfinished ones.
pub(crate) async fn begin(
    pool: &PgPool,
    id: ImportId,
    account: Uuid,
    workspace: Uuid,
    user: Uuid,
    is_dry_run: bool,
    most: i64,
) -> sqlx::Result<bool> {
    let mut transaction = pool.begin().await?;
    // Serializes counting. Not the lock of the account's links, which a running batch holds.
    let lock = lock_number(account);
    sqlx::query("SELECT pg_advisory_xact_lock($1, $2)")
        .bind(COUNTS)
        .bind(lock)
        .execute(&mut *transaction)
        .await?;
    // A file that was not received within an hour never will be: its process was killed.
    let begun = sqlx::query(
        "INSERT INTO link_imports (id, workspace_id, user_id, is_dry_run)
         SELECT $1, $2, $3, $4
         WHERE (SELECT count(*) FROM link_imports i JOIN workspaces w ON w.id = i.workspace_id
                WHERE w.account_id = $5 AND i.done_at IS NULL
                  AND (i.received_at IS NOT NULL OR i.created_at > now() - interval '61 minutes')) < $6",
    )
    .bind(id.uuid())
    .bind(workspace)
    .bind(user)
    .bind(is_dry_run)
    .bind(account)
    .bind(most)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(begun.rows_affected() == 1)
}

/// Stores a piece of the file; false when the account would have sent more than `most` bytes today.
pub(crate) async fn add_piece(
    pool: &PgPool,
    account: Uuid,
    id: ImportId,
    number: i32,
    bytes: &[u8],
    most: i64,
) -> sqlx::Result<bool> {
    let added = sqlx::query(
        "WITH counted AS (
             INSERT INTO import_bytes AS b (account_id, day, bytes)
             VALUES ($4, (now() AT TIME ZONE 'UTC')::date, length($3))
             ON CONFLICT (account_id) DO UPDATE
             SET day = excluded.day,
                 bytes = excluded.bytes + CASE WHEN b.day = excluded.day THEN b.bytes ELSE 0 END
             WHERE b.day <> excluded.day OR b.bytes + excluded.bytes <= $5
             RETURNING 1
         )
         INSERT INTO link_import_pieces (import_id, number, bytes) SELECT $1, $2, $3 FROM counted",
    )
    .bind(id.uuid())
    .bind(number)
    .bind(bytes)
    .bind(account)
    .bind(most)
    .execute(pool)
    .await?;
    Ok(added.rows_affected() == 1)
}

/// Marks the file as received.
///
/// # Errors
/// `RowNotFound` when the import was removed meanwhile.
pub(crate) async fn set_received(transaction: &mut PgConnection, id: ImportId) -> sqlx::Result<()> {
    let set = sqlx::query("UPDATE link_imports SET received_at = now() WHERE id = $1")
        .bind(id.uuid())
        .execute(transaction)
        .await?;
    if set.rows_affected() == 1 { Ok(()) } else { Err(sqlx::Error::RowNotFound) }
}

/// Deletes an import and its file.
pub(crate) async fn remove(pool: &PgPool, id: ImportId) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM link_imports WHERE id = $1").bind(id.uuid()).execute(pool).await?;
    Ok(())
}

/// Reads the progress of a workspace's import, with the first `most` rejected rows.
pub(crate) async fn report(
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
    let mut results = if failed > 0 { rejected_rows(pool, id, 0, most).await? } else { Vec::new() };
    // More may have been added since the numbers were read.
    results.truncate(usize::try_from(failed).unwrap_or(usize::MAX));
    Ok(Some(Report { import_id: id, rows: created + failed, created, failed, results, done }))
}

/// Reads the rejected rows after a line, in their order.
pub(crate) async fn rejected_rows(
    pool: &PgPool,
    id: ImportId,
    after: i64,
    most: i64,
) -> sqlx::Result<Vec<RejectedRow>> {
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

/// An import to run.
#[derive(Debug, Clone, sqlx::FromRow)]
pub(crate) struct Import {
    pub(crate) id: Uuid,
    pub(crate) workspace_id: Uuid,
    pub(crate) user_id: Uuid,
    pub(crate) is_dry_run: bool,
    pub(crate) created: i64,
    pub(crate) failed: i64,
    pub(crate) account_id: Uuid,
    #[sqlx(try_from = "String")]
    pub(crate) plan: Plan,
}

/// A received import that is not done.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct Waiting {
    pub(crate) id: Uuid,
    pub(crate) is_dry_run: bool,
}

/// Reads the received imports that are not done, without those of suspended accounts, the oldest first.
pub(crate) async fn waiting(connection: &mut PgConnection) -> sqlx::Result<Vec<Waiting>> {
    sqlx::query_as(
        "SELECT id, is_dry_run FROM link_imports
         WHERE done_at IS NULL AND received_at IS NOT NULL
           AND NOT EXISTS (SELECT FROM workspaces w JOIN accounts a ON a.id = w.account_id
                           WHERE w.id = workspace_id AND a.suspended_at IS NOT NULL)
         ORDER BY created_at LIMIT 1000",
    )
    .fetch_all(connection)
    .await
}

/// Reads an import that is not done.
pub(crate) async fn find(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<Import>> {
    sqlx::query_as(
        "SELECT i.id, i.workspace_id, i.user_id, i.is_dry_run, i.created, i.failed, a.id AS account_id, a.plan
         FROM link_imports i JOIN workspaces w ON w.id = i.workspace_id JOIN accounts a ON a.id = w.account_id
         WHERE i.id = $1 AND i.done_at IS NULL",
    )
    .bind(id)
    .fetch_optional(connection)
    .await
}

/// Reads a piece of the file; `None` after the last.
pub(crate) async fn piece(
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

/// The outcome of a batch of rows.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) created: i64,
    pub(crate) failed: i64,
    pub(crate) rejected_rows: Vec<RejectedRow>,
}

/// Records the outcome of the rows after the first `done`; false when another process has recorded them, or the account
/// is suspended.
pub(crate) async fn advance(
    transaction: &mut PgConnection,
    id: Uuid,
    done: i64,
    outcome: &Outcome,
) -> sqlx::Result<bool> {
    let advanced = sqlx::query(
        "UPDATE link_imports SET created = created + $3, failed = failed + $4
         WHERE id = $1 AND created + failed = $2 AND done_at IS NULL
           AND NOT EXISTS (SELECT FROM workspaces w JOIN accounts a ON a.id = w.account_id
                           WHERE w.id = workspace_id AND a.suspended_at IS NOT NULL)",
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
    if !outcome.rejected_rows.is_empty() {
        let rejected_rows = &outcome.rejected_rows;
        sqlx::query(
            "INSERT INTO link_import_refusals (import_id, line, status, message, content)
             SELECT $1, * FROM unnest($2::bigint[], $3::smallint[], $4::text[], $5::text[])",
        )
        .bind(id)
        .bind(rejected_rows.iter().map(|row| row.row).collect::<Vec<_>>())
        .bind(rejected_rows.iter().map(|row| row.status).collect::<Vec<_>>())
        .bind(rejected_rows.iter().map(|row| row.message.as_str()).collect::<Vec<_>>())
        .bind(rejected_rows.iter().map(|row| row.content.as_str()).collect::<Vec<_>>())
        .execute(transaction)
        .await?;
    }
    Ok(true)
}

/// Resets a dry run to its beginning.
pub(crate) async fn restart(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
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

/// Marks an import as done, and deletes its file.
pub(crate) async fn finish(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query("UPDATE link_imports SET done_at = now() WHERE id = $1")
        .bind(id)
        .execute(&mut *connection)
        .await?;
    sqlx::query("DELETE FROM link_import_pieces WHERE import_id = $1").bind(id).execute(connection).await?;
    Ok(())
}

/// Deletes imports a week after their creation, unreceived ones after three hours, and those that a suspended account
/// could not end after 30 days. Returns how many.
pub(crate) async fn sweep(connection: &mut PgConnection) -> sqlx::Result<u64> {
    let mut count = 0;
    loop {
        // One at a time: each may have a million rejected rows.
        let removed = sqlx::query(
            "DELETE FROM link_imports WHERE id = (
                 SELECT id FROM link_imports
                 WHERE created_at < now() - interval '7 days' AND done_at IS NOT NULL
                    OR created_at < now() - interval '3 hours' AND received_at IS NULL
                    OR created_at < now() - interval '30 days'
                 ORDER BY created_at LIMIT 1)",
        )
        .execute(&mut *connection)
        .await?;
        if removed.rows_affected() == 0 {
            return Ok(count);
        }
        count += 1;
    }
}

/// Locks an import for the session; false when another instance has it.
pub(crate) async fn try_lock(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar("SELECT pg_try_advisory_lock($1, $2)")
        .bind(LOCKS)
        .bind(lock_number(id))
        .fetch_one(connection)
        .await
}

/// Unlocks an import.
pub(crate) async fn unlock(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query("SELECT pg_advisory_unlock($1, $2)")
        .bind(LOCKS)
        .bind(lock_number(id))
        .execute(connection)
        .await?;
    Ok(())
}

/// Returns the number for an id's advisory lock: random bits of the id.
fn lock_number(id: Uuid) -> i32 {
    ((id.as_u128() & 0xffff_ffff) as u32).cast_signed()
}
