//! Two believable months of a small shop's links: what was clicked, when and by whom. They are the same at each run.

mod links;
mod people;

use chrono::{DateTime, Datelike as _, TimeDelta, Timelike as _, Utc};
use schemas::click_id::RANDOM_LEN;
use schemas::message::Class;

pub(crate) use links::{LINKS, Link, Source};
use people::{Agent, BOTS, PREVIEWS, Person};

/// How many days there are clicks of: a month, and one to compare it with.
pub(crate) const DAYS: i64 = 60;

/// Of a hundred clicks of people, how many are by somebody who has clicked the link before.
const RETURNING_PERCENT: u64 = 30;
/// For a hundred clicks of people, how many bots and previews come on top.
const BOT_PERCENT: u64 = 9;
const PREVIEW_PERCENT: u64 = 6;

/// How busy each hour of a day is (UTC), and each day of a week from Monday; 1 is the average.
const HOURS: [f64; 24] = [
    0.4, 0.3, 0.25, 0.2, 0.2, 0.25, 0.45, 0.75, 1.05, 1.25, 1.3, 1.3, 1.3, 1.4, 1.45, 1.5, 1.55, 1.55, 1.6,
    1.65, 1.5, 1.25, 0.85, 0.6,
];
const WEEKDAYS: [f64; 7] = [1.05, 1.18, 1.15, 1.1, 1.02, 0.78, 0.72];

/// One click.
pub(crate) struct Visit {
    pub(crate) at: DateTime<Utc>,
    pub(crate) class: Class,
    /// What the visitor's hash is taken from; the same for each click of one person.
    pub(crate) visitor: u64,
    pub(crate) country: &'static str,
    pub(crate) agent: &'static Agent,
    /// Programs have none.
    pub(crate) source: Option<&'static Source>,
    pub(crate) converts: bool,
    /// For the click's id.
    pub(crate) random: [u8; RANDOM_LEN],
}

/// When a link was created, for a history that ends at `end`.
pub(crate) fn created_at(link: &Link, end: DateTime<Utc>) -> DateTime<Utc> {
    schemas::time::to_millis(end - TimeDelta::days(link.age_days) + TimeDelta::minutes(7))
}

/// The clicks of a link from its creation to `end`, oldest first.
pub(crate) fn visits(link: &Link, end: DateTime<Utc>) -> Vec<Visit> {
    let mut dice = Dice(link.slug.bytes().fold(7, |seed, byte| seed.wrapping_mul(31) + u64::from(byte)));
    let began = created_at(link, end);
    let mut people: Vec<Person> = Vec::new();
    let mut visits = Vec::new();
    let mut hour = began;
    while hour < end {
        let length = (end - hour).min(TimeDelta::hours(1));
        let share = length.num_milliseconds() as f64 / 3_600_000.0;
        let busy = HOURS[hour.hour() as usize] * WEEKDAYS[hour.weekday().num_days_from_monday() as usize];
        let expected = link.per_day / 24.0 * busy * link.course.at((hour - began).num_hours()) * share;
        for _ in 0..dice.round(expected) {
            let at = |dice: &mut Dice| {
                hour + TimeDelta::milliseconds(dice.below(length.num_milliseconds() as u64) as i64)
            };
            let is_known = !people.is_empty() && dice.below(100) < RETURNING_PERCENT;
            let person = if is_known {
                people[dice.below(people.len() as u64) as usize]
            } else {
                let person = Person::new(&mut dice);
                people.push(person);
                person
            };
            visits.push(Visit {
                at: at(&mut dice),
                class: Class::Human,
                visitor: person.visitor,
                country: person.country,
                agent: person.agent,
                source: dice.choose(link.sources, |source| source.share),
                converts: dice.below(1_000) < link.converts_per_mille,
                random: dice.bytes(),
            });
            for (percent, class, agents) in
                [(BOT_PERCENT, Class::Bot, BOTS), (PREVIEW_PERCENT, Class::Preview, PREVIEWS)]
            {
                if dice.below(100) < percent {
                    visits.push(Visit {
                        at: at(&mut dice),
                        class,
                        // Programs come from few machines.
                        visitor: dice.below(40),
                        country: "US",
                        agent: dice.choose(agents, |agent| agent.share).unwrap_or(&agents[0]),
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

/// Numbers that look random and are the same at each run (SplitMix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `limit` - 1.
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A whole number that is `expected` on average.
    fn round(&mut self, expected: f64) -> u64 {
        (expected + self.below(1_000) as f64 / 1_000.0) as u64
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }

    /// One of the choices, by their shares.
    fn choose<T>(&mut self, choices: &'static [T], share: impl Fn(&T) -> u64) -> Option<&'static T> {
        let mut place = self.below(choices.iter().map(&share).sum::<u64>().max(1));
        choices.iter().find(|choice| match place.checked_sub(share(choice)) {
            Some(rest) => {
                place = rest;
                false
            }
            None => true,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn end() -> DateTime<Utc> {
        "2026-11-22T14:20:00Z".parse().unwrap()
    }

    fn all() -> Vec<Visit> {
        LINKS.iter().flat_map(|link| visits(link, end())).collect()
    }

    #[test]
    fn clicks_are_the_same_at_each_run_and_lie_between_creation_and_end() {
        for link in &LINKS {
            let (first, second) = (visits(link, end()), visits(link, end()));
            let seen =
                |visits: &[Visit]| -> Vec<_> { visits.iter().map(|v| (v.at, v.visitor, v.random)).collect() };
            assert_eq!(seen(&first), seen(&second));
            assert!(
                first.iter().all(|visit| (created_at(link, end())..end()).contains(&visit.at)),
                "{}",
                link.slug
            );
            assert!(first.len() > 20, "{} has {}", link.slug, first.len());
        }
    }

    #[test]
    fn there_are_people_who_return_bots_previews_and_conversions() {
        let visits = all();
        let of = |class: Class| visits.iter().filter(|visit| visit.class == class).count();
        let (people, bots, previews) = (of(Class::Human), of(Class::Bot), of(Class::Preview));
        assert!((12_000..30_000).contains(&people), "{people}");
        assert!(bots > people / 20 && previews > people / 40, "{bots} {previews}");
        let human = visits.iter().filter(|visit| visit.class == Class::Human);
        let visitors: BTreeSet<u64> = human.map(|visit| visit.visitor).collect();
        assert!((people / 2..people * 9 / 10).contains(&visitors.len()), "{} of {people}", visitors.len());
        // A minute has 600 requests for an address.
        let conversions = visits.iter().filter(|visit| visit.converts).count();
        assert!((100..400).contains(&conversions), "{conversions}");
    }

    #[test]
    fn days_are_busier_than_nights_and_weekdays_than_weekends() {
        let (mut by_hour, mut by_day) = (BTreeMap::new(), BTreeMap::new());
        for visit in all() {
            *by_hour.entry(visit.at.hour()).or_insert(0) += 1;
            *by_day.entry(visit.at.weekday().num_days_from_monday()).or_insert(0) += 1;
        }
        assert!(by_hour[&18] > 3 * by_hour[&3], "{by_hour:?}");
        assert!(by_day[&1] > by_day[&6], "{by_day:?}");
    }
}
