//! What recounts have made of clicks: without it, a log and its rows would seem to differ.

use std::collections::{BTreeMap, HashMap};

use clickhouse::Client;
use schemas::clickhouse::CURRENT_GENERATION;
use schemas::message::Class;
use schemas::row::ClickRow;
use serde::Deserialize;
use uuid::Uuid;

use super::store::in_time;
use crate::store::StoreError;

/// What a click's User-Agent and purpose say by some rules. A text that is empty is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) class: String,
    pub(crate) device_type: String,
    pub(crate) browser: String,
    pub(crate) os: String,
}

impl Reading {
    /// Returns what a row says.
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

/// The recounts that the current tables have been through, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Applied(Vec<Recount>);

#[derive(Debug)]
struct Recount {
    /// It was of the clicks of these sources below these offsets.
    before: BTreeMap<u32, u64>,
    /// What it has changed, by User-Agent and purpose.
    readings: HashMap<String, HashMap<String, Reading>>,
}

/// What of the plan of a rebuild is needed here.
#[derive(Deserialize)]
struct Planned {
    #[serde(default)]
    recount: Option<Uuid>,
    live: BTreeMap<u32, u64>,
}

impl Applied {
    /// Reads them; a recount that was never switched to has changed nothing.
    pub(crate) async fn read(client: &Client) -> Result<Self, StoreError> {
        // The current generation is made of all former ones, so each plan that was switched to is in it.
        let sql = format!(
            "SELECT argMax(plan, rebuilds.at) FROM rebuilds \
             WHERE generation IN (SELECT generation FROM generations) AND generation <= ({CURRENT_GENERATION}) \
             GROUP BY generation ORDER BY generation"
        );
        let plans: Vec<String> = in_time(client.query(&sql).fetch_all()).await?;
        let mut applied = Self::default();
        for plan in plans {
            // What cannot be read is of a newer version, which has no reason to be asked by this one.
            let Ok(Planned { recount: Some(recount), live }) = serde_json::from_str(&plan) else { continue };
            let sql = format!(
                "SELECT user_agent, purpose, toString(class), toString(device_type), toString(browser), toString(os) \
                 FROM recounts WHERE recount = toUUID('{recount}')"
            );
            let rows: Vec<(String, String, String, String, String, String)> =
                in_time(client.query(&sql).fetch_all()).await?;
            let mut readings: HashMap<String, HashMap<String, Reading>> = HashMap::new();
            for (user_agent, purpose, class, device_type, browser, os) in rows {
                let reading = Reading { class, device_type, browser, os };
                readings.entry(user_agent).or_default().insert(purpose, reading);
            }
            applied.0.push(Recount { before: live, readings });
        }
        Ok(applied)
    }

    /// Gives a click of the log what recounts have made of it, and returns whether that is something else.
    pub(crate) fn apply(&self, row: &mut ClickRow) -> bool {
        let Some(user_agent) = &row.click.user_agent else { return false };
        let purpose = row.click.purpose.as_deref().unwrap_or_default();
        let of_row =
            |recount: &&Recount| recount.before.get(&row.src).is_some_and(|before| row.koff < *before);
        let mut readings = self.0.iter().rev().filter(of_row);
        let reading = readings.find_map(|recount| recount.readings.get(user_agent)?.get(purpose));
        let Some(reading) = reading.filter(|reading| **reading != Reading::of(row)) else { return false };
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let click = &mut row.click;
        click.class = class(&reading.class).unwrap_or(click.class);
        click.device_type = text(&reading.device_type);
        click.browser = text(&reading.browser);
        click.os = text(&reading.os);
        true
    }
}

fn class(name: &str) -> Option<Class> {
    [Class::Human, Class::Bot, Class::Preview].into_iter().find(|class| class.as_str() == name)
}

#[cfg(test)]
mod tests {
    use chrono::Utc;

    use super::*;
    use crate::batch::tests::row;

    fn recount(before: u64, class: &str) -> Recount {
        let reading = Reading {
            class: class.to_owned(),
            device_type: "other".to_owned(),
            browser: String::new(),
            os: String::new(),
        };
        let of_purpose = HashMap::from([(String::new(), reading)]);
        Recount {
            before: BTreeMap::from([(65_536, before)]),
            readings: HashMap::from([("agent".to_owned(), of_purpose)]),
        }
    }

    #[test]
    fn the_last_recount_of_a_position_counts_and_later_clicks_stay_as_they_are() {
        let applied = Applied(vec![recount(10, "bot"), recount(20, "preview")]);
        let read = |koff: u64, user_agent: Option<&str>| {
            let mut row = row(koff, "click", false, Utc::now());
            row.click.user_agent = user_agent.map(str::to_owned);
            row.click.purpose = None;
            let changed = applied.apply(&mut row);
            assert_eq!(changed, row.click.class != Class::Human);
            row.click.class
        };
        assert_eq!(read(5, Some("agent")), Class::Preview);
        assert_eq!(read(15, Some("agent")), Class::Preview);
        assert_eq!(read(20, Some("agent")), Class::Human);
        assert_eq!(read(5, Some("another")), Class::Human);
        assert_eq!(read(5, None), Class::Human);
        let first = Applied(vec![recount(10, "bot")]);
        let mut late = row(10, "click", false, Utc::now());
        late.click.user_agent = Some("agent".to_owned());
        assert!(!first.apply(&mut late));
    }
}
