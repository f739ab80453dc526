//! Slugs that links had, held for 90 days, so that nobody else takes over their visitors.

use sqlx::{PgConnection, PgExecutor};
use uuid::Uuid;

/// Holds slugs for a workspace, or for nobody. A slug that nobody may take stays so.
pub(crate) async fn hold(
    transaction: &mut PgConnection,
    slugs: &[&str],
    workspace: Option<Uuid>,
) -> sqlx::Result<()> {
    sqlx::query(
        "INSERT INTO former_slugs AS f (slug, workspace_id, until)
         SELECT slug, $2, now() + interval '90 days' FROM unnest($1::text[]) AS one (slug) ORDER BY slug
         ON CONFLICT (slug) DO UPDATE SET workspace_id = excluded.workspace_id, until = excluded.until",
    )
    .bind(slugs)
    .bind(workspace)
    .execute(transaction)
    .await?;
    Ok(())
}

/// Holds the former slugs of an account's workspaces for nobody.
pub(crate) async fn give_to_nobody(transaction: &mut PgConnection, account: Uuid) -> sqlx::Result<()> {
    sqlx::query(
        "UPDATE former_slugs SET workspace_id = NULL
         WHERE workspace_id IN (SELECT id FROM workspaces WHERE account_id = $1)",
    )
    .bind(account)
    .execute(transaction)
    .await?;
    Ok(())
}

/// Returns whether a slug is held for another workspace, or for nobody.
pub(crate) async fn is_held(
    executor: impl PgExecutor<'_>,
    workspace: Uuid,
    slug: &str,
) -> sqlx::Result<bool> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM former_slugs
                        WHERE slug = $2 AND until > now() AND workspace_id IS DISTINCT FROM $1)",
    )
    .bind(workspace)
    .bind(slug)
    .fetch_one(executor)
    .await
}

/// Removes slugs that are held no more. Returns how many.
pub(crate) async fn remove_ended(connection: &mut PgConnection) -> sqlx::Result<u64> {
    let removed = sqlx::query("DELETE FROM former_slugs WHERE until < now()").execute(connection).await?;
    Ok(removed.rows_affected())
}
