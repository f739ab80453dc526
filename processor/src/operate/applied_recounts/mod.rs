//! The changes that recounts made to clicks, so that records of the log can be compared with their rows.

mod store;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use chrono::NaiveDate;
use schemas::message::Class;
use schemas::row::ClickRow;
use uuid::Uuid;

use self::store::ClassifiedRow;
pub(crate) use self::store::classified_columns;
use crate::clickhouse::StoreError;
use crate::clickhouse::statements::{Statements, next};

/// What a click's User-Agent and purpose are classified as. An empty text means unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Classification {
    pub(crate) class: String,
    pub(crate) device_type: String,
    pub(crate) browser: String,
    pub(crate) os: String,
}

impl fmt::Display for Classification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { class, device_type, browser, os } = self;
        let known = [class, device_type, browser, os].map(|text| if text.is_empty() { "-" } else { text });
        f.write_str(&known.join("/"))
    }
}

impl Classification {
    /// Returns the classification of a row.
    pub(crate) fn of(row: &ClickRow) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self {
            class: row.click.class.as_str().to_owned(),
            device_type: text(&row.click.device_type),
            browser: text(&row.click.browser),
            os: text(&row.click.os),
        }
    }
}

/// The recounts that were applied to each day.
#[derive(Debug, Default)]
pub(crate) struct AppliedRecounts {
    /// The changes of each recount, by User-Agent and purpose.
    classifications: HashMap<Uuid, HashMap<String, HashMap<String, Classification>>>,
    /// The recounts of each day, oldest first.
    days: BTreeMap<NaiveDate, Vec<Uuid>>,
}

impl AppliedRecounts {
    /// Reads the recounts from ClickHouse.
    pub(crate) async fn read(statements: &Statements) -> Result<Self, StoreError> {
        let mut applied = Self::default();
        for (day, recount) in store::days(statements).await? {
            if let (Ok(day), Ok(recount)) = (day.parse(), recount.parse()) {
                applied.days.entry(day).or_default().push(recount);
            }
        }
        let mut rows = store::classifications(statements)?;
        while let Some(row) = next(&mut rows).await? {
            let ClassifiedRow { recount, agent, why, kind, device, program, system } = row;
            let classification =
                Classification { class: kind, device_type: device, browser: program, os: system };
            let classifications = applied.classifications.entry(recount).or_default();
            classifications.entry(agent).or_default().insert(why, classification);
        }
        Ok(applied)
    }

    /// Applies the recounts to a click of the log; returns whether that changes it.
    pub(crate) fn apply(&self, row: &mut ClickRow) -> bool {
        let Some(user_agent) = &row.click.user_agent else { return false };
        let Some(recounts) = self.days.get(&row.broker_ts.date_naive()) else { return false };
        let purpose = row.click.purpose.as_deref().unwrap_or_default();
        let classification = |recount| self.classifications.get(recount)?.get(user_agent)?.get(purpose);
        let classification = recounts.iter().rev().find_map(classification);
        let Some(classification) =
            classification.filter(|classification| **classification != Classification::of(row))
        else {
            return false;
        };
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let click = &mut row.click;
        click.class = class(&classification.class).unwrap_or(click.class);
        click.device_type = text(&classification.device_type);
        click.browser = text(&classification.browser);
        click.os = text(&classification.os);
        true
    }
}

fn class(name: &str) -> Option<Class> {
    [Class::Human, Class::Bot, Class::Preview].into_iter().find(|class| class.as_str() == name)
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};

    use super::*;
    use crate::pipeline::batch::tests::row;

    #[test]
    fn the_last_recount_of_a_day_and_user_agent_applies() {
        let classification = |class: &str| {
            let class = class.to_owned();
            let classification = Classification {
                class,
                device_type: "other".to_owned(),
                browser: String::new(),
                os: String::new(),
            };
            HashMap::from([(String::new(), classification)])
        };
        let (first, last) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let classifications = HashMap::from([
            (
                first,
                HashMap::from([
                    ("one".to_owned(), classification("bot")),
                    ("both".to_owned(), classification("bot")),
                ]),
            ),
            (last, HashMap::from([("both".to_owned(), classification("preview"))])),
        ]);
        let day = |text: &str| text.parse::<NaiveDate>().unwrap();
        let days = BTreeMap::from([(day("2026-11-20"), vec![first, last]), (day("2026-11-21"), vec![first])]);
        let applied = AppliedRecounts { classifications, days };
        let read = |day: &str, user_agent: Option<&str>| {
            let at: DateTime<Utc> = format!("{day}T12:00:00Z").parse().unwrap();
            let mut row = row(7, "click", false, at);
            row.click.user_agent = user_agent.map(str::to_owned);
            row.click.purpose = None;
            let changed = applied.apply(&mut row);
            assert_eq!(changed, row.click.class != Class::Human);
            row.click.class
        };
        assert_eq!(read("2026-11-20", Some("both")), Class::Preview);
        assert_eq!(read("2026-11-20", Some("one")), Class::Bot);
        assert_eq!(read("2026-11-21", Some("both")), Class::Bot);
        assert_eq!(read("2026-11-22", Some("both")), Class::Human);
        assert_eq!(read("2026-11-20", Some("another")), Class::Human);
        assert_eq!(read("2026-11-20", None), Class::Human);
    }
}
