//! The audit trail of operators and members.

use schemas::id::UserId;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

/// Returns a member's name in the trail.
pub(crate) fn member(user: Uuid) -> String {
    UserId::from_uuid(user).to_string()
}

/// Records a change, in its transaction.
pub(crate) async fn record(
    transaction: &mut PgConnection,
    actor: &str,
    action: &str,
    subject: &str,
    details: Value,
) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO audit_trail (actor, action, subject, details) VALUES ($1, $2, $3, $4)")
        .bind(actor)
        .bind(action)
        .bind(subject)
        .bind(details)
        .execute(transaction)
        .await?;
    Ok(())
}
