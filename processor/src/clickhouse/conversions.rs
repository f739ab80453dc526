//! Conversions: those that wait for their click, and those that are counted.

use std::collections::HashSet;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use clickhouse::Row;
use schemas::id::{ConversionId, LinkId, WorkspaceId};
use schemas::message::{Conversion, Version};
use schemas::row::{CONVERSION_COLUMNS, write_conversion};
use serde::Deserialize;
use uuid::Uuid;

use super::{ClickKey, SoughtClick, Store, StoreError, in_time};

/// How far back the click of a conversion is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookBack {
    /// As far as a possible repeat: that is fast, and finds the click unless its edge's clock ran far ahead.
    AsForRepeats,
    /// Without a limit.
    Everything,
}

#[derive(Row, Deserialize)]
struct WaitingRow {
    #[serde(with = "clickhouse::serde::uuid")]
    workspace: Uuid,
    #[serde(with = "clickhouse::serde::uuid")]
    link: Uuid,
    clicked: i64,
    click_id: String,
    #[serde(with = "clickhouse::serde::uuid")]
    conversion: Uuid,
    converted: i64,
}

impl From<WaitingRow> for Conversion {
    fn from(row: WaitingRow) -> Self {
        Self {
            version: Version,
            conversion_id: ConversionId::from_uuid(row.conversion),
            click_id: row.click_id,
            link_id: LinkId::from_uuid(row.link),
            workspace_id: WorkspaceId::from_uuid(row.workspace),
            clicked_at: DateTime::from_timestamp_millis(row.clicked).unwrap_or_default(),
            converted_at: DateTime::from_timestamp_millis(row.converted).unwrap_or_default(),
        }
    }
}

impl Store {
    /// Stores conversions that wait for their click.
    pub async fn insert_waiting(&self, conversions: &[Conversion]) -> Result<(), StoreError> {
        self.set_waiting(conversions, false).await
    }

    /// Returns up to `limit` conversions that wait for their click, after one in the order of workspace, link and id.
    /// `added` is a condition on when they were added.
    pub(crate) async fn waiting_conversions(
        &self,
        after: Option<&Conversion>,
        added: &str,
        limit: usize,
    ) -> Result<Vec<Conversion>, StoreError> {
        let (workspace, link, click) = after.map_or((Uuid::nil(), Uuid::nil(), ""), |last| {
            (last.workspace_id.uuid(), last.link_id.uuid(), &*last.click_id)
        });
        // ClickHouse uses the table's order for the workspace, and not for the whole key.
        let sql = format!(
            "SELECT workspace_id AS workspace, link_id AS link, toUnixTimestamp64Milli(occurred_at) AS clicked, \
                    click_id, conversion_id AS conversion, toUnixTimestamp64Milli(converted_at) AS converted \
             FROM waiting_conversions FINAL \
             WHERE counted = 0 AND {added} AND workspace_id >= toUUID('{workspace}') \
               AND (workspace_id, link_id, click_id) > (toUUID('{workspace}'), toUUID('{link}'), ?) \
             ORDER BY workspace_id, link_id, click_id LIMIT {limit}"
        );
        let rows: Vec<WaitingRow> = in_time(self.client.query(&sql).bind(click).fetch_all()).await?;
        Ok(rows.into_iter().map(Conversion::from).collect())
    }

    /// Counts those of these waiting conversions whose click is stored, at the time of the click's row. Returns the ids
    /// of their clicks.
    pub(crate) async fn count_waiting(
        &self,
        waiting: &[Conversion],
        back: LookBack,
    ) -> Result<HashSet<String>, StoreError> {
        let sought: Vec<SoughtClick<'_>> = waiting.iter().map(|waiting| click_of(waiting, back)).collect();
        let clicks = self.client.everywhere().await?.of("clicks");
        let times = self.times_in(&clicks, "1", &sought).await?;
        let found = waiting.iter().filter_map(|waiting| {
            let clicked_at = *times.get(&waiting.click_id)?;
            Some(Conversion { clicked_at, ..waiting.clone() })
        });
        let found: Vec<Conversion> = found.collect();
        if !found.is_empty() {
            let mut rows = Vec::new();
            found.iter().for_each(|conversion| write_conversion(conversion, &mut rows));
            self.insert_rows(&format!("conversions ({CONVERSION_COLUMNS})"), rows).await?;
            self.set_waiting(&found, true).await?;
        }
        Ok(found.into_iter().map(|conversion| conversion.click_id).collect())
    }

    async fn set_waiting(&self, conversions: &[Conversion], are_counted: bool) -> Result<(), StoreError> {
        let mut rows = Vec::new();
        for conversion in conversions {
            write_conversion(conversion, &mut rows);
            rows.push(u8::from(are_counted));
        }
        self.insert_rows(&format!("waiting_conversions ({CONVERSION_COLUMNS}, counted)"), rows).await
    }

    async fn insert_rows(&self, table: &str, rows: Vec<u8>) -> Result<(), StoreError> {
        let mut insert = self
            .client
            .insert_formatted_with(format!("INSERT INTO {table} FORMAT RowBinary"))
            .with_setting("async_insert", "0")
            .with_setting("wait_end_of_query", "1");
        in_time(async {
            insert.send(Bytes::from(rows)).await?;
            insert.end().await
        })
        .await
    }
}

fn click_of(conversion: &Conversion, back: LookBack) -> SoughtClick<'_> {
    let Conversion { workspace_id, link_id, clicked_at: edge_time, converted_at, .. } = *conversion;
    let seen_at = match back {
        LookBack::AsForRepeats => converted_at,
        // Before the click by any clock, so that its edge's clock counts as wrong.
        LookBack::Everything => DateTime::<Utc>::MIN_UTC,
    };
    let key = ClickKey { workspace_id, link_id, edge_time };
    SoughtClick { key, click_id: &conversion.click_id, seen_at }
}
