//! The operator's lines of the audit trail.

use serde_json::Value;
use sqlx::PgConnection;

use crate::store::audit::{self, Of};

/// Records a change in the name of the user who runs the command.
pub(super) async fn record(
    transaction: &mut PgConnection,
    action: &str,
    subject: &str,
    of: Of,
    details: Value,
) -> sqlx::Result<()> {
    let actor = ["SUDO_USER", "USER", "LOGNAME"]
        .into_iter()
        .find_map(|variable| std::env::var(variable).ok())
        .unwrap_or_else(|| "operator".to_owned());
    audit::record(transaction, &actor, action, subject, of, details).await
}
