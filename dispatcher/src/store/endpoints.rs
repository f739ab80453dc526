//! Endpoints, as needed for matching events and for attempts.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use schemas::id::{AccountId, EndpointId, WorkspaceId};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgPool, Row as _};
use uuid::Uuid;

use crate::attempt::{SealedSecret, Target};

/// An enabled endpoint of a workspace whose plan has webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// The endpoint's id.
    pub(crate) id: EndpointId,
    /// The workspace whose events it receives.
    pub(crate) workspace_id: WorkspaceId,
    /// The workspace's account.
    pub(crate) account_id: AccountId,
    /// The kinds of events that it subscribed to.
    pub(crate) events: Vec<String>,
    /// The classes of clicks that it subscribed to.
    pub(crate) click_classes: Vec<String>,
    /// When it was created or enabled again; it does not receive earlier events.
    pub(crate) enabled_from: DateTime<Utc>,
}

/// Returns the version, which every change of an endpoint or a plan raises, and the endpoints whose queue is full.
pub(crate) async fn version_and_full(pool: &PgPool) -> sqlx::Result<(i64, HashSet<EndpointId>)> {
    let (version, full): (i64, Vec<Uuid>) = sqlx::query_as(
        "SELECT version, ARRAY(SELECT endpoint_id FROM webhook_health WHERE is_full) FROM endpoints_version",
    )
    .fetch_one(pool)
    .await?;
    Ok((version, full.into_iter().map(EndpointId::from_uuid).collect()))
}

/// Returns the enabled endpoints of workspaces whose plan has webhooks.
pub(crate) async fn enabled_endpoints(pool: &PgPool) -> sqlx::Result<Vec<Endpoint>> {
    let rows = sqlx::query(
        "SELECT e.id, e.workspace_id, w.account_id, e.events, e.click_classes, e.enabled_from
         FROM webhook_endpoints e
         JOIN workspaces w ON w.id = e.workspace_id
         JOIN accounts a ON a.id = w.account_id
         WHERE e.status = 'enabled' AND a.plan IN ('agency', 'business') AND a.suspended_at IS NULL",
    )
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Endpoint {
                id: EndpointId::from_uuid(row.try_get("id")?),
                workspace_id: WorkspaceId::from_uuid(row.try_get("workspace_id")?),
                account_id: AccountId::from_uuid(row.try_get("account_id")?),
                events: row.try_get("events")?,
                click_classes: row.try_get("click_classes")?,
                enabled_from: row.try_get("enabled_from")?,
            })
        })
        .collect()
}

/// The current target of the endpoint of each row of `one`. `LATERAL` makes Postgres look it up by key; joining all
/// endpoints would cost more.
const TARGET: &str = "CROSS JOIN LATERAL (
    SELECT e.url, e.epoch, a.suspended_at IS NOT NULL AS is_suspended, e.secret_key_id, e.secret_sealed,
           CASE WHEN e.previous_secret_until > now() THEN e.previous_secret_key_id END AS previous_key_id,
           CASE WHEN e.previous_secret_until > now() THEN e.previous_secret_sealed END AS previous_sealed
    FROM webhook_endpoints e
    JOIN workspaces w ON w.id = e.workspace_id
    JOIN accounts a ON a.id = w.account_id
    WHERE e.id = one.endpoint_id AND e.status = 'enabled' AND a.plan IN ('agency', 'business')
    LIMIT 1
) AS target";

/// Returns the current targets of endpoints, without those that are deleted or disabled or whose plan has no webhooks.
pub(crate) async fn targets(
    pool: &PgPool,
    endpoints: &[EndpointId],
) -> sqlx::Result<HashMap<EndpointId, Target>> {
    let sql = format!("SELECT * FROM unnest($1::uuid[]) AS one (endpoint_id) {TARGET}");
    let ids: Vec<Uuid> = endpoints.iter().map(|endpoint| endpoint.uuid()).collect();
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(ids).fetch_all(pool).await?;
    rows.iter().map(|row| Ok((EndpointId::from_uuid(row.try_get("endpoint_id")?), target(row)?))).collect()
}

/// Returns the current targets of deliveries by id and lease token. A delivery is missing if [`targets`] does not
/// return its endpoint, if the endpoint has another epoch, or if another lease has begun since.
pub(crate) async fn targets_of(
    pool: &PgPool,
    leases: &[(Uuid, Uuid)],
) -> sqlx::Result<HashMap<(Uuid, Uuid), Target>> {
    let (ids, tokens): (Vec<Uuid>, Vec<Uuid>) = leases.iter().copied().unzip();
    let sql = format!(
        "SELECT lease.*, target.*
         FROM unnest($1::uuid[], $2::uuid[]) AS lease (delivery_id, token)
         JOIN webhook_deliveries one ON one.delivery_id = lease.delivery_id AND one.lease_token = lease.token
         {TARGET}
         WHERE target.epoch = one.epoch"
    );
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(ids).bind(tokens).fetch_all(pool).await?;
    rows.iter().map(|row| Ok(((row.try_get("delivery_id")?, row.try_get("token")?), target(row)?))).collect()
}

fn target(row: &PgRow) -> sqlx::Result<Target> {
    Ok(Target {
        url: row.try_get("url")?,
        epoch: row.try_get("epoch")?,
        is_suspended: row.try_get("is_suspended")?,
        secret: SealedSecret { key_id: row.try_get("secret_key_id")?, bytes: row.try_get("secret_sealed")? },
        previous_secret: previous_secret(row)?,
    })
}

fn previous_secret(row: &PgRow) -> sqlx::Result<Option<SealedSecret>> {
    let key_id: Option<i16> = row.try_get("previous_key_id")?;
    let sealed: Option<Vec<u8>> = row.try_get("previous_sealed")?;
    Ok(key_id.zip(sealed).map(|(key_id, bytes)| SealedSecret { key_id, bytes }))
}
