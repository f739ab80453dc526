//! The SQL of imports.

use schemas::id::ImportId;
use sqlx::types::Json;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::report::{Refusal, Report};
use crate::plan::Plan;

/// Begins an import whose file is on its way; false when the workspace has too many that are not done.
pub(super) async fn begin(
    pool: &PgPool,
    id: ImportId,
    workspace: Uuid,
    user: Uuid,
    is_dry_run: bool,
    most: i64,
) -> sqlx::Result<bool> {
    let begun = sqlx::query(
        "INSERT INTO link_imports (id, workspace_id, user_id, is_dry_run)
         SELECT $1, $2, $3, $4
         WHERE (SELECT count(*) FROM link_imports WHERE workspace_id = $2 AND done_at IS NULL) < $5",
    )
    .bind(id.uuid())
    .bind(workspace)
    .bind(user)
    .bind(is_dry_run)
    .bind(most)
    .execute(pool)
    .await?;
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
pub(super) async fn set_received(pool: &PgPool, id: ImportId) -> sqlx::Result<()> {
    sqlx::query("UPDATE link_imports SET received_at = now() WHERE id = $1")
        .bind(id.uuid())
        .execute(pool)
        .await?;
    Ok(())
}

/// Forgets an import with its file.
pub(super) async fn remove(pool: &PgPool, id: ImportId) -> sqlx::Result<()> {
    sqlx::query("DELETE FROM link_imports WHERE id = $1").bind(id.uuid()).execute(pool).await?;
    Ok(())
}

/// Reads how far an import of a workspace is.
pub(super) async fn report(
    pool: &PgPool,
    workspace: Uuid,
    id: ImportId,
    is_dry_run: Option<bool>,
) -> sqlx::Result<Option<Report>> {
    let row: Option<(i64, i64, Json<Vec<Refusal>>, bool)> = sqlx::query_as(
        "SELECT created, failed, refusals, done_at IS NOT NULL FROM link_imports
         WHERE id = $1 AND workspace_id = $2 AND ($3::bool IS NULL OR is_dry_run = $3)",
    )
    .bind(id.uuid())
    .bind(workspace)
    .bind(is_dry_run)
    .fetch_optional(pool)
    .await?;
    Ok(row.map(|(created, failed, Json(results), done)| Report {
        import_id: id,
        rows: created + failed,
        created,
        failed,
        results,
        done,
    }))
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

/// The imports whose files are there and that are not done, the oldest first.
pub(super) async fn waiting(connection: &mut PgConnection) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar(
        "SELECT id FROM link_imports WHERE done_at IS NULL AND received_at IS NOT NULL ORDER BY created_at LIMIT 100",
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
    connection: &mut PgConnection,
    id: Uuid,
    done: i64,
    outcome: &Outcome,
) -> sqlx::Result<bool> {
    let advanced = sqlx::query(
        "UPDATE link_imports SET created = created + $3, failed = failed + $4, refusals = refusals || $5
         WHERE id = $1 AND created + failed = $2 AND done_at IS NULL",
    )
    .bind(id)
    .bind(done)
    .bind(outcome.created)
    .bind(outcome.failed)
    .bind(Json(&outcome.refusals))
    .execute(connection)
    .await?;
    Ok(advanced.rows_affected() == 1)
}

/// Begins a dry run anew.
pub(super) async fn restart(connection: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query("UPDATE link_imports SET created = 0, failed = 0, refusals = '[]' WHERE id = $1")
        .bind(id)
        .execute(connection)
        .await?;
    Ok(())
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

/// Removes reports after a week, and what never arrived in full after a day.
pub(super) async fn sweep(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query(
        "DELETE FROM link_imports WHERE created_at < now() - interval '7 days' AND done_at IS NOT NULL
                                     OR created_at < now() - interval '1 day' AND received_at IS NULL",
    )
    .execute(connection)
    .await?;
    Ok(())
}
