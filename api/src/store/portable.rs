//! Rows of an account as JSON, without secrets, for its export.

use clickhouse::query::BytesCursor;
use futures_util::stream::BoxStream;
use serde_json::Value;
use service::clickhouse::Clickhouse;
use sqlx::PgPool;
use uuid::Uuid;

/// The names of the exported tables, and the statement for each, with the account as `$1`.
pub(crate) const TABLES: &[(&str, &str)] = &[
    ("members", "SELECT to_jsonb(u) - 'password_hash' - 'totp_sealed' - 'totp_key_id' FROM users u \
        WHERE account_id = $1 ORDER BY id"),
    ("workspaces", "SELECT to_jsonb(w) FROM workspaces w WHERE account_id = $1 ORDER BY id"),
    (
        "keys",
        "SELECT to_jsonb(k) - 'key_sha256' FROM api_keys k JOIN workspaces w ON w.id = k.workspace_id
         WHERE w.account_id = $1 ORDER BY k.id",
    ),
    (
        "links",
        "SELECT to_jsonb(l) FROM links l JOIN workspaces w ON w.id = l.workspace_id
         WHERE w.account_id = $1 ORDER BY l.id",
    ),
    (
        "conversions",
        "SELECT to_jsonb(c) - 'click_sha256' FROM conversions c JOIN workspaces w ON w.id = c.workspace_id
         WHERE w.account_id = $1 ORDER BY c.id",
    ),
    (
        "webhooks",
        "SELECT to_jsonb(e) - 'secret_sealed' - 'secret_key_id' - 'previous_secret_sealed' - 'previous_secret_key_id'
         FROM webhook_endpoints e JOIN workspaces w ON w.id = e.workspace_id
         WHERE w.account_id = $1 ORDER BY e.id",
    ),
];

/// Reads rows as JSON with a statement of [`TABLES`].
pub(crate) fn rows<'a>(
    pool: &'a PgPool,
    statement: &'static str,
    account: Uuid,
) -> BoxStream<'a, sqlx::Result<Value>> {
    sqlx::query_scalar(statement).bind(account).fetch(pool)
}

/// Reads the clicks of an account's workspaces, each a line of JSON.
///
/// # Errors
/// When Postgres or ClickHouse cannot be read.
pub(crate) async fn clicks(
    pool: &PgPool,
    clickhouse: &Clickhouse,
    account: Uuid,
) -> anyhow::Result<BytesCursor> {
    let workspaces: Vec<Uuid> = sqlx::query_scalar("SELECT id FROM workspaces WHERE account_id = $1")
        .bind(account)
        .fetch_all(pool)
        .await?;
    let workspaces: Vec<String> = workspaces.iter().map(Uuid::to_string).collect();
    let sql = format!(
        "SELECT * EXCEPT (visitor, again, src, koff, broker_ts) FROM {}
         WHERE has(arrayMap(id -> toUUID(id), ?), workspace_id)
         ORDER BY workspace_id, link_id, toStartOfHour(occurred_at)
         SETTINGS output_format_json_quote_64bit_integers = 1",
        clickhouse.everywhere().await?.of("clicks").replace('?', "??")
    );
    Ok(clickhouse.query(&sql).bind(workspaces).fetch_bytes("JSONEachRow")?)
}
