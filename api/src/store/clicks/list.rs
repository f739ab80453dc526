//! Single clicks, newest first.

use std::ops::ControlFlow;

use clickhouse::Row;
use clickhouse::error::Result;
use clickhouse::query::RowCursor;
use serde::Deserialize;
use service::clickhouse::text;
use uuid::Uuid;

use super::query_pool::QueryPool;
use super::question::Question;
use super::snapshot::raw_until;
use super::source::{and_before, instant};

/// The first range of time to read, in milliseconds: a day.
const FIRST_SPAN: i64 = 86_400_000;

/// The smallest range of time to read, in milliseconds.
const LEAST_SPAN: i64 = 1_000;

/// The growth of the range after one with too few clicks.
const GROWTH: i64 = 8;

/// The columns with what visitors wrote.
const TEXTS: [&str; 7] =
    ["referrer", "utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content", "external_click_id"];

/// A click's place in the order: its time, and its unique position in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// Milliseconds since 1970.
    pub(crate) at: i64,
    pub(crate) src: u32,
    pub(crate) koff: u64,
}

/// A raw row, without visitor and User-Agent, which are never shown. Empty texts are unknown.
#[derive(Debug, Row, Deserialize)]
pub(crate) struct ClickRow {
    pub(crate) at: i64,
    pub(crate) src: u32,
    pub(crate) koff: u64,
    #[serde(with = "clickhouse::serde::uuid")]
    pub(crate) link_id: Uuid,
    pub(crate) click_id: String,
    pub(crate) slug: String,
    pub(crate) class: String,
    pub(crate) country: String,
    pub(crate) device_type: String,
    pub(crate) browser: String,
    pub(crate) os: String,
    #[serde(deserialize_with = "text::decoded")]
    pub(crate) referrer: String,
    #[serde(deserialize_with = "text::decoded")]
    pub(crate) utm_source: String,
    #[serde(deserialize_with = "text::decoded")]
    pub(crate) utm_medium: String,
    #[serde(deserialize_with = "text::decoded")]
    pub(crate) utm_campaign: String,
    #[serde(deserialize_with = "text::decoded")]
    pub(crate) utm_term: String,
    #[serde(deserialize_with = "text::decoded")]
    pub(crate) utm_content: String,
    #[serde(deserialize_with = "text::decoded")]
    pub(crate) external_click_id: String,
}

impl ClickRow {
    /// Returns the click's place in the order.
    pub(crate) const fn position(&self) -> Position {
        Position { at: self.at, src: self.src, koff: self.koff }
    }
}

/// Reads the clicks of a window from the newest to the oldest, a batch at a time.
///
/// The table has another order, so a batch reads a range of time that probably has enough clicks, and an earlier one if
/// it did not. Time and memory of a query therefore depend on the batch and on the clicks of the hours it reads, not on
/// the window.
#[derive(Debug)]
pub(crate) struct NewestFirst {
    /// Where to continue: before an instant, or after a place.
    next: Next,
    /// The end of the first range in an open window, in milliseconds since 1970.
    now: i64,
    span: i64,
}

#[derive(Debug, Clone, Copy)]
enum Next {
    Before(i64),
    After(Position),
    Nothing,
}

impl NewestFirst {
    /// Starts with the newest click of the window, or after a place in it.
    pub(crate) fn new(question: &Question<'_>, after: Option<Position>, now: i64) -> Self {
        let next = match after {
            Some(position) if position.at < question.window.end => Next::After(position),
            _ => Next::Before(question.window.end),
        };
        Self { next, now, span: FIRST_SPAN }
    }

    /// Hands up to `limit` further clicks to `take` as they come, until it breaks; fewer at the end.
    ///
    /// The next batch continues after the last click that `take` was handed. Nothing may be read after an error.
    pub(crate) async fn batch(
        &mut self,
        queries: &QueryPool,
        question: &Question<'_>,
        limit: usize,
        mut take: impl FnMut(ClickRow) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut wanted = limit;
        let mut flow = ControlFlow::Continue(());
        while wanted > 0 && flow.is_continue() {
            let (until, condition) = match self.next {
                Next::Nothing => break,
                Next::Before(end) => (end, format!("occurred_at < {}", instant(end))),
                Next::After(Position { at, src, koff }) => {
                    let time = instant(at);
                    let same = format!("occurred_at = {time} AND (src, koff) < ({src}, {koff})");
                    (at + 1, format!("(occurred_at < {time} OR {same})"))
                }
            };
            let from = until.min(self.now).saturating_sub(self.span).max(question.window.start);
            let mut found = select(queries, question, from, &condition, wanted).await?;
            let mut last = None;
            while flow.is_continue()
                && let Some(row) = found.next().await?
            {
                last = Some(row.position());
                wanted -= 1;
                flow = take(row);
            }
            match last {
                Some(last) if wanted == 0 || flow.is_break() => {
                    self.span = (until.min(self.now) - last.at).saturating_mul(2).max(LEAST_SPAN);
                    self.next = Next::After(last);
                }
                _ if from <= question.window.start => self.next = Next::Nothing,
                _ => {
                    self.span = self.span.saturating_mul(GROWTH);
                    self.next = Next::Before(from);
                }
            }
        }
        Ok(())
    }

    /// Returns whether no click is left.
    pub(crate) const fn is_done(&self) -> bool {
        matches!(self.next, Next::Nothing)
    }
}

async fn select(
    queries: &QueryPool,
    question: &Question<'_>,
    from: i64,
    before: &str,
    limit: usize,
) -> Result<RowCursor<ClickRow>> {
    // The broker takes no click before it happens, so earlier partitions are not read.
    let sql = format!(
        "SELECT toUnixTimestamp64Milli(occurred_at) AS at, src, koff, link_id, click_id, slug,
                toString(class) AS class, toString(country) AS country, toString(device_type) AS device_type,
                toString(browser) AS browser, toString(os) AS os, {texts}
         FROM {clicks}
         WHERE workspace_id = toUUID('{workspace}') AND {of} AND {class} AND occurred_at >= {from} AND {before}
           AND broker_ts >= {from}{counted}
         ORDER BY occurred_at DESC, src DESC, koff DESC
         LIMIT {limit}",
        texts = TEXTS.map(|column| format!("{} AS {column}", text::encoded(column))).join(", "),
        clicks = queries.client.everywhere().await?.of("clicks"),
        workspace = question.workspace,
        of = question.of.of_raw(question.workspace),
        class = question.classes.condition(),
        from = instant(from),
        counted = and_before(raw_until(queries)?),
    );
    queries.query(&sql).fetch()
}
