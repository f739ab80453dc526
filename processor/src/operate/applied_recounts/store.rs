//! The statements for applied recounts.

use clickhouse::Row;
use clickhouse::query::RowCursor;
use serde::Deserialize;
use service::clickhouse::text;
use uuid::Uuid;

use crate::clickhouse::StoreError;
use crate::clickhouse::statements::Statements;

/// Returns each recounted day and its recount, oldest recount first.
pub(super) async fn days(statements: &Statements) -> Result<Vec<(String, String)>, StoreError> {
    const SQL: &str = "SELECT toString(day), toString(recount) FROM rebuilds \
                       WHERE recount != toUUID('00000000-0000-0000-0000-000000000000') ORDER BY rebuilds.at";
    statements.fetch_all(SQL).await
}

/// Returns the SQL of what a row says of a User-Agent with a purpose, of raw rows and of those of recounts: columns
/// `agent` and `why`, which are [`text::encoded`], `kind`, `device`, `program` and `system`.
pub(crate) fn classified_columns() -> String {
    format!(
        "{agent} AS agent, {why} AS why, toString(class) AS kind, toString(device_type) AS device, \
         toString(browser) AS program, toString(os) AS system",
        agent = text::encoded("user_agent"),
        why = text::encoded("toString(purpose)"),
    )
}

/// What a recount made of a User-Agent with a purpose.
#[derive(Row, Deserialize)]
pub(super) struct ClassifiedRow {
    #[serde(with = "clickhouse::serde::uuid")]
    pub(super) recount: Uuid,
    #[serde(deserialize_with = "text::decoded")]
    pub(super) agent: String,
    #[serde(deserialize_with = "text::decoded")]
    pub(super) why: String,
    pub(super) kind: String,
    pub(super) device: String,
    pub(super) program: String,
    pub(super) system: String,
}

/// Returns the classifications of the applied recounts.
pub(super) fn classifications(statements: &Statements) -> Result<RowCursor<ClassifiedRow>, StoreError> {
    let sql = format!(
        "SELECT recount, {} FROM recounts WHERE recounts.recount IN (SELECT recount FROM rebuilds)",
        classified_columns(),
    );
    statements.fetch(&sql)
}
