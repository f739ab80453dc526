//! Plans: what an account may do, and its limits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use service::http::ApiError;

/// A plan. It is read on every request, so a change applies at once, also to existing keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Plan {
    /// The smallest.
    Free,
    /// The smallest paid one.
    Starter,
    /// For one person's work.
    Pro,
    /// For work for others.
    Agency,
    /// The largest.
    Business,
}

impl Plan {
    /// Every plan.
    pub(crate) const ALL: [Self; 5] = [Self::Free, Self::Starter, Self::Pro, Self::Agency, Self::Business];

    /// The name in the database, on the command line and in answers.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Starter => "starter",
            Self::Pro => "pro",
            Self::Agency => "agency",
            Self::Business => "business",
        }
    }

    /// Returns whether keys may write, and webhooks are managed and delivered.
    ///
    /// Not part of the table that an operator can replace: the specification names the plans, and the dispatcher knows
    /// only the plan.
    pub(crate) const fn has_write(self) -> bool {
        matches!(self, Self::Agency | Self::Business)
    }

    /// Fails with `PLAN_REQUIRED` on a plan without write access.
    pub(crate) fn require_write(self) -> Result<(), ApiError> {
        if self.has_write() {
            return Ok(());
        }
        Err(ApiError::plan_required(format!(
            "The {self} plan does not include write access over the API. Agency and Business do."
        )))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not the name of a plan.
#[derive(Debug, thiserror::Error)]
#[error("unknown plan {0:?}")]
pub(crate) struct UnknownPlan(String);

impl FromStr for Plan {
    type Err = UnknownPlan;

    fn from_str(text: &str) -> Result<Self, UnknownPlan> {
        Self::ALL.into_iter().find(|plan| plan.as_str() == text).ok_or_else(|| UnknownPlan(text.to_owned()))
    }
}

impl TryFrom<String> for Plan {
    type Error = UnknownPlan;

    fn try_from(text: String) -> Result<Self, UnknownPlan> {
        text.parse()
    }
}

/// The limits of each plan: the built-in table, or an operator's.
///
/// Read once at the start. After a change of a cap, `api admin set-plan` locks and unlocks links.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plans {
    free: Terms,
    starter: Terms,
    pro: Terms,
    agency: Terms,
    business: Terms,
}

/// The limits of a plan.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Terms {
    #[serde(deserialize_with = "number_or_null")]
    requests_per_minute: Option<i64>,
    #[serde(deserialize_with = "number_or_null")]
    links: Option<i64>,
    retention_days: u64,
}

/// Unlimited is an explicit null: a missing number is an error.
fn number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    Option::deserialize(deserializer)
}

/// The largest limit of requests per minute; larger numbers mean unlimited in the headers.
const MOST_REQUESTS: i64 = 1_000_000_000;

/// The largest cap on links.
const MOST_LINKS: i64 = 1_000_000_000;

/// The longest retention: a hundred years.
const MOST_DAYS: u64 = 36_500;

/// An error in a table of plans.
#[derive(Debug, thiserror::Error)]
pub enum PlansFault {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// The JSON is malformed, or a plan or a number is missing.
    #[error("is not a table of plans: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A number is out of range.
    #[error("{plan}.{field} must be from 1 to {most}{}", if *.nullable { ", or null for unlimited" } else { "" })]
    OutOfRange {
        /// The plan's name.
        plan: &'static str,
        /// The number's name.
        field: &'static str,
        /// The largest number that is allowed.
        most: u64,
        /// Whether null is allowed.
        nullable: bool,
    },
}

impl Plans {
    /// Returns the built-in table.
    ///
    /// # Errors
    /// Never: a test parses the same text.
    pub fn built_in() -> Result<Self, PlansFault> {
        Self::parse(include_str!("../plans.json"))
    }

    /// Reads an operator's table.
    ///
    /// # Errors
    /// When the file cannot be read, a plan or a number is missing or unknown, or a number is out of range.
    pub fn read(path: &str) -> Result<Self, PlansFault> {
        Self::parse(&std::fs::read_to_string(path)?)
    }

    fn parse(text: &str) -> Result<Self, PlansFault> {
        let plans: Self = serde_json::from_str(text)?;
        for plan in Plan::ALL {
            plans.terms(plan).check(plan.as_str())?;
        }
        Ok(plans)
    }

    const fn terms(&self, plan: Plan) -> &Terms {
        match plan {
            Plan::Free => &self.free,
            Plan::Starter => &self.starter,
            Plan::Pro => &self.pro,
            Plan::Agency => &self.agency,
            Plan::Business => &self.business,
        }
    }

    /// Returns the cap on links over all workspaces of an account; `None` is unlimited.
    pub(crate) const fn link_cap(&self, plan: Plan) -> Option<i64> {
        self.terms(plan).links
    }

    /// Returns how many bytes of files an account may send to be imported on one day.
    pub(crate) const fn import_bytes_per_day(&self, plan: Plan) -> i64 {
        if self.link_cap(plan).is_some() { 1 << 30 } else { 8 << 30 }
    }

    /// Returns the requests per minute over all keys of an account; `None` is unlimited.
    pub(crate) const fn requests_per_minute(&self, plan: Plan) -> Option<i64> {
        self.terms(plan).requests_per_minute
    }

    /// Returns how many days before today queries reach.
    pub(crate) const fn retention_days(&self, plan: Plan) -> u64 {
        self.terms(plan).retention_days
    }
}

impl Terms {
    fn check(&self, plan: &'static str) -> Result<(), PlansFault> {
        let at_most = |field, number: Option<i64>, most: i64| match number {
            Some(number) if !(1..=most).contains(&number) => {
                Err(PlansFault::OutOfRange { plan, field, most: most.unsigned_abs(), nullable: true })
            }
            _ => Ok(()),
        };
        at_most("requests_per_minute", self.requests_per_minute, MOST_REQUESTS)?;
        at_most("links", self.links, MOST_LINKS)?;
        if !(1..=MOST_DAYS).contains(&self.retention_days) {
            let field = "retention_days";
            return Err(PlansFault::OutOfRange { plan, field, most: MOST_DAYS, nullable: false });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn table() -> Value {
        serde_json::from_str(include_str!("../plans.json")).unwrap()
    }

    fn fault(change: impl FnOnce(&mut Value)) -> String {
        let mut table = table();
        change(&mut table);
        Plans::parse(&table.to_string()).unwrap_err().to_string()
    }

    #[test]
    fn the_built_in_table_is_the_documented_one() {
        let plans = Plans::built_in().unwrap();
        let rows = Plan::ALL.map(|plan| {
            (
                plan.as_str(),
                plans.requests_per_minute(plan),
                plans.link_cap(plan),
                plans.retention_days(plan),
                plan.has_write(),
            )
        });
        assert_eq!(
            rows,
            [
                ("free", Some(60), Some(25), 30, false),
                ("starter", Some(120), Some(250), 90, false),
                ("pro", Some(300), Some(2_500), 365, false),
                ("agency", Some(600), Some(25_000), 730, true),
                ("business", None, None, 1_095, true),
            ]
        );
    }

    #[test]
    fn a_plan_that_is_missing_or_unknown_is_named() {
        assert!(fault(|table| drop(table.as_object_mut().unwrap().remove("pro"))).contains("`pro`"));
        assert!(fault(|table| table["gold"] = json!({})).contains("`gold`"));
        let twice = include_str!("../plans.json").replacen("\"starter\"", "\"free\"", 1);
        assert!(Plans::parse(&twice).unwrap_err().to_string().contains("`free`"));
    }

    #[test]
    fn a_missing_or_invalid_number_is_named() {
        let missing = fault(|table| drop(table["free"].as_object_mut().unwrap().remove("links")));
        assert!(missing.contains("`links`"), "only null means unlimited: {missing}");
        for (field, bad) in [
            ("links", json!(0)),
            ("links", json!(-1)),
            ("links", json!(1_000_000_001_i64)),
            ("requests_per_minute", json!(0)),
            ("requests_per_minute", json!(2_147_483_647_i64)),
            ("retention_days", json!(0)),
            ("retention_days", json!(36_501)),
        ] {
            let fault = fault(|table| table["agency"][field] = bad.clone());
            assert!(fault.starts_with(&format!("agency.{field} must be from 1 to ")), "{bad}: {fault}");
        }
        for (field, bad) in
            [("retention_days", json!(null)), ("links", json!("many")), ("webhooks", json!(true))]
        {
            assert!(!fault(|table| table["agency"][field] = bad.clone()).is_empty());
        }
    }
}
