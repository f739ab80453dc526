//! The statements of a recount.

use bytes::Bytes;
use clickhouse::Row;
use clickhouse::query::RowCursor;
use schemas::referrer::NORMALIZED;
use serde::{Deserialize, Serialize};
use service::clickhouse::{Clickhouse, text};
use uuid::Uuid;

use crate::clickhouse::StoreError;
use crate::clickhouse::statements::{Statements, in_time};
use crate::operate::applied_recounts::{Classification, classified_columns};

/// Classifications that one insert writes.
const CLASSIFICATIONS_PER_INSERT: usize = 20_000;

/// Clicks of a link that say the same of what made them.
#[derive(Debug, Row, Deserialize)]
pub(super) struct Scanned {
    #[serde(with = "clickhouse::serde::uuid")]
    pub(super) workspace: Uuid,
    #[serde(with = "clickhouse::serde::uuid")]
    pub(super) link: Uuid,
    #[serde(deserialize_with = "text::decoded")]
    pub(super) agent: String,
    #[serde(deserialize_with = "text::decoded")]
    pub(super) why: String,
    pub(super) kind: String,
    pub(super) device: String,
    pub(super) program: String,
    pub(super) system: String,
    /// The broker's days of the clicks, as days since 1970.
    pub(super) days: Vec<u16>,
    pub(super) clicks: u64,
}

/// A row of table `recounts`.
#[derive(Serialize)]
struct Written<'a> {
    recount: Uuid,
    user_agent: &'a str,
    purpose: &'a str,
    class: &'a str,
    device_type: &'a str,
    browser: &'a str,
    os: &'a str,
}

/// Access to the tables.
pub(super) struct RecountStore {
    statements: Statements,
}

impl RecountStore {
    pub(super) fn new(client: Clickhouse) -> Self {
        Self { statements: Statements::new(client) }
    }

    /// Returns what the clicks for which a condition holds say, by link; those without a User-Agent say nothing.
    pub(super) async fn scan(&self, condition: &str) -> Result<RowCursor<Scanned>, StoreError> {
        let sql = format!(
            "SELECT workspace_id AS workspace, link_id AS link, {classified}, \
                    groupUniqArray(toUInt16(toDate(broker_ts))) AS days, count() AS clicks \
             FROM {clicks} WHERE user_agent != '' AND {condition} \
               AND link_id NOT IN (SELECT link_id FROM deleted_links) \
             GROUP BY workspace, link, user_agent, purpose, kind, device, program, system",
            classified = classified_columns(),
            clicks = self.statements.client.everywhere().await?.of("clicks")
        );
        self.statements.fetch(&sql)
    }

    /// Returns how many of the clicks for which a condition holds have a referrer in the spelling of an older edge, by
    /// the broker's day, in days since 1970.
    pub(super) async fn other_spellings(&self, condition: &str) -> Result<Vec<(u16, u64)>, StoreError> {
        let sql = format!(
            "SELECT toUInt16(toDate(broker_ts)) AS day, count() FROM {clicks} \
             WHERE referrer != {NORMALIZED} AND {condition} AND link_id NOT IN (SELECT link_id FROM deleted_links) \
             GROUP BY day",
            clicks = self.statements.client.everywhere().await?.of("clicks")
        );
        self.statements.fetch_all(&sql).await
    }

    /// Writes the classifications of a recount; they have no effect until a day was rebuilt with them.
    pub(super) async fn write(
        &self,
        recount: Uuid,
        classifications: &[((String, String), Classification)],
    ) -> Result<(), StoreError> {
        for classifications in classifications.chunks(CLASSIFICATIONS_PER_INSERT) {
            let mut lines = Vec::new();
            for ((user_agent, purpose), Classification { class, device_type, browser, os }) in classifications
            {
                let row = Written { recount, user_agent, purpose, class, device_type, browser, os };
                // Texts and a UUID always become JSON.
                serde_json::to_writer(&mut lines, &row).map_err(|error| {
                    StoreError::Clickhouse(clickhouse::error::Error::Other(Box::new(error)))
                })?;
                lines.push(b'\n');
            }
            let mut insert = self
                .statements
                .client
                .insert_formatted_with("INSERT INTO recounts FORMAT JSONEachRow")
                .with_setting("wait_end_of_query", "1");
            in_time(async {
                insert.send(Bytes::from(lines)).await?;
                insert.end().await
            })
            .await?;
        }
        Ok(())
    }
}
