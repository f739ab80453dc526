//! The statements for applied recounts.

use clickhouse::query::RowCursor;

use crate::clickhouse::StoreError;
use crate::clickhouse::statements::Statements;

/// Returns each recounted day and its recount, oldest recount first.
pub(super) async fn days(statements: &Statements) -> Result<Vec<(String, String)>, StoreError> {
    const SQL: &str = "SELECT toString(day), toString(recount) FROM rebuilds \
                       WHERE recount != toUUID('00000000-0000-0000-0000-000000000000') ORDER BY rebuilds.at";
    statements.fetch_all(SQL).await
}

/// A recount, a User-Agent, a purpose, and their class, device type, browser and operating system.
pub(super) type Row = (String, String, String, String, String, String, String);

/// Returns the classifications of the applied recounts.
pub(super) fn classifications(statements: &Statements) -> Result<RowCursor<Row>, StoreError> {
    const SQL: &str = "SELECT toString(recount), user_agent, purpose, toString(class), \
                              toString(device_type), toString(browser), toString(os) FROM recounts \
                       WHERE recounts.recount IN (SELECT recount FROM rebuilds)";
    statements.fetch(SQL)
}
