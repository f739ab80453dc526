//! Rollups, compared with counts in memory.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Datelike as _, Days, NaiveDate, TimeDelta, Timelike as _, Utc};
use schemas::clickhouse::PRECISION;
use schemas::clickhouse::rollup::{DIMENSIONS, is_active, last_day_of_month};
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::{Class, Click};
use schemas::row::{CLICK_STRUCTURE, ClickRow, source};
use tests::engines::Isolated;
use uuid::Uuid;

use crate::clicks::click;

/// Returns a pseudo-random number that is the same in each run.
pub(crate) fn random(seed: u64) -> u64 {
    let mut value = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

pub(crate) fn workspace(number: u64) -> WorkspaceId {
    WorkspaceId::from_uuid(Uuid::from_u128(0x7000 << 64 | u128::from(number)))
}

pub(crate) fn link(number: u64) -> LinkId {
    LinkId::from_uuid(Uuid::from_u128(0x7000 << 64 | u128::from(number)))
}

/// Returns clicks with broker times within these days, some of them late, many around midnight in UTC.
///
/// Workspace `w` has the links `10 * w` and on.
pub(crate) fn random_clicks(first: NaiveDate, days: u64, count: u64) -> Vec<ClickRow> {
    let start = first.and_time(chrono::NaiveTime::MIN).and_utc();
    (0..count)
        .map(|number| {
            let dice = |what: u64, sides: u64| random(number * 100 + what) % sides;
            let day = start + TimeDelta::days(dice(1, days) as i64);
            let broker_ts = match dice(2, 4) {
                0 => day + TimeDelta::milliseconds(dice(3, 3) as i64),
                1 => day + TimeDelta::days(1) - TimeDelta::milliseconds(1 + dice(3, 3) as i64),
                _ => day + TimeDelta::milliseconds(dice(3, 86_400_000) as i64),
            };
            let late = match dice(4, 4) {
                0 => TimeDelta::milliseconds(dice(5, 10 * 86_400_000) as i64),
                1 => TimeDelta::milliseconds(dice(5, 5) as i64),
                _ => TimeDelta::zero(),
            };
            let value = |what: u64, sides| match dice(what, sides) {
                0 => None,
                value => Some(format!("value-{value}")),
            };
            let workspace_number = dice(6, 3);
            let click = Click {
                workspace_id: workspace(workspace_number),
                link_id: link(10 * workspace_number + dice(7, 4)),
                occurred_at: broker_ts - late,
                class: [Class::Human, Class::Human, Class::Bot, Class::Preview][dice(8, 4) as usize],
                visitor: random(dice(9, 60)),
                country: value(10, 4),
                device_type: value(11, 3),
                browser: value(12, 3),
                os: value(13, 3),
                referrer: value(14, 9),
                utm_source: value(15, 3),
                utm_medium: value(16, 2),
                utm_campaign: value(17, 5),
                utm_term: value(18, 2),
                utm_content: None,
                ..click(&format!("click-{number}"))
            };
            ClickRow {
                click,
                // A source of another topic, because the test's topic does not have these positions.
                src: source(9, (number % 6) as u16),
                koff: 1_000_000 + number,
                broker_ts,
            }
        })
        .collect()
}

/// Stores rows as a processor would have, day by day.
pub(crate) async fn store(isolated: &Isolated, rows: &[ClickRow]) {
    let mut bytes = Vec::new();
    rows.iter().for_each(|row| row.write_row_binary(&mut bytes));
    let structure = CLICK_STRUCTURE.replace('\'', "\\'");
    let insert = format!(
        "INSERT INTO clicks SELECT * FROM input('{structure}') \
         SETTINGS max_partitions_per_insert_block = 0 FORMAT RowBinary"
    );
    isolated.clickhouse_insert(&insert, bytes).await;
}

/// A table, a workspace, a link or all zeros, a class, a unit, its start, a dimension's name and value, a slice.
type Key = [String; 8];

/// The clicks and distinct visitors of each key.
pub(crate) type Rollups = BTreeMap<Key, (u64, usize)>;

/// Computes the rollups of these clicks when all slices until `closed` are closed.
pub(crate) fn expected(rows: &[ClickRow], closed: NaiveDate) -> Rollups {
    let mut sets: BTreeMap<Key, (u64, BTreeSet<u64>)> = BTreeMap::new();
    for row in rows {
        let (at, slice) = (row.occurred_at(), row.broker_ts.date_naive());
        if slice > closed {
            continue;
        }
        for link in [row.click.link_id.uuid(), Uuid::nil()] {
            for (unit, start, slice) in starts(at, slice, closed) {
                let mut add = |table: &str, dimension: &str, value: &str| {
                    let key = [
                        table,
                        &row.click.workspace_id.uuid().to_string(),
                        &link.to_string(),
                        row.click.class.as_str(),
                        &format!("{unit} {}", start.format("%F %T")),
                        dimension,
                        value,
                        &slice.to_string(),
                    ]
                    .map(str::to_owned);
                    let (clicks, visitors) = sets.entry(key).or_default();
                    *clicks += 1;
                    visitors.insert(row.click.visitor);
                };
                add("counts", "", "");
                if unit != "hour" {
                    for (dimension, value) in DIMENSIONS.iter().zip(values(&row.click)) {
                        add("breakdowns", dimension, value.as_deref().unwrap_or_default());
                    }
                }
            }
        }
    }
    sets.into_iter().map(|(key, (clicks, visitors))| (key, (clicks, visitors.len()))).collect()
}

fn values(click: &Click) -> [&Option<String>; 10] {
    let Click { country, device_type, browser, os, referrer, .. } = click;
    let Click { utm_source, utm_medium, utm_campaign, utm_term, utm_content, .. } = click;
    [country, device_type, browser, os, referrer, utm_source, utm_medium, utm_campaign, utm_term, utm_content]
}

/// Returns the rollup rows that a click belongs to: unit, start, and slice.
fn starts(
    at: DateTime<Utc>,
    slice: NaiveDate,
    closed: NaiveDate,
) -> Vec<(&'static str, DateTime<Utc>, NaiveDate)> {
    let midnight = at.date_naive().and_time(chrono::NaiveTime::MIN).and_utc();
    let month = midnight - TimeDelta::days(i64::from(midnight.day0()));
    // A click that is not late is in the rollup of its month's last day; a late click adds to its month in its own
    // slice.
    let of_month = slice.max(last_day_of_month(at.date_naive()));
    let mut starts =
        vec![("hour", midnight + TimeDelta::hours(i64::from(at.hour())), slice), ("day", midnight, slice)];
    if of_month <= closed {
        starts.push(("month", month, of_month));
    }
    starts
}

/// Reads the active rollups.
pub(crate) async fn found(isolated: &Isolated) -> Rollups {
    let of_counts = format!(
        "SELECT 'counts', toString(workspace_id), toString(link_id), toString(class), \
         concat(unit, ' ', formatDateTime(start, '%F %T', 'UTC')), '', '', toString(slice), sum(clicks), \
         uniqCombined64Merge({PRECISION})(visitors) FROM counts WHERE {} \
         GROUP BY workspace_id, link_id, class, unit, start, slice FORMAT JSONCompactStringsEachRow",
        is_active()
    );
    let of_breakdowns = format!(
        "SELECT 'breakdowns', toString(workspace_id), toString(link_id), toString(class), \
         concat(unit, ' ', toString(start), ' 00:00:00'), dimension, value, toString(slice), sum(clicks), \
         uniqCombined64Merge({PRECISION})(visitors) FROM breakdowns WHERE {} \
         GROUP BY workspace_id, link_id, class, unit, start, dimension, value, slice FORMAT JSONCompactStringsEachRow",
        is_active()
    );
    let mut found = Rollups::new();
    for query in [of_counts, of_breakdowns] {
        for line in isolated.clickhouse(&query).await.lines() {
            let mut fields: Vec<String> = serde_json::from_str(line).unwrap();
            let visitors = fields.pop().unwrap().parse().unwrap();
            let clicks = fields.pop().unwrap().parse().unwrap();
            found.insert(fields.try_into().unwrap(), (clicks, visitors));
        }
    }
    found
}

/// Checks that the active rollups equal those of these clicks.
pub(crate) async fn assert_rollups(isolated: &Isolated, rows: &[ClickRow], closed: NaiveDate) {
    let (expected, found) = (expected(rows, closed), found(isolated).await);
    for (key, value) in &expected {
        assert_eq!(found.get(key), Some(value), "{key:?}");
    }
    for (key, value) in &found {
        assert!(expected.contains_key(key), "unexpected {key:?}: {value:?}");
    }
}

/// Returns the first day of the latest month whose first week is over.
pub(crate) fn recent_month(today: NaiveDate) -> NaiveDate {
    today.checked_sub_days(Days::new(8)).unwrap().with_day(1).unwrap()
}
