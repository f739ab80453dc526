//! Compares the log of one source with its raw rows.

use std::collections::{BTreeMap, HashMap, HashSet};

use chrono::{DateTime, NaiveDate, Utc};
use rdkafka::Message as _;
use schemas::id::{LinkId, WorkspaceId};
use schemas::message::DeadLetter;
use schemas::row::{ClickRow, FIRST_LOG, source};
use service::kafka::KafkaConfig;
use uuid::Uuid;

use super::report::{Difference, Kind, Report, Source};
use super::store::{AuditStore, Stored};
use crate::clickhouse::Store;
use crate::clickhouse::statements::next;
use crate::operate::applied_recounts::{AppliedRecounts, Classification};
use crate::operate::reading::{Part, read};
use crate::pipeline::dead_letter;
use crate::pipeline::decode::{Record, RecordError, decode};
use crate::pipeline::deleted_links::DeletedLinks;

/// Maximum clicks without a row that one statement looks for at other positions.
const LOOK_UP: usize = 500;

/// The dead letters of the topic of clicks, by their positions.
#[derive(Debug, Default)]
pub(super) struct Letters {
    /// Source and offset of each.
    pub(super) positions: HashSet<(u32, u64)>,
    /// When the oldest one was written, if retention has removed older ones.
    pub(super) since: Option<DateTime<Utc>>,
}

/// The data that a source is compared with.
pub(super) struct Compare<'a> {
    pub(super) kafka: &'a KafkaConfig,
    pub(super) store: &'a Store,
    pub(super) tables: &'a AuditStore,
    pub(super) deleted_links: &'a DeletedLinks,
    pub(super) letters: &'a Letters,
    pub(super) recounts: &'a AppliedRecounts,
    pub(super) kept: &'a Kept,
}

/// The first days whose rows are kept; older rows may be removed.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// For workspaces with a known window.
    pub(super) of_workspaces: BTreeMap<Uuid, NaiveDate>,
    /// For all other workspaces: the largest known window. `None` when no window is known: nothing is removed then.
    pub(super) of_all: Option<NaiveDate>,
}

impl Kept {
    fn lacks(&self, workspace: Uuid, day: NaiveDate) -> bool {
        self.of_workspaces.get(&workspace).copied().or(self.of_all).is_some_and(|kept| day < kept)
    }
}

/// A record of the log, decoded to its row or to the reason why it has none.
struct Logged {
    offset: u64,
    broker_ts: Option<DateTime<Utc>>,
    click: Result<ClickRow, RecordError>,
}

/// The comparison of one source under way.
struct Comparison<'a> {
    with: &'a Compare<'a>,
    source: Source,
    report: Report,
    /// Clicks that have no row at their position.
    unseen: Vec<ClickRow>,
}

impl Compare<'_> {
    /// Compares the source's part of the log with its rows, in the order of offsets.
    pub(super) async fn source(&self, part: Part, source: Source) -> anyhow::Result<(Source, Report)> {
        let src = source.src;
        let mut rows = self.tables.rows(src, source.from, source.to)?;
        let mut log = read(self.kafka, part, move |message| {
            let record = Record::of(message);
            Logged { offset: record.offset, broker_ts: record.broker_ts, click: decode(src, &record) }
        });
        let mut comparison = Comparison { with: self, source, report: Report::default(), unseen: Vec::new() };
        let mut row = next(&mut rows).await?;
        let mut first = None;
        while let Some(chunk) = log.recv().await {
            for logged in chunk? {
                let start = *first.get_or_insert(logged.offset);
                let mut found = Vec::new();
                while let Some(stored) = row.take_if(|row| row.koff <= logged.offset) {
                    if stored.koff == logged.offset {
                        found.push(stored);
                    } else if stored.koff >= start {
                        // Rows before the log's current start cannot be compared.
                        comparison.without_record(&stored);
                    }
                    row = next(&mut rows).await?;
                }
                comparison.judge(logged, &found);
                if comparison.unseen.len() >= LOOK_UP {
                    comparison.look_up().await?;
                }
            }
        }
        while let Some(stored) = row {
            comparison.without_record(&stored);
            row = next(&mut rows).await?;
        }
        comparison.look_up().await?;
        Ok((comparison.source, comparison.report))
    }
}

impl Comparison<'_> {
    fn judge(&mut self, logged: Logged, found: &[Stored]) {
        self.source.records += 1;
        let Logged { offset, broker_ts, click } = logged;
        let mut click = match click {
            Ok(click) => click,
            Err(invalid) => return self.judge_invalid(offset, broker_ts, &invalid, found),
        };
        if self.with.deleted_links.contain(click.click.link_id) {
            self.source.deleted += 1;
            return;
        }
        match found {
            [] => self.unseen.push(click),
            [one] => {
                self.source.rows += 1;
                self.source.reclassified += u64::from(self.with.recounts.apply(&mut click));
                let (stored, expected) = (one.classification(), Classification::of(&click));
                if !is_of(one, &click) {
                    self.differs(Kind::OtherRow, &click, format!("the row is of click {}", one.click_id));
                } else if stored != expected {
                    let detail = format!("the row is {stored}, but the log and recounts give {expected}");
                    self.differs(Kind::OtherRow, &click, detail);
                }
            }
            several => {
                self.source.rows += 1;
                let copies = several.len();
                self.differs(
                    Kind::DoubledRow,
                    &click,
                    format!("click {} has {copies} rows", click.click.click_id),
                );
            }
        }
    }

    fn judge_invalid(
        &mut self,
        offset: u64,
        broker_ts: Option<DateTime<Utc>>,
        invalid: &RecordError,
        found: &[Stored],
    ) {
        for stored in found {
            self.without_record(stored);
        }
        let Letters { positions, since } = self.with.letters;
        let is_gone = since.is_some_and(|since| broker_ts.is_none_or(|broker_ts| broker_ts < since));
        if is_gone || positions.contains(&(self.source.src, offset)) {
            self.source.dead_letters += 1;
            return;
        }
        self.source.unexplained += 1;
        self.report.differs(Difference {
            src: Some(self.source.src),
            offset: Some(offset),
            day: broker_ts.map(|broker_ts| broker_ts.date_naive()),
            ..Difference::new(
                Kind::MissingDeadLetter,
                format!("an invalid record has no dead letter: {invalid}"),
            )
        });
    }

    fn without_record(&mut self, stored: &Stored) {
        if self.with.deleted_links.contain(LinkId::from_uuid(stored.link_id)) {
            return;
        }
        self.report.differs(Difference {
            src: Some(self.source.src),
            offset: Some(stored.koff),
            workspace_id: Some(WorkspaceId::from_uuid(stored.workspace_id)),
            link_id: Some(LinkId::from_uuid(stored.link_id)),
            day: DateTime::from_timestamp_millis(stored.millis).map(|at| at.date_naive()),
            ..Difference::new(
                Kind::RowWithoutRecord,
                format!("the log has no click at the position of row {}", stored.click_id),
            )
        });
    }

    fn differs(&mut self, kind: Kind, click: &ClickRow, detail: String) {
        self.report.differs(Difference {
            src: Some(click.src),
            offset: Some(click.koff),
            workspace_id: Some(click.click.workspace_id),
            link_id: Some(click.click.link_id),
            day: Some(click.broker_ts.date_naive()),
            ..Difference::new(kind, detail)
        });
    }

    /// Finds out why clicks have no row at their position.
    async fn look_up(&mut self) -> anyhow::Result<()> {
        let unseen = std::mem::take(&mut self.unseen);
        if unseen.is_empty() {
            return Ok(());
        }
        let Compare { store, tables, deleted_links, kept, .. } = self.with;
        // A purge may have removed their rows since the audit started.
        deleted_links.refresh(store).await?;
        let links: HashSet<(Uuid, Uuid)> =
            unseen.iter().map(|row| (row.click.workspace_id.uuid(), row.click.link_id.uuid())).collect();
        let ids: Vec<&str> = unseen.iter().map(|row| row.click.click_id.as_str()).collect();
        let links: Vec<_> = links.into_iter().collect();
        let elsewhere: HashMap<String, bool> = tables
            .elsewhere(&links, &ids)
            .await?
            .into_iter()
            .map(|row| (row.id, row.is_possible_repeat))
            .collect();
        for click in &unseen {
            let day = click.broker_ts.date_naive();
            if deleted_links.contain(click.click.link_id) {
                self.source.deleted += 1;
            } else if elsewhere.get(&click.click.click_id).is_some_and(|again| *again || click.click.again) {
                self.source.repeats += 1;
            } else if kept.lacks(click.click.workspace_id.uuid(), day) {
                self.source.expired += 1;
            } else {
                self.source.unexplained += 1;
                self.differs(Kind::MissingRow, click, format!("click {} has no row", click.click.click_id));
            }
        }
        Ok(())
    }
}

fn is_of(row: &Stored, click: &ClickRow) -> bool {
    row.click_id == click.click.click_id
        && row.link_id == click.click.link_id.uuid()
        && row.workspace_id == click.click.workspace_id.uuid()
        && row.visitor == click.click.visitor
        && row.millis == click.occurred_at().timestamp_millis()
}

/// Reads the positions of the dead letters of a topic.
pub(super) async fn letters(kafka: &KafkaConfig, parts: Vec<Part>, clicks: &str) -> anyhow::Result<Letters> {
    let mut letters = Letters::default();
    for part in parts {
        let lost_records = part.offsets.start > 0;
        let read_up_to = part.offsets.is_empty().then(Utc::now);
        let topic = clicks.to_owned();
        let mut log = read(kafka, part, move |message| {
            let written = message.timestamp().to_millis().and_then(DateTime::from_timestamp_millis);
            let DeadLetter { position, log, .. } =
                Some(dead_letter::read(message)).filter(|letter| letter.topic == topic).unwrap_or_default();
            let of = |(partition, offset)| {
                Some((source(log.unwrap_or(FIRST_LOG), u16::try_from(partition).ok()?), offset))
            };
            (written, position.and_then(of))
        });
        let mut oldest = read_up_to;
        while let Some(chunk) = log.recv().await {
            for (written, position) in chunk? {
                oldest = oldest.or(written);
                letters.positions.extend(position);
            }
        }
        if lost_records {
            letters.since = letters.since.max(oldest);
        }
    }
    Ok(letters)
}
