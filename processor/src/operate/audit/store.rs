//! Every statement of an audit. All but the one that stores a result only read.

use std::collections::BTreeMap;
use std::ops::Range;

use chrono::{DateTime, NaiveDate};
use clickhouse::Row;
use clickhouse::query::RowCursor;
use schemas::clickhouse::rollup::{DIMENSIONS, is_active};
use schemas::clickhouse::{EXACT_VISITORS, PRECISION};
use schemas::id::{LinkId, WorkspaceId};
use serde::Deserialize;
use service::clickhouse::{Clickhouse, Everywhere, text};
use uuid::Uuid;

use super::report::{Difference, Former, Kind, Report, Totals};
use crate::clickhouse::StoreError;
use crate::clickhouse::sources::Source as Log;
use crate::clickhouse::statements::{Statements, in_time};
use crate::operate::applied_recounts::Classification;

/// Differences that one statement describes at most.
const LIMIT: usize = 100;

/// What of a row is compared with its record.
#[derive(Debug, Row, Deserialize)]
pub(super) struct Stored {
    pub(super) koff: u64,
    #[serde(with = "clickhouse::serde::uuid")]
    pub(super) workspace_id: Uuid,
    #[serde(with = "clickhouse::serde::uuid")]
    pub(super) link_id: Uuid,
    pub(super) millis: i64,
    pub(super) visitor: u64,
    pub(super) kind: String,
    pub(super) device: String,
    pub(super) program: String,
    pub(super) system: String,
    pub(super) click_id: String,
}

impl Stored {
    /// Returns what the row says of what made the click.
    pub(super) fn classification(&self) -> Classification {
        let Self { kind, device, program, system, .. } = self;
        let [class, device_type, browser, os] = [kind, device, program, system].map(String::clone);
        Classification { class, device_type, browser, os }
    }
}

/// The result of an audit that ran by itself.
#[derive(Debug, Row, Deserialize)]
pub(super) struct Newest {
    /// When it ended, in milliseconds since 1970.
    pub(super) ended: i64,
    /// How long ago that is by ClickHouse's clock, in milliseconds.
    pub(super) age: i64,
    pub(super) differences: u64,
}

/// A click that was looked for elsewhere.
#[derive(Debug, Row, Deserialize)]
pub(super) struct Elsewhere {
    pub(super) id: String,
    pub(super) is_possible_repeat: bool,
}

#[derive(Row, Deserialize)]
struct Doubled {
    source: u32,
    offset: u64,
    #[serde(with = "clickhouse::serde::uuid")]
    workspace: Uuid,
    #[serde(with = "clickhouse::serde::uuid")]
    link: Uuid,
    day: String,
    copies: u64,
    id: String,
}

#[derive(Row, Deserialize)]
struct Unequal {
    dim: String,
    #[serde(deserialize_with = "text::decoded")]
    value: String,
    per: String,
    of_slice: String,
    #[serde(with = "clickhouse::serde::uuid")]
    workspace: Uuid,
    #[serde(with = "clickhouse::serde::uuid")]
    link: Uuid,
    kind: String,
    start: String,
    raw: u64,
    rolled: u64,
    raw_visitors: u64,
    rolled_visitors: u64,
}

/// What must stay the same while an audit reads, for it to have seen one state of the tables.
#[derive(Debug, Clone, PartialEq, Eq, Row, Deserialize)]
pub(super) struct Fingerprint {
    rebuilds: u64,
    slices: u64,
    purges: u64,
    deleted: u64,
}

/// A table, a source, or 0 for all, the number of rows and a sum over them.
pub(super) type Content = (String, u32, u64, u64);

/// Reads the tables.
#[derive(Clone)]
pub(super) struct AuditStore {
    pub(super) statements: Statements,
    everywhere: Everywhere,
    /// The workspaces whose own rollups still have clicks that their raw rows are not counted for.
    pub(super) awaiting_purge: Vec<Uuid>,
}

impl AuditStore {
    /// Creates one that stays with the replicas that are used now.
    pub(super) async fn new(client: &Clickhouse) -> Result<Self, StoreError> {
        let client = client.pinned();
        let everywhere = client.everywhere().await?;
        Ok(Self { statements: Statements::new(client), everywhere, awaiting_purge: Vec::new() })
    }

    /// Returns what must be equal in each replica of a shard.
    pub(super) async fn content(
        replica: Clickhouse,
        compared: &[(u32, u64, u64)],
    ) -> Result<Vec<Content>, StoreError> {
        let within: Vec<String> = compared
            .iter()
            .map(|(src, from, to)| format!("(src = {src} AND koff >= {from} AND koff < {to})"))
            .collect();
        let within = if within.is_empty() { "0".to_owned() } else { within.join(" OR ") };
        let active = is_active();
        let rollup = |table: &str| {
            format!(
                "SELECT '{table}', toUInt32(0), count(), sum(clicks) FROM {table} WHERE {active} HAVING count() > 0"
            )
        };
        let sql = format!(
            "SELECT 'clicks', src, count(), sum(cityHash64(*)) FROM clicks WHERE {within} GROUP BY src \
             UNION ALL {} UNION ALL {}",
            rollup("counts"),
            rollup("breakdowns"),
        );
        Statements { client: replica }.fetch_all(&sql).await
    }

    /// Returns the newest result.
    pub(super) async fn newest(&self) -> Result<Option<Newest>, StoreError> {
        const SQL: &str = "SELECT toUnixTimestamp64Milli(ended_at) AS ended, \
                    toUnixTimestamp64Milli(now64(3)) - ended AS age, differences \
             FROM audits ORDER BY ended_at DESC LIMIT 1";
        Ok(self.statements.fetch_all(SQL).await?.pop())
    }

    /// Stores the result of an audit that has just ended.
    pub(super) async fn add(&self, report: &Report) -> anyhow::Result<()> {
        let insert = "INSERT INTO audits (differences, report) VALUES (?, ?)";
        let insert = self.statements.client.query(insert).bind(report.difference_count);
        Ok(in_time(insert.bind(serde_json::to_string(report)?).execute()).await?)
    }

    pub(super) async fn fingerprint(&self) -> Result<Fingerprint, StoreError> {
        const SQL: &str = "SELECT assumeNotNull((SELECT count() FROM rebuilds)) AS rebuilds, \
                    assumeNotNull((SELECT count() FROM slices)) AS slices, \
                    assumeNotNull((SELECT count() FROM purges)) AS purges, \
                    assumeNotNull((SELECT count() FROM deleted_links)) AS deleted";
        self.statements.fetch_one(SQL).await
    }

    /// Returns the rows of a range of a source's offsets, in their order.
    pub(super) fn rows(&self, src: u32, from: u64, to: u64) -> Result<RowCursor<Stored>, StoreError> {
        let sql = format!(
            "SELECT koff, workspace_id, link_id, toUnixTimestamp64Milli(occurred_at) AS millis, visitor, \
                    toString(class) AS kind, toString(device_type) AS device, toString(browser) AS program, \
                    toString(os) AS system, click_id \
             FROM {clicks} WHERE src = {src} AND koff >= {from} AND koff < {to} ORDER BY koff",
            clicks = self.everywhere.of("clicks")
        );
        self.statements.fetch(&sql)
    }

    /// Returns how many rows each source has that are in none of these logs.
    pub(super) async fn former(&self, logs: &[(Log, Range<u64>)]) -> Result<Vec<Former>, StoreError> {
        let mut condition = String::from("1");
        for (Log { src, .. }, Range { end, .. }) in logs {
            condition += &format!(" AND NOT (src = {src} AND koff < {end})");
        }
        let clicks = self.everywhere.of("clicks");
        let sql = format!(
            "SELECT src, min(koff), count() FROM {clicks} WHERE {condition} GROUP BY src ORDER BY src"
        );
        let rows: Vec<(u32, u64, u64)> = self.statements.fetch_all(&sql).await?;
        Ok(rows.into_iter().map(|(src, from, rows)| Former { src, from, rows }).collect())
    }

    /// Returns which of these clicks of these links are rows, wherever.
    pub(super) async fn elsewhere(
        &self,
        links: &[(Uuid, Uuid)],
        ids: &[&str],
    ) -> Result<Vec<Elsewhere>, StoreError> {
        let links: Vec<String> = links
            .iter()
            .map(|(workspace, link)| format!("(toUUID('{workspace}'), toUUID('{link}'))"))
            .collect();
        let sql = format!(
            "SELECT click_id AS id, max(again) AS is_possible_repeat FROM {} PREWHERE (workspace_id, link_id) IN ({}) \
             WHERE click_id IN ? GROUP BY click_id",
            self.everywhere.of("clicks").replace('?', "??"),
            links.join(", "),
        );
        in_time(self.statements.client.query(&sql).bind(ids).fetch_all()).await
    }

    /// Finds positions that have more than one row, outside of what is compared with the log.
    pub(super) async fn doubled_positions(
        &self,
        compared: &[(u32, u64, u64)],
    ) -> Result<Vec<Difference>, StoreError> {
        let mut outside = String::from("1");
        for (src, from, to) in compared {
            outside += &format!(" AND NOT (src = {src} AND koff >= {from} AND koff < {to})");
        }
        let sql = format!(
            "SELECT src AS source, koff AS offset, any(workspace_id) AS workspace, any(link_id) AS link, \
                    toString(toDate(any(broker_ts))) AS day, count() AS copies, any(click_id) AS id \
             FROM {clicks} WHERE {outside} GROUP BY src, koff HAVING copies > 1 ORDER BY src, koff LIMIT {LIMIT}",
            clicks = self.everywhere.of("clicks")
        );
        self.doubled(&sql, Kind::DoubledRow).await
    }

    /// Finds clicks that have more than one row although one of them was a possible repeat.
    pub(super) async fn doubled_clicks(&self) -> Result<Vec<Difference>, StoreError> {
        let sql = format!(
            "SELECT max(src) AS source, argMax(koff, src) AS offset, workspace_id AS workspace, link_id AS link, \
                    toString(toDate(max(broker_ts))) AS day, count() AS copies, any(click_id) AS id \
             FROM {clicks} \
             WHERE (workspace_id, link_id) IN (SELECT workspace_id, link_id FROM {clicks} WHERE again) \
             GROUP BY workspace_id, link_id, sipHash128(click_id) HAVING copies > 1 AND max(again) \
               AND uniqExact(src, koff) > 1 LIMIT {LIMIT}",
            clicks = self.everywhere.of("clicks")
        );
        self.doubled(&sql, Kind::DoubledClick).await
    }

    async fn doubled(&self, sql: &str, kind: Kind) -> Result<Vec<Difference>, StoreError> {
        let rows: Vec<Doubled> = self.statements.fetch_all(sql).await?;
        let difference = |row: Doubled| Difference {
            src: Some(row.source),
            offset: Some(row.offset),
            workspace_id: Some(WorkspaceId::from_uuid(row.workspace)),
            link_id: Some(LinkId::from_uuid(row.link)),
            day: row.day.parse().ok(),
            ..Difference::new(kind, format!("click {} is there {} times", row.id, row.copies))
        };
        Ok(rows.into_iter().map(difference).collect())
    }

    /// Returns the workspaces that have rows of deleted links.
    pub(super) async fn workspaces_awaiting_purge(&self) -> Result<Vec<Uuid>, StoreError> {
        let sql = format!(
            "SELECT DISTINCT toString(workspace_id) FROM {} WHERE link_id IN (SELECT link_id FROM deleted_links)",
            self.everywhere.of("clicks")
        );
        let workspaces: Vec<String> = self.statements.fetch_all(&sql).await?;
        Ok(workspaces.iter().filter_map(|workspace| workspace.parse().ok()).collect())
    }

    /// Returns the closed slices that have raw rows or rollups, and how many raw rows.
    pub(super) async fn slices(&self, until: NaiveDate) -> Result<BTreeMap<NaiveDate, u64>, StoreError> {
        let sql = format!(
            "SELECT toString(day), sum(n) FROM (\
               SELECT toDate(broker_ts) AS day, count() AS n FROM {clicks} WHERE toDate(broker_ts) < '{until}' \
               GROUP BY day UNION ALL \
               SELECT DISTINCT slice AS day, toUInt64(0) AS n FROM {counts} WHERE slice < '{until}') GROUP BY day",
            clicks = self.everywhere.of("clicks"),
            counts = self.everywhere.of("counts"),
        );
        let rows: Vec<(String, u64)> = self.statements.fetch_all(&sql).await?;
        Ok(rows.into_iter().filter_map(|(day, rows)| Some((day.parse().ok()?, rows))).collect())
    }

    /// Compares the hours and days of closed slices, and their breakdowns, with the raw rows.
    pub(super) async fn unequal_slices(&self, slices: &[NaiveDate]) -> Result<Vec<Difference>, StoreError> {
        let zero = Uuid::nil();
        let days: Vec<String> = slices.iter().map(|slice| format!("'{slice}'")).collect();
        let (days, active) = (days.join(", "), is_active());
        let [clicks, table, broken_down] =
            ["clicks", "counts", "breakdowns"].map(|table| self.everywhere.of(table));
        let raw = |value: &str, keys: &str| {
            format!(
                "SELECT toUInt8(0) AS side, '' AS dim, val, key.1 AS per, day, workspace_id AS workspace, key.2 AS \
                 link, kind, key.3 AS since, n, v FROM (SELECT workspace_id, link_id, toString(class) AS kind, \
                       toStartOfHour(occurred_at) AS hour, toDate(broker_ts) AS day, {value} AS val, count() AS n, \
                       uniqCombined64State({PRECISION})(visitor) AS v FROM {clicks} WHERE toDate(broker_ts) IN \
                       ({days}) AND {NOT_DELETED} GROUP BY workspace_id, link_id, kind, hour, day, val) \
                 ARRAY JOIN arrayFlatten(arrayMap(of -> [{keys}], [link_id, toUUID('{zero}')])) AS key",
            )
        };
        let counts = format!(
            "{} UNION ALL SELECT toUInt8(1), '', '', toString(unit), slice, workspace_id, link_id, toString(class), \
                    start, clicks, visitors \
             FROM {table} WHERE unit IN ('hour', 'day') AND slice IN ({days}) AND {active} AND {NOT_DELETED}",
            raw("''", "('hour', of, hour), ('day', of, toStartOfDay(hour))"),
        );
        let mut unequal = self.unequal(&counts).await?;
        for dimension in DIMENSIONS {
            let breakdowns = format!(
                "{} UNION ALL SELECT toUInt8(1), '', value, 'day', slice, workspace_id, link_id, toString(class), \
                        toDateTime(start, 'UTC'), clicks, visitors \
                 FROM {broken_down} WHERE dimension = '{dimension}' AND unit = 'day' AND slice IN ({days}) AND \
                   {active} AND {NOT_DELETED}",
                raw(&format!("toString({dimension})"), "('day', of, toStartOfDay(hour))"),
            );
            let found = self.unequal(&breakdowns).await?;
            unequal.extend(found.into_iter().map(|difference| Difference {
                detail: format!("{dimension}: {}", difference.detail),
                ..difference
            }));
        }
        Ok(unequal)
    }

    /// Compares the months that are over with the days that they are of.
    pub(super) async fn unequal_months(&self, until: NaiveDate) -> Result<Vec<Difference>, StoreError> {
        let active = is_active();
        let of = |table: &str, value: &str, dimension: &str| {
            format!(
                "SELECT if(unit = 'day', toUInt8(0), toUInt8(1)) AS side, {dimension} AS dim, {value} AS val, \
                        'month' AS per, toLastDayOfMonth(start) AS day, workspace_id AS workspace, link_id AS link, \
                        toString(class) AS kind, toDateTime(toStartOfMonth(start), 'UTC') AS since, clicks AS n, \
                        visitors AS v \
                 FROM {table} WHERE unit IN ('day', 'month') AND toLastDayOfMonth(start) < '{until}' \
                   AND slice < '{until}' AND {active} AND {NOT_DELETED}"
            )
        };
        let mut unequal = self.unequal(&of(&self.everywhere.of("counts"), "''", "''")).await?;
        let breakdowns = of(&self.everywhere.of("breakdowns"), "value", "toString(dimension)");
        unequal.extend(self.unequal(&breakdowns).await?);
        Ok(unequal)
    }

    async fn unequal(&self, both_sides: &str) -> Result<Vec<Difference>, StoreError> {
        let zero = Uuid::nil();
        let waiting: Vec<String> = self.awaiting_purge.iter().map(|id| format!("'{id}'")).collect();
        let waiting = waiting.join(", ");
        // Rollups without clicks would not be noticed by their sums, so both sides are asked for what they have. Beyond
        // what is exact, the order of merging may round the visitors differently.
        let sql = format!(
            "SELECT dim, {value} AS value, per, toString(day) AS of_slice, workspace, link, kind, \
                    toString(since) AS start, sumIf(n, side = 0) AS raw, sumIf(n, side = 1) AS rolled, \
                    uniqCombined64MergeIf({PRECISION})(v, side = 0) AS raw_visitors, \
                    uniqCombined64MergeIf({PRECISION})(v, side = 1) AS rolled_visitors \
             FROM ({both_sides}) \
             WHERE NOT (link = toUUID('{zero}') AND has(CAST([{waiting}], 'Array(UUID)'), workspace)) \
             GROUP BY dim, val, per, day, workspace, link, kind, since \
             HAVING raw != rolled OR abs(toInt64(raw_visitors) - toInt64(rolled_visitors)) \
                    > if(raw_visitors < {EXACT_VISITORS}, 0, raw_visitors / 1000) \
             ORDER BY day, workspace, link, per, since LIMIT {LIMIT}",
            value = text::encoded("val"),
        );
        let rows: Vec<Unequal> = self.statements.fetch_all(&sql).await?;
        Ok(rows.into_iter().map(Unequal::describe).collect())
    }

    /// Returns the clicks of each class, by raw rows, and as queries add them up.
    pub(super) async fn totals(
        &self,
        until: Option<NaiveDate>,
    ) -> Result<BTreeMap<String, Totals>, StoreError> {
        let zero = Uuid::nil();
        let until = until.unwrap_or(DateTime::UNIX_EPOCH.date_naive());
        let waiting: Vec<String> = self.awaiting_purge.iter().map(|id| format!("'{id}'")).collect();
        // A month that is over from its own rows, others from their days, and what is open from raw rows.
        let sql = format!(
            "SELECT kind, sum(raw), sum(rolled) FROM (\
               SELECT toString(class) AS kind, count() AS raw, countIf(toDate(broker_ts) >= '{until}') AS rolled \
               FROM {clicks} WHERE {NOT_DELETED} AND {settled} GROUP BY kind UNION ALL \
               SELECT toString(class) AS kind, toUInt64(0), sum(clicks) FROM {counts} \
               WHERE link_id = toUUID('{zero}') AND slice < '{until}' AND {active} AND {settled} \
                 AND unit = if(toLastDayOfMonth(start) < '{until}', 'month', 'day') GROUP BY kind) GROUP BY kind",
            clicks = self.everywhere.of("clicks"),
            counts = self.everywhere.of("counts"),
            active = is_active(),
            settled = format!("NOT has(CAST([{}], 'Array(UUID)'), workspace_id)", waiting.join(", ")),
        );
        let rows: Vec<(String, u64, u64)> = self.statements.fetch_all(&sql).await?;
        Ok(rows.into_iter().map(|(class, rows, counted)| (class, Totals { rows, counted })).collect())
    }
}

/// The clicks that count; no link has the id of all zeros, so rows of whole workspaces pass.
const NOT_DELETED: &str = "link_id NOT IN (SELECT link_id FROM deleted_links)";

impl Unequal {
    fn describe(self) -> Difference {
        let Self { dim, value, per, of_slice, kind, start, raw, rolled, .. } = self;
        let what =
            if value.is_empty() && dim.is_empty() { kind } else { format!("{dim} '{value}' of {kind}") };
        let detail = format!(
            "{what} in the {per} of {start}: {raw} clicks of {} visitors by raw rows, {rolled} of {} by rollups",
            self.raw_visitors, self.rolled_visitors
        );
        Difference {
            workspace_id: Some(WorkspaceId::from_uuid(self.workspace)),
            link_id: Some(self.link).filter(|id| !id.is_nil()).map(LinkId::from_uuid),
            day: of_slice.parse().ok(),
            ..Difference::new(Kind::Rollup, detail)
        }
    }
}
