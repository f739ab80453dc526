//! The report of an audit, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use chrono::NaiveDate;
use schemas::id::{LinkId, WorkspaceId};
use schemas::row::{log_of, partition_of};
use serde::Serialize;

/// Maximum differences that are described; the others are only counted.
const DESCRIBED: usize = 100;

/// The result of an audit.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Whether everything that was compared is equal.
    pub equal: bool,
    /// The log compared with the raw rows, by source.
    pub sources: Vec<Source>,
    /// Rows whose log was replaced or truncated: they are counted, but cannot be compared.
    pub former: Vec<Former>,
    /// Raw rows compared with the sum of rollups and open slices, by class.
    pub classes: BTreeMap<String, Totals>,
    /// Slices before this day are closed, so their rollups were compared.
    pub closed_until: Option<NaiveDate>,
    /// Closed slices that have clicks.
    pub slices: usize,
    /// Workspaces whose own rollups were not compared, because rows of a deleted link await their purge.
    pub awaiting_purge: usize,
    /// How many differences there are, at least.
    pub difference_count: u64,
    /// The first of them.
    pub differences: Vec<Difference>,
}

/// The records of one source, up to the last one that is counted.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Source {
    /// The partition of the topic of clicks.
    pub partition: i32,
    /// The source's number in the rows.
    pub src: u32,
    /// The first offset that was compared.
    pub from: u64,
    /// The offset up to which everything is counted and was compared.
    pub to: u64,
    /// Offsets beyond, which are not counted yet.
    pub behind: u64,
    /// Records in the log.
    pub records: u64,
    /// Records that are rows.
    pub rows: u64,
    /// Records that are not valid clicks.
    pub dead_letters: u64,
    /// Records of clicks whose row is at another position.
    pub repeats: u64,
    /// Clicks of deleted links, purged or not.
    pub deleted: u64,
    /// Clicks whose rows were removed because no plan shows them any more.
    pub expired: u64,
    /// Rows whose class, device type, browser or operating system was changed by a recount.
    pub reclassified: u64,
    /// Records that are none of these.
    pub unexplained: u64,
}

/// The rows of a source whose records are gone: its topic was recreated, or its log was truncated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Former {
    /// The source's number in the rows.
    pub src: u32,
    /// The first offset among them.
    pub from: u64,
    /// How many rows.
    pub rows: u64,
}

/// The clicks of one class, added up in two ways.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Raw rows.
    pub rows: u64,
    /// Rollups of closed slices and raw rows of open ones, as a query takes them.
    pub counted: u64,
}

/// The kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A click of the log has no row.
    MissingRow,
    /// Several rows have the same position.
    DoubledRow,
    /// A possible repeat has several rows.
    DoubledClick,
    /// A row has no record in the log, although the log covers its position.
    RowWithoutRecord,
    /// A row differs from its record and the recounts since.
    OtherRow,
    /// An invalid record has no dead letter.
    MissingDeadLetter,
    /// A rollup differs from the raw rows.
    Rollup,
    /// The sum that queries return differs from the raw rows.
    Total,
    /// A replica has other rows than the one that everything else is compared with.
    Replica,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MissingRow => "missing row",
            Self::DoubledRow => "doubled row",
            Self::DoubledClick => "doubled click",
            Self::RowWithoutRecord => "row without record",
            Self::OtherRow => "wrong row",
            Self::MissingDeadLetter => "missing dead letter",
            Self::Rollup => "wrong rollup",
            Self::Total => "wrong total",
            Self::Replica => "unequal replica",
        })
    }
}

/// One difference.
#[derive(Debug, Clone, Serialize)]
pub struct Difference {
    /// Its kind.
    pub kind: Kind,
    /// The position's source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src: Option<u32>,
    /// The position's offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// The workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<WorkspaceId>,
    /// The link; none for the workspace as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_id: Option<LinkId>,
    /// The broker's day, which is the slice of rollups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day: Option<NaiveDate>,
    /// The difference as a sentence.
    pub detail: String,
}

impl Difference {
    /// Creates a difference without a position.
    pub fn new(kind: Kind, detail: String) -> Self {
        Self { kind, src: None, offset: None, workspace_id: None, link_id: None, day: None, detail }
    }
}

impl Report {
    /// Adds a difference.
    pub fn differs(&mut self, difference: Difference) {
        self.difference_count += 1;
        if self.differences.len() < DESCRIBED {
            self.differences.push(difference);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.equal { "equal" } else { "UNEQUAL" };
        writeln!(f, "{verdict}")?;
        writeln!(f, "log = rows + dead letters + repeats + deleted links' + expired + unexplained")?;
        for source in &self.sources {
            let Source { partition, from, to, behind, records, rows, .. } = source;
            let Source { dead_letters, repeats, deleted, expired, unexplained, .. } = source;
            writeln!(
                f,
                "  partition {partition}, offsets {from} to {to}: {records} = {rows} + {dead_letters} + {repeats} \
                 + {deleted} + {expired} + {unexplained}; {behind} not counted yet"
            )?;
        }
        for Former { src, from, rows } in &self.former {
            let (partition, log) = (partition_of(*src), log_of(*src));
            writeln!(
                f,
                "  partition {partition}, offsets from {from} of former log {log}, which Kafka no longer has: \
                 {rows} rows stay counted"
            )?;
        }
        writeln!(f, "raw rows = active rollups + open slices")?;
        for (class, Totals { rows, counted }) in &self.classes {
            writeln!(f, "  {class}: {rows} = {counted}")?;
        }
        match self.closed_until {
            Some(day) => writeln!(f, "{} slices with clicks are closed, those before {day}", self.slices)?,
            None => writeln!(f, "no slice is closed yet")?,
        }
        if self.awaiting_purge > 0 {
            writeln!(f, "{} workspaces await the purge of a deleted link", self.awaiting_purge)?;
        }
        for difference in &self.differences {
            let Difference { kind, src, offset, workspace_id, link_id, day, detail } = difference;
            write!(f, "{kind}: {detail}")?;
            if let (Some(src), Some(offset)) = (src, offset) {
                write!(f, ", partition {} offset {offset}", partition_of(*src))?;
            }
            if let Some(workspace) = workspace_id {
                write!(f, ", workspace {workspace}")?;
            }
            if let Some(link) = link_id {
                write!(f, ", link {link}")?;
            }
            if let Some(day) = day {
                write!(f, ", slice {day}")?;
            }
            writeln!(f)?;
        }
        let undescribed = self.difference_count.saturating_sub(self.differences.len() as u64);
        if undescribed > 0 {
            writeln!(f, "and {undescribed} more differences")?;
        }
        Ok(())
    }
}
