//! The operator's lines of the audit trail.

use serde_json::Value;
use sqlx::PgConnection;

use crate::store::audit::{self, Of};

/// Records a change in the name of the user who runs the command. No member's or key's id looks like that name.
pub(super) async fn record(
    transaction: &mut PgConnection,
    action: &str,
    subject: &str,
    of: Of,
    details: Value,
) -> sqlx::Result<()> {
    let user = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|variable| std::env::var(variable).ok());
    let actor = user.map_or_else(|| "operator".to_owned(), |user| format!("operator {user}"));
    audit::record(transaction, &actor, action, subject, of, details).await
}
