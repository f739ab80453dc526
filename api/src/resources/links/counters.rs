//! Total and unique clicks and conversions of links, as far as they can be had in time.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use service::http::ApiError;
use uuid::Uuid;

use crate::app::App;
use crate::store::clicks;
use crate::store::clicks::{Classes, Count, Of, Question, Snapshot, known};
use crate::web::dates::Window;

/// The counters of some links, or that they are not known.
///
/// ClickHouse unreachable or slow leaves them unknown: a null in the answer, never a made-up number.
#[derive(Debug)]
pub(super) struct Counters(Option<Known>);

#[derive(Debug)]
struct Known {
    by_link: HashMap<Uuid, Count>,
    as_of: Option<DateTime<Utc>>,
}

/// Which clicks count: those of some classes in a window, as far as the broker had taken them at an instant, if one is
/// given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    pub(super) window: Window,
    pub(super) classes: Classes,
    pub(super) taken_until: Option<DateTime<Utc>>,
}

impl Counted {
    fn question<'a>(&self, workspace: Uuid, of: Of<'a>) -> Question<'a> {
        Question {
            workspace,
            of,
            classes: self.classes,
            window: self.window.into(),
            taken_until: self.taken_until.map(|instant| instant.timestamp_millis()),
        }
    }
}

impl From<Window> for Counted {
    /// The human clicks of a window.
    fn from(window: Window) -> Self {
        Self { window, classes: Classes::HUMAN, taken_until: None }
    }
}

impl Counters {
    /// Reads the counters of `links`.
    pub(super) async fn read(app: &App, workspace: Uuid, counted: Counted, links: &[Uuid]) -> Self {
        if links.is_empty() {
            return Self(Some(Known { by_link: HashMap::new(), as_of: None }));
        }
        let queries = &app.clicks.counters;
        let question = counted.question(workspace, Of::Links(links));
        let counters = queries.with_permit(workspace, async {
            let snapshot = Snapshot::read(queries, &question).await?;
            let by_link = clicks::by_link(queries, &snapshot, &question).await?;
            Ok(Known { by_link: by_link.into_iter().collect(), as_of: snapshot.as_of })
        });
        Self(known(counters.await))
    }

    /// Total and unique clicks of a link; no row means no click.
    pub(super) fn of(&self, link: Uuid) -> Option<(u64, u64)> {
        let known = self.0.as_ref()?;
        let count = known.by_link.get(&link).copied().unwrap_or_default();
        Some((count.total, count.unique))
    }

    /// Up to when every click is counted, by the broker's clock.
    pub(super) fn as_of(&self) -> Option<DateTime<Utc>> {
        self.0.as_ref().and_then(|known| known.as_of)
    }

    /// Refuses to go on without the numbers.
    pub(super) fn require(self) -> Result<Self, ApiError> {
        if self.0.is_none() {
            return Err(ApiError::unavailable("the counters are not known"));
        }
        Ok(self)
    }
}

/// The conversions of some links, or that they are not known.
#[derive(Debug)]
pub(super) struct Conversions(Option<HashMap<Uuid, u64>>);

impl Conversions {
    /// Reads the conversions of `links`, whenever their clicks were taken.
    pub(super) async fn read(app: &App, workspace: Uuid, counted: Counted, links: &[Uuid]) -> Self {
        if links.is_empty() {
            return Self(Some(HashMap::new()));
        }
        let queries = &app.clicks.counters;
        let question = counted.question(workspace, Of::Links(links));
        let conversions = queries.with_permit(workspace, clicks::conversions_by_link(queries, &question));
        Self(known(conversions.await))
    }

    /// The conversions of a link: at most its clicks, which were counted at another moment.
    pub(super) fn of(&self, link: Uuid, counters: &Counters) -> Option<u64> {
        let conversions = self.0.as_ref()?.get(&link).copied().unwrap_or_default();
        Some(counters.of(link).map_or(conversions, |(clicks, _)| conversions.min(clicks)))
    }
}

/// Total clicks of every link of a workspace that has any, for an order by them.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) links: Vec<Uuid>,
    pub(super) totals: Vec<i64>,
}

impl Totals {
    /// Reads the totals of a workspace's links.
    ///
    /// # Errors
    /// `UNAVAILABLE` when ClickHouse is out of reach or slow: without numbers there is no order.
    pub(super) async fn read(app: &App, workspace: Uuid, counted: Counted) -> Result<Self, ApiError> {
        let queries = &app.clicks.counters;
        let question = counted.question(workspace, Of::EachLink);
        let totals = queries.with_permit(workspace, async {
            let snapshot = Snapshot::read(queries, &question).await?;
            clicks::totals_of_all(queries, &snapshot, &question).await
        });
        let (links, totals) = totals.await?.into_iter().unzip();
        Ok(Self { links, totals })
    }
}
