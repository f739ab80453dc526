//! Conversions.

use chrono::{DateTime, Utc};
use schemas::id::{ConversionId, LinkId, WorkspaceId};
use schemas::message::{Conversion, Message as _, Version};
use sha2::{Digest as _, Sha256};
use sqlx::{PgConnection, PgPool, QueryBuilder};
use uuid::Uuid;

use crate::error::violates;
use crate::plan::{Plan, Plans};
use crate::store::outbox;
use crate::store::outbox::Outgoing;

/// A conversion to insert.
pub(crate) struct ConversionRow {
    pub(crate) id: Uuid,
    pub(crate) click_id: String,
    pub(crate) link: LinkId,
    pub(crate) clicked_at: DateTime<Utc>,
    pub(crate) external_user_id: Option<String>,
    pub(crate) user_name: Option<String>,
    pub(crate) user_email: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) page_url: Option<String>,
    pub(crate) created_at: DateTime<Utc>,
}

/// Conversions of which one statement removes the personal fields.
const BATCH: i64 = 5_000;

/// Removes the personal fields of conversions whose click is older than its plan keeps clicks. Returns of how many.
///
/// Days are those of UTC, as for clicks. The digest of the click id stays, so that a second conversion is refused.
pub(crate) async fn remove_personal_fields(
    connection: &mut PgConnection,
    plans: &Plans,
) -> sqlx::Result<u64> {
    let (names, days): (Vec<&str>, Vec<i32>) = Plan::ALL
        .iter()
        .map(|plan| (plan.as_str(), i32::try_from(plans.retention_days(*plan)).unwrap_or(i32::MAX)))
        .unzip();
    let mut count = 0;
    loop {
        let removed = sqlx::query(
            "UPDATE conversions SET click_id = NULL, external_user_id = NULL, user_name = NULL, user_email = NULL,
                    host = NULL, page_url = NULL
             WHERE id IN (
                 SELECT c.id FROM unnest($1::text[], $2::integer[]) AS kept (plan, days)
                 JOIN accounts a ON a.plan = kept.plan
                 JOIN workspaces w ON w.account_id = a.id
                 JOIN conversions c ON c.workspace_id = w.id AND c.click_id IS NOT NULL
                  AND c.clicked_at < date_trunc('day', now(), 'UTC') - make_interval(days => kept.days)
                 LIMIT $3)",
        )
        .bind(&names)
        .bind(&days)
        .bind(BATCH)
        .execute(&mut *connection)
        .await?;
        count += removed.rows_affected();
        if removed.rows_affected() < BATCH.unsigned_abs() {
            return Ok(count);
        }
    }
}

/// The most conversions that an account may have on a day of UTC. Anyone who holds click ids registers conversions.
pub(crate) const MOST_PER_DAY: i64 = 100_000;

/// The outcome of an insert.
pub(crate) enum Outcome {
    Registered,
    /// The link was deleted.
    NoSuchLink,
    /// The click has a conversion.
    Exists,
    /// The account has [`MOST_PER_DAY`] today.
    TooMany,
}

/// Inserts a conversion and its outbox row in one transaction, which counts it in its account's day. It counts last,
/// so that conversions of an account wait for each other only while one is being confirmed.
pub(crate) async fn insert(pool: &PgPool, row: &ConversionRow) -> sqlx::Result<Outcome> {
    let mut transaction = pool.begin().await?;
    // The share lock delays a deletion of the link until the conversion is there to be deleted with it.
    let workspace: Option<Uuid> =
        sqlx::query_scalar("SELECT workspace_id FROM links WHERE id = $1 FOR KEY SHARE")
            .bind(row.link.uuid())
            .fetch_optional(&mut *transaction)
            .await?;
    let Some(workspace) = workspace else { return Ok(Outcome::NoSuchLink) };
    let inserted = sqlx::query(
        "INSERT INTO conversions (id, click_sha256, click_id, link_id, workspace_id, clicked_at, external_user_id,
                                  user_name, user_email, host, page_url, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    )
    .bind(row.id)
    .bind(&Sha256::digest(row.click_id.as_bytes())[..])
    .bind(&row.click_id)
    .bind(row.link.uuid())
    .bind(workspace)
    .bind(row.clicked_at)
    .bind(&row.external_user_id)
    .bind(&row.user_name)
    .bind(&row.user_email)
    .bind(&row.host)
    .bind(&row.page_url)
    .bind(row.created_at)
    .execute(&mut *transaction)
    .await;
    match inserted {
        Ok(_) => {}
        Err(error) if violates(&error, "conversions_click") => return Ok(Outcome::Exists),
        Err(error) => return Err(error),
    }
    let published = PublishedRow {
        id: row.id,
        click_id: row.click_id.clone(),
        link_id: row.link.uuid(),
        workspace_id: workspace,
        clicked_at: row.clicked_at,
        created_at: row.created_at,
    };
    outbox::enqueue_all(&mut transaction, [published.message()]).await?;
    if !count_in_day(&mut transaction, workspace).await? {
        return Ok(Outcome::TooMany);
    }
    transaction.commit().await?;
    Ok(Outcome::Registered)
}

/// Counts a conversion in the day of its workspace's account; false when the account has had its most today.
async fn count_in_day(connection: &mut PgConnection, workspace: Uuid) -> sqlx::Result<bool> {
    let counted = sqlx::query(
        "INSERT INTO conversion_days AS d (account_id, day, conversions)
         SELECT account_id, (now() AT TIME ZONE 'UTC')::date, 1 FROM workspaces WHERE id = $1
         ON CONFLICT (account_id) DO UPDATE
         SET day = excluded.day,
             conversions = CASE WHEN d.day = excluded.day THEN d.conversions + 1 ELSE 1 END
         WHERE d.day <> excluded.day OR d.conversions < $2",
    )
    .bind(workspace)
    .bind(MOST_PER_DAY)
    .execute(connection)
    .await?;
    Ok(counted.rows_affected() == 1)
}

/// A conversion, as topic `conversions` has it.
#[derive(sqlx::FromRow)]
struct PublishedRow {
    id: Uuid,
    click_id: String,
    link_id: Uuid,
    workspace_id: Uuid,
    clicked_at: DateTime<Utc>,
    created_at: DateTime<Utc>,
}

impl PublishedRow {
    fn message(self) -> Outgoing {
        let message = Conversion {
            version: Version,
            conversion_id: ConversionId::from_uuid(self.id),
            click_id: self.click_id.clone(),
            link_id: LinkId::from_uuid(self.link_id),
            workspace_id: WorkspaceId::from_uuid(self.workspace_id),
            clicked_at: self.clicked_at,
            converted_at: self.created_at,
        };
        Outgoing { topic: schemas::topic::CONVERSIONS, key: self.click_id, value: message.encode() }
    }
}

/// Reads the messages of the conversions after an id, of those that were registered since a time and still have their
/// click.
pub(crate) async fn page_by_id(
    connection: &mut PgConnection,
    after: Uuid,
    since: DateTime<Utc>,
    limit: i64,
) -> sqlx::Result<Vec<(Uuid, Outgoing)>> {
    let rows: Vec<PublishedRow> = sqlx::query_as(
        "SELECT id, click_id, link_id, workspace_id, clicked_at, created_at FROM conversions
         WHERE id > $1 AND created_at >= $2 AND click_id IS NOT NULL ORDER BY id LIMIT $3",
    )
    .bind(after)
    .bind(since)
    .bind(limit)
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.message())).collect())
}

/// A conversion of a list.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct ListedRow {
    pub(crate) id: Uuid,
    pub(crate) click_id: Option<String>,
    pub(crate) link_id: Uuid,
    pub(crate) clicked_at: DateTime<Utc>,
    pub(crate) external_user_id: Option<String>,
    pub(crate) user_name: Option<String>,
    pub(crate) user_email: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) page_url: Option<String>,
    pub(crate) created_at: DateTime<Utc>,
}

/// Reads a page of the conversions whose clicks are in the window, of all classes, the newest click first.
pub(crate) async fn page(
    pool: &PgPool,
    workspace: Uuid,
    link: Option<Uuid>,
    clicked: (DateTime<Utc>, Option<DateTime<Utc>>),
    after: Option<(DateTime<Utc>, Uuid)>,
    limit: usize,
) -> sqlx::Result<Vec<ListedRow>> {
    let mut query = QueryBuilder::new(
        "SELECT id, click_id, link_id, clicked_at, external_user_id, user_name, user_email, host, page_url,
                created_at
         FROM conversions WHERE workspace_id = ",
    );
    query.push_bind(workspace);
    if let Some(link) = link {
        query.push(" AND link_id = ").push_bind(link);
    }
    query.push(" AND clicked_at >= ").push_bind(clicked.0);
    if let Some(end) = clicked.1 {
        query.push(" AND clicked_at < ").push_bind(end);
    }
    if let Some((clicked_at, id)) = after {
        query.push(" AND (clicked_at, id) < (").push_bind(clicked_at).push(", ").push_bind(id).push(")");
    }
    query.push(" ORDER BY clicked_at DESC, id DESC LIMIT ").push_bind(limit as i64);
    query.build_query_as().fetch_all(pool).await
}
