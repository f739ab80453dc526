//! What a rebuild is to do, written down before it begins, so that whoever takes it up again does the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use chrono::NaiveDate;
use schemas::clickhouse::Generation;
use schemas::clickhouse::rollup::fold_of_month;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A range of a partition's offsets that is read from the log again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Range {
    pub(crate) partition: i32,
    pub(crate) src: u32,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The generation that is made, and the one that it is made of.
    pub(crate) generation: u32,
    pub(crate) of: u32,
    /// What is read from the log again.
    pub(crate) ranges: Vec<Range>,
    /// Rows of live sources from these offsets on are taken over at the end.
    pub(crate) live: BTreeMap<u32, u64>,
    /// Broker's days whose rows are all taken over as they are.
    pub(crate) attached: BTreeSet<NaiveDate>,
    /// Broker's days of whose rows those outside of the ranges are copied.
    pub(crate) copied: BTreeSet<NaiveDate>,
    /// Closed slices whose rollups are computed again.
    pub(crate) slices: BTreeSet<NaiveDate>,
    /// Slices before this day were closed when the plan was made.
    pub(crate) closed_until: Option<NaiveDate>,
    /// The rows of table `recounts` by which the copied rows are changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) recount: Option<Uuid>,
}

impl Plan {
    /// Says what becomes of each day: `days` have rows, `touched` have rows or records of the ranges.
    pub(crate) fn new(
        generation: Generation,
        of: Generation,
        ranges: Vec<Range>,
        live: BTreeMap<u32, u64>,
        days: &BTreeSet<NaiveDate>,
        touched: &BTreeSet<NaiveDate>,
        closed_until: Option<NaiveDate>,
    ) -> Self {
        let is_closed = |day: &NaiveDate| closed_until.is_some_and(|until| *day < until);
        // Nothing comes any more on closed days. On the others it does, so they are copied up to an offset.
        let (attached, copied) =
            days.iter().copied().partition(|day| is_closed(day) && !touched.contains(day));
        // The slice of a month's last day has a fold of all its days.
        let slices = touched.iter().flat_map(|day| [*day, fold_of_month(*day)]).filter(is_closed).collect();
        let recount = None;
        Self {
            generation: generation.0,
            of: of.0,
            ranges,
            live,
            attached,
            copied,
            slices,
            closed_until,
            recount,
        }
    }

    /// The same with rows that are changed while they are copied.
    pub(crate) fn recounting(self, recount: Uuid) -> Self {
        Self { recount: Some(recount), ..self }
    }

    /// What it is for, for people who look.
    pub(crate) fn reason(&self) -> String {
        match self.recount {
            Some(_) => "recount".to_owned(),
            None => format!("replay of {} offsets", self.offsets()),
        }
    }

    pub(crate) fn generation(&self) -> Generation {
        Generation(self.generation)
    }

    pub(crate) fn of(&self) -> Generation {
        Generation(self.of)
    }

    /// How many offsets are read again.
    pub(crate) fn offsets(&self) -> u64 {
        self.ranges.iter().map(|range| range.to - range.from).sum()
    }

    /// The condition for the rows that are copied at the beginning.
    pub(crate) fn is_copied(&self) -> String {
        let mut condition = String::from("1");
        for (src, from) in &self.live {
            condition += &format!(" AND NOT (src = {src} AND koff >= {from})");
        }
        for Range { src, from, to, .. } in &self.ranges {
            condition += &format!(" AND NOT (src = {src} AND koff >= {from} AND koff < {to})");
        }
        condition
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "generation {} of tables is made of generation {}", self.generation, self.of)?;
        if self.recount.is_some() {
            writeln!(f, "  clicks are read by the present rules")?;
        } else {
            writeln!(f, "  {} offsets are read from the log again:", self.offsets())?;
        }
        for Range { partition, from, to, .. } in &self.ranges {
            writeln!(f, "    partition {partition}, {from} to {to}")?;
        }
        writeln!(f, "  {} days are taken over as they are, without copying", self.attached.len())?;
        writeln!(f, "  {} days are copied, as far as they are not read again", self.copied.len())?;
        writeln!(f, "  rollups of {} slices are computed again", self.slices.len())
    }
}

/// How far a rebuild is: each step's work is done when its name is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Planned,
    Copied,
    Filled,
    RolledUp,
    Switched,
    Abandoned,
}

impl Step {
    const ALL: [Self; 6] =
        [Self::Planned, Self::Copied, Self::Filled, Self::RolledUp, Self::Switched, Self::Abandoned];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Copied => "copied",
            Self::Filled => "filled",
            Self::RolledUp => "rolled_up",
            Self::Switched => "switched",
            Self::Abandoned => "abandoned",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.name() == name)
    }

    /// Whether nothing is left to do.
    pub(crate) const fn is_last(self) -> bool {
        matches!(self, Self::Switched | Self::Abandoned)
    }
}

/// A rebuild as it is written down.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) plan: Plan,
    pub(crate) step: Step,
    /// When somebody worked on it last, by ClickHouse's clock, in seconds before now.
    pub(crate) idle_seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> NaiveDate {
        text.parse().unwrap()
    }

    fn plan() -> Plan {
        let days = ["2026-10-30", "2026-10-31", "2026-11-01", "2026-11-21"].map(day).into();
        let touched = ["2026-10-30"].map(day).into();
        let range = Range { partition: 1, src: 65_537, from: 5, to: 9 };
        let live = BTreeMap::from([(65_536, 70), (65_537, 80)]);
        Plan::new(Generation(4), Generation(3), vec![range], live, &days, &touched, Some(day("2026-11-21")))
    }

    #[test]
    fn closed_days_outside_the_range_are_attached_and_a_months_fold_is_computed_again() {
        let plan = plan();
        assert_eq!((plan.generation, plan.of, plan.offsets()), (4, 3, 4));
        assert_eq!(plan.attached, ["2026-10-31", "2026-11-01"].map(day).into());
        assert_eq!(plan.copied, ["2026-10-30", "2026-11-21"].map(day).into());
        assert_eq!(plan.slices, ["2026-10-30", "2026-10-31"].map(day).into());
        assert_eq!(
            plan.is_copied(),
            "1 AND NOT (src = 65536 AND koff >= 70) AND NOT (src = 65537 AND koff >= 80) \
             AND NOT (src = 65537 AND koff >= 5 AND koff < 9)"
        );
    }

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let text = serde_json::to_string(&plan()).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan());
        let recount = plan().recounting(Uuid::from_u128(7));
        let text = serde_json::to_string(&recount).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), recount);
    }

    #[test]
    fn steps_are_named_and_in_order() {
        for step in Step::ALL {
            assert_eq!(Step::named(step.name()), Some(step));
        }
        assert!(Step::ALL.is_sorted());
        assert_eq!(Step::named("else"), None);
    }
}
