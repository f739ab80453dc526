//! Random clicks, their expected counts, and the closing of slices as the processor does it.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use chrono::{DateTime, Days, NaiveDate, NaiveTime, TimeDelta, Utc};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use schemas::clickhouse::rollup::{Run, Scope};
use schemas::id::{ConversionId, LinkId, WorkspaceId};
use schemas::message::{Class, Click, Conversion, Message as _, Version};
use schemas::row::{CONVERSION_COLUMNS, ClickRow, UPKEEP, write_conversion};
use serde_json::json;
use uuid::Uuid;

use crate::server::{Server, text};

/// Days before today of the earliest click.
pub(crate) const DAYS: u64 = 400;

/// Visitors of all links together: few enough for exact counts in breakdowns.
const VISITORS: u64 = 300;

const CLASSES: [Class; 5] = [Class::Human, Class::Human, Class::Human, Class::Bot, Class::Preview];

/// A dimension, the values of its clicks, and its field in a click.
pub(crate) type Dimension = (&'static str, &'static [&'static str], fn(&mut Click) -> &mut Option<String>);

/// The dimensions that vary. An empty value is unknown.
pub(crate) const DIMENSIONS: [Dimension; 4] = [
    ("country", &["", "DE", "FR", "US", "BR"], |click| &mut click.country),
    ("referrer", &["", "it's", r"back\slash", "who?", "??", "{n}", "ü.example"], |click| {
        &mut click.referrer
    }),
    ("utm_source", &["a", "b", "A", "'; DROP TABLE links; --"], |click| &mut click.utm_source),
    ("os", &["", "Linux"], |click| &mut click.os),
];

/// A stored click.
pub(crate) struct Stored {
    /// Index of its link.
    pub(crate) link: usize,
    pub(crate) row: ClickRow,
}

impl Stored {
    pub(crate) fn at(&self) -> DateTime<Utc> {
        self.row.occurred_at()
    }

    pub(crate) fn value(&self, (_, _, field): Dimension) -> String {
        field(&mut self.row.click.clone()).clone().unwrap_or_default()
    }
}

/// The clicks of one workspace, and which of them converted.
pub(crate) struct Model {
    /// The links as the API returned them.
    pub(crate) links: Vec<serde_json::Value>,
    pub(crate) clicks: Vec<Stored>,
    pub(crate) converted: HashSet<String>,
    /// Indexes of deleted links.
    pub(crate) deleted: HashSet<usize>,
}

/// Selects clicks: of a link or the workspace, of one class or all, in a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query {
    pub(crate) link: Option<usize>,
    pub(crate) class: Option<Class>,
    pub(crate) start: DateTime<Utc>,
    pub(crate) end: DateTime<Utc>,
}

/// Clicks and distinct visitors.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) total: u64,
    pub(crate) visitors: HashSet<u64>,
}

impl Numbers {
    pub(crate) fn of<'a>(clicks: impl IntoIterator<Item = &'a Stored>) -> Self {
        let mut numbers = Self::default();
        for click in clicks {
            numbers.total += 1;
            numbers.visitors.insert(click.row.click.visitor);
        }
        numbers
    }

    pub(crate) fn json(&self) -> (serde_json::Value, serde_json::Value) {
        (json!(self.total), json!(self.visitors.len()))
    }
}

/// Returns the day of the first call, because a test may run past midnight.
pub(crate) fn today() -> NaiveDate {
    static TODAY: LazyLock<NaiveDate> = LazyLock::new(|| Utc::now().date_naive());
    *TODAY
}

pub(crate) fn midnight(days_ago: u64) -> DateTime<Utc> {
    midnight_before(today(), days_ago)
}

/// Returns the beginning of the day that is this number of days before another one.
pub(crate) fn midnight_before(day: NaiveDate, days: u64) -> DateTime<Utc> {
    (day - Days::new(days)).and_time(NaiveTime::MIN).and_utc()
}

/// Sends requests to the API, which reads the clock, too, and returns the day of all answers. Repeats the requests if
/// midnight has passed.
pub(crate) async fn within_a_day<T>(ask: impl AsyncFn(NaiveDate) -> T) -> (NaiveDate, T) {
    loop {
        let day = Utc::now().date_naive();
        let answers = ask(day).await;
        if Utc::now().date_naive() == day {
            return (day, answers);
        }
    }
}

impl Model {
    /// Creates links through the API and stores clicks of them. The same seed and day give the same clicks.
    pub(crate) async fn create(server: &Server, seed: u64, clicks: usize) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut links = Vec::new();
        for number in 0..5 {
            let body = json!({"name": format!("n{number}"), "destination": "https://example.com"});
            links.push(server.create_link(body).await);
        }
        // Few days, so that each has many clicks, including the days on which clocks change.
        let mut days: Vec<u64> = (0..40).map(|_| random.random_range(0..DAYS)).collect();
        days.extend((0..DAYS).filter(|day| has_clock_change(midnight(*day))));
        let mut stored: Vec<Stored> = (0..clicks)
            .map(|number| {
                let link = (random.random_range(0.0..25.0_f64).sqrt()) as usize;
                let day = midnight(days[random.random_range(0..days.len())]);
                let near_border = TimeDelta::milliseconds(random.random_range(-3..=3));
                let hour = TimeDelta::hours(random.random_range(0..24));
                let within = TimeDelta::milliseconds(random.random_range(0..3_600_000));
                let edge = day + hour + if random.random_bool(0.2) { near_border } else { within };
                // Some clicks arrive late, by up to ten days, and some edges' clocks are ahead.
                let late = match random.random_range(0..10) {
                    0 => TimeDelta::hours(random.random_range(0..240)),
                    1 => TimeDelta::milliseconds(random.random_range(-5..0)),
                    _ => TimeDelta::milliseconds(random.random_range(0..2_000)),
                };
                let click = click(server, &links[link], number, edge, &mut random);
                let broker_ts = (edge + late).min(Utc::now() - TimeDelta::seconds(1));
                let row = ClickRow { click, src: 1 << 16, koff: number as u64, broker_ts };
                Stored { link, row }
            })
            .filter(|click| click.at() >= midnight(DAYS))
            .collect();
        stored.sort_by_key(|click| click.row.broker_ts);
        let converted = stored
            .iter()
            .filter(|_| random.random_bool(0.1))
            .map(|click| click.row.click.click_id.clone())
            .collect();
        let model = Self { links, clicks: stored, converted, deleted: HashSet::new() };
        model.store(server).await;
        model
    }

    async fn store(&self, server: &Server) {
        store_rows(server, self.clicks.iter().map(|click| &click.row)).await;
        let mut bytes = Vec::new();
        for click in self.clicks.iter().filter(|click| self.converted.contains(&click.row.click.click_id)) {
            // Each conversion twice, because the topic is read at least once.
            for _ in 0..2 {
                write_conversion(&conversion(&click.row, click.at()), &mut bytes);
            }
        }
        store_conversions(server, bytes).await;
    }

    /// Returns the id of a link, by its index.
    pub(crate) fn link_id(&self, link: usize) -> LinkId {
        text(&self.links[link]["id"]).parse().unwrap()
    }

    /// Deletes a link, also in ClickHouse, as the processor does. Its rows stay, as before a purge.
    pub(crate) async fn delete(&mut self, server: &Server, link: usize) {
        let path = format!("/api/links/{}", self.link_id(link));
        assert_eq!(server.send(reqwest::Method::DELETE, &path, None).await.status, 204);
        let workspace = server.workspace.parse::<WorkspaceId>().unwrap().uuid();
        let values = format!("toUUID('{}'), now64(3), toUUID('{workspace}')", self.link_id(link).uuid());
        let query = format!("INSERT INTO deleted_links (link_id, deleted_at, workspace_id) SELECT {values}");
        server.engines.clickhouse(&query).await;
        self.deleted.insert(link);
    }

    /// Returns the clicks of a query.
    pub(crate) fn clicks(&self, query: Query) -> impl Iterator<Item = &Stored> {
        self.clicks.iter().filter(move |click| {
            let of = match query.link {
                Some(link) => click.link == link,
                None => !self.deleted.contains(&click.link),
            };
            let class = query.class.is_none_or(|class| click.row.click.class == class);
            of && class && click.at() >= query.start && click.at() < query.end
        })
    }

    /// Returns how many clicks of a query converted.
    pub(crate) fn conversions(&self, query: Query) -> usize {
        self.clicks(query).filter(|click| self.converted.contains(&click.row.click.click_id)).count()
    }

    /// Returns counts by a key of the clicks.
    pub(crate) fn by<K: Ord>(&self, query: Query, key: impl Fn(&Stored) -> K) -> BTreeMap<K, Numbers> {
        let mut groups: BTreeMap<K, Vec<&Stored>> = BTreeMap::new();
        for click in self.clicks(query) {
            groups.entry(key(click)).or_default().push(click);
        }
        groups.into_iter().map(|(key, clicks)| (key, Numbers::of(clicks))).collect()
    }
}

/// Returns whether a zone of the tests changes its clocks on a day.
fn has_clock_change(day: DateTime<Utc>) -> bool {
    use chrono::Offset as _;
    ["Europe/Berlin", "America/New_York", "Africa/Cairo", "America/Havana"].iter().any(|zone| {
        let zone: chrono_tz::Tz = zone.parse().unwrap();
        let offset = |at: DateTime<Utc>| at.with_timezone(&zone).offset().fix();
        offset(day) != offset(day + TimeDelta::days(1))
    })
}

fn click(
    server: &Server,
    link: &serde_json::Value,
    number: usize,
    at: DateTime<Utc>,
    random: &mut StdRng,
) -> Click {
    let mut click = Click::decode(include_bytes!("../../../schemas/fixtures/click.v1.json")).unwrap();
    click.link_id = text(&link["id"]).parse().unwrap();
    click.workspace_id = server.workspace.parse().unwrap();
    click.click_id = format!("click-{number}");
    click.visitor = random.random_range(0..VISITORS);
    click.class = CLASSES[random.random_range(0..CLASSES.len())];
    click.occurred_at = schemas::time::to_millis(at);
    for (_, values, field) in DIMENSIONS {
        let value = values[random.random_range(0..values.len())];
        *field(&mut click) = Some(value.to_owned()).filter(|value| !value.is_empty());
    }
    click
}

/// Returns a conversion of a click. `clicked_at` is the time in the click's id.
pub(crate) fn conversion(row: &ClickRow, clicked_at: DateTime<Utc>) -> Conversion {
    Conversion {
        version: Version,
        conversion_id: ConversionId::from_uuid(Uuid::from_u128(u128::from(row.koff))),
        click_id: row.click.click_id.clone(),
        link_id: row.click.link_id,
        workspace_id: row.click.workspace_id,
        clicked_at,
        converted_at: Utc::now(),
    }
}

/// Stores rows of conversions.
pub(crate) async fn store_conversions(server: &Server, bytes: Vec<u8>) {
    let query = format!("INSERT INTO conversions ({CONVERSION_COLUMNS}) FORMAT RowBinary");
    server.engines.clickhouse_insert(&query, bytes).await;
}

/// Stores raw rows unchanged.
pub(crate) async fn store_rows(server: &Server, rows: impl IntoIterator<Item = &ClickRow>) {
    let mut bytes = Vec::new();
    rows.into_iter().for_each(|row| row.write_row_binary(&mut bytes));
    let structure = schemas::row::CLICK_STRUCTURE.replace('\'', "\\'");
    let query = format!(
        "INSERT INTO clicks SELECT * FROM input('{structure}')
         SETTINGS max_partitions_per_insert_block = 0 FORMAT RowBinary"
    );
    server.engines.clickhouse_insert(&query, bytes).await;
}

/// Closes the slices of a range of days before today, as the processor's upkeep does.
pub(crate) async fn close(server: &Server, days_ago: std::ops::Range<u64>, epoch: u64) {
    let slices = days_ago.rev().map(|days_ago| (today() - Days::new(days_ago), -1)).collect();
    let run = Run { scope: Scope::All, version: epoch, slices };
    compute(server, &run, true).await;
}

/// Executes a run of the rollups. A run that does not end is not active.
pub(crate) async fn compute(server: &Server, run: &Run, ends: bool) {
    let take = format!(
        "INSERT INTO owners (src, epoch, owner, taken_at) VALUES ({UPKEEP}, {}, 'test', now())",
        run.version
    );
    server.engines.clickhouse(&take).await;
    let mut statements = run.statements();
    if !ends {
        statements.pop();
    }
    for statement in statements {
        server.engines.clickhouse(&format!("{statement} SETTINGS max_partitions_per_insert_block = 0")).await;
    }
}
