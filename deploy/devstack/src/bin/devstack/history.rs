//! Two months of demo clicks on a small coffee shop's links, the same in each run.

mod dice;

use chrono::{DateTime, Datelike as _, TimeDelta, Timelike as _, Utc};
use dice::Dice;
use schemas::click_id::RANDOM_LEN;
use schemas::message::Class;
use serde::Deserialize;

/// How many percent of people's clicks are by somebody who has clicked the link before.
const RETURNING_PERCENT: u64 = 30;
/// How many clicks of bots and previews there are, in percent of people's clicks.
const BOT_PERCENT: u64 = 9;
const PREVIEW_PERCENT: u64 = 6;

/// The traffic of each hour of a day (UTC), and of each day of a week from Monday; 1 is the average.
const HOURS: [f64; 24] = [
    0.4, 0.3, 0.25, 0.2, 0.2, 0.25, 0.45, 0.75, 1.05, 1.25, 1.3, 1.3, 1.3, 1.4, 1.45, 1.5, 1.55, 1.55, 1.6,
    1.65, 1.5, 1.25, 0.85, 0.6,
];
const WEEKDAYS: [f64; 7] = [1.05, 1.18, 1.15, 1.1, 1.02, 0.78, 0.72];

/// The links and their visitors.
#[derive(Deserialize)]
pub(crate) struct Data {
    pub(crate) links: Vec<Link>,
    /// Countries and their shares of visitors.
    #[serde(borrow)]
    countries: Vec<(&'static str, u64)>,
    browsers: Vec<Agent>,
    bots: Vec<Agent>,
    previews: Vec<Agent>,
}

/// A link and its traffic.
#[derive(Deserialize)]
pub(crate) struct Link {
    pub(crate) slug: &'static str,
    pub(crate) name: &'static str,
    pub(crate) destination: &'static str,
    pub(crate) tags: Vec<&'static str>,
    /// Clicks of people on an average day.
    per_day: f64,
    pub(crate) age_days: i64,
    trend: Trend,
    /// How many of a thousand people's clicks convert.
    converts_per_mille: u64,
    sources: Vec<Source>,
}

/// How the traffic of a link changes over time.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Trend {
    Steady,
    Growing,
    /// Most clicks come in the first days.
    Launch,
}

impl Trend {
    /// Returns the traffic this number of hours after the link's creation; 1 is the average.
    fn at(&self, hours: i64) -> f64 {
        let days = hours as f64 / 24.0;
        match self {
            Self::Steady => 1.0,
            Self::Growing => 0.65 + days / 85.0,
            Self::Launch => 0.25 + 5.0 * (-days / 2.5).exp(),
        }
    }
}

/// A source of clicks.
#[derive(Clone, Copy, Deserialize)]
pub(crate) struct Source {
    pub(crate) referrer: Option<&'static str>,
    /// Source, medium and campaign.
    pub(crate) utm: Option<[&'static str; 3]>,
    share: u64,
}

/// A User-Agent and the fields that the edge derives from it.
#[derive(Clone, Copy, Deserialize)]
pub(crate) struct Agent {
    pub(crate) user_agent: &'static str,
    pub(crate) device_type: &'static str,
    pub(crate) browser: Option<&'static str>,
    pub(crate) os: Option<&'static str>,
    share: u64,
}

#[derive(Clone, Copy)]
struct Person {
    visitor: u64,
    country: &'static str,
    agent: Agent,
}

/// One click.
pub(crate) struct Visit {
    pub(crate) at: DateTime<Utc>,
    pub(crate) class: Class,
    /// The visitor's hash; the same for each click of one person.
    pub(crate) visitor: u64,
    pub(crate) country: &'static str,
    pub(crate) agent: Agent,
    /// `None` for bots and previews.
    pub(crate) source: Option<Source>,
    pub(crate) converts: bool,
    /// The random part of the click's id.
    pub(crate) random: [u8; RANDOM_LEN],
}

impl Link {
    /// Returns when the link was created, for a history that ends at `end`.
    pub(crate) fn created_at(&self, end: DateTime<Utc>) -> DateTime<Utc> {
        schemas::time::to_millis(end - TimeDelta::days(self.age_days) + TimeDelta::minutes(7))
    }
}

impl Data {
    pub(crate) fn load() -> serde_json::Result<Self> {
        serde_json::from_str(include_str!("history/data.json"))
    }

    /// Returns the clicks of a link from its creation to `end`, oldest first.
    pub(crate) fn visits(&self, link: &Link, end: DateTime<Utc>) -> Vec<Visit> {
        let mut dice = Dice::new(link.slug);
        let began = link.created_at(end);
        let mut people: Vec<Person> = Vec::new();
        let mut visits = Vec::new();
        let mut hour = began;
        while hour < end {
            let length = (end - hour).min(TimeDelta::hours(1));
            let share = length.num_milliseconds() as f64 / 3_600_000.0;
            let traffic =
                HOURS[hour.hour() as usize] * WEEKDAYS[hour.weekday().num_days_from_monday() as usize];
            let expected = link.per_day / 24.0 * traffic * link.trend.at((hour - began).num_hours()) * share;
            for _ in 0..dice.round(expected) {
                let at = |dice: &mut Dice| {
                    hour + TimeDelta::milliseconds(dice.below(length.num_milliseconds() as u64) as i64)
                };
                let is_known = !people.is_empty() && dice.below(100) < RETURNING_PERCENT;
                let person = if is_known {
                    people[dice.below(people.len() as u64) as usize]
                } else {
                    let (country, _) = dice.choose(&self.countries, |(_, share)| *share);
                    let agent = dice.choose(&self.browsers, |agent| agent.share);
                    let person = Person { visitor: dice.next(), country, agent };
                    people.push(person);
                    person
                };
                visits.push(Visit {
                    at: at(&mut dice),
                    class: Class::Human,
                    visitor: person.visitor,
                    country: person.country,
                    agent: person.agent,
                    source: Some(dice.choose(&link.sources, |source| source.share)),
                    converts: dice.below(1_000) < link.converts_per_mille,
                    random: dice.bytes(),
                });
                for (percent, class, agents) in
                    [(BOT_PERCENT, Class::Bot, &self.bots), (PREVIEW_PERCENT, Class::Preview, &self.previews)]
                {
                    if dice.below(100) < percent {
                        visits.push(Visit {
                            at: at(&mut dice),
                            class,
                            // Bots run on few machines.
                            visitor: dice.below(40),
                            country: "US",
                            agent: dice.choose(agents, |agent| agent.share),
                            source: None,
                            converts: false,
                            random: dice.bytes(),
                        });
                    }
                }
            }
            hour += length;
        }
        visits.sort_by_key(|visit| visit.at);
        visits
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn end() -> DateTime<Utc> {
        "2026-11-22T14:20:00Z".parse().unwrap()
    }

    fn all() -> Vec<Visit> {
        let data = Data::load().unwrap();
        data.links.iter().flat_map(|link| data.visits(link, end())).collect()
    }

    #[test]
    fn clicks_are_deterministic_and_after_the_links_creation() {
        let data = Data::load().unwrap();
        for link in &data.links {
            let (first, second) = (data.visits(link, end()), data.visits(link, end()));
            let keys =
                |visits: &[Visit]| -> Vec<_> { visits.iter().map(|v| (v.at, v.visitor, v.random)).collect() };
            assert_eq!(keys(&first), keys(&second));
            assert!(
                first.iter().all(|visit| (link.created_at(end())..end()).contains(&visit.at)),
                "{}",
                link.slug
            );
            assert!(first.len() > 20, "{} has {}", link.slug, first.len());
        }
    }

    #[test]
    fn some_visitors_return_and_some_convert() {
        let visits = all();
        let of = |class: Class| visits.iter().filter(|visit| visit.class == class).count();
        let (people, bots, previews) = (of(Class::Human), of(Class::Bot), of(Class::Preview));
        assert!((12_000..30_000).contains(&people), "{people}");
        assert!(bots > people / 20 && previews > people / 40, "{bots} {previews}");
        let human = visits.iter().filter(|visit| visit.class == Class::Human);
        let visitors: BTreeSet<u64> = human.map(|visit| visit.visitor).collect();
        assert!((people / 2..people * 9 / 10).contains(&visitors.len()), "{} of {people}", visitors.len());
        // The rate limit is 600 requests a minute for an address.
        let conversions = visits.iter().filter(|visit| visit.converts).count();
        assert!((100..400).contains(&conversions), "{conversions}");
    }

    #[test]
    fn days_have_more_clicks_than_nights_and_weekends() {
        let (mut by_hour, mut by_day) = (BTreeMap::new(), BTreeMap::new());
        for visit in all() {
            *by_hour.entry(visit.at.hour()).or_insert(0) += 1;
            *by_day.entry(visit.at.weekday().num_days_from_monday()).or_insert(0) += 1;
        }
        assert!(by_hour[&18] > 3 * by_hour[&3], "{by_hour:?}");
        assert!(by_day[&1] > by_day[&6], "{by_day:?}");
    }
}
