//! Clicks of many visitors on many links, and their expected counts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tests::counted::{click_ids, count};
use tests::deployment::{Deployment, click_id};
use tests::eventually;

/// Links and the clicks on them that were answered.
pub(crate) struct Traffic {
    links: Vec<(String, String)>,
    visitors: usize,
    sent: usize,
    /// The answered click ids and their visitors, by link id.
    answered: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Traffic {
    /// Creates links and waits until the edge knows them.
    pub(crate) async fn on_links(deployment: &Deployment, links: usize, visitors: usize) -> Self {
        let mut created = Vec::new();
        for _ in 0..links {
            let link = deployment.create_link().await;
            let text = |field: &str| link[field].as_str().unwrap().to_owned();
            created.push((text("id"), text("slug")));
        }
        for (_, slug) in &created {
            deployment.edge_knows(slug).await;
        }
        let answered = created.iter().map(|(id, _)| (id.clone(), BTreeMap::new())).collect();
        Self { links: created, visitors, sent: 0, answered }
    }

    /// Clicks once, with the next visitor and link. Returns true when the edge answered with a redirect.
    pub(crate) async fn click(&mut self, deployment: &Deployment) -> bool {
        let visitor = self.sent % self.visitors;
        // Links take turns within a visitor's clicks, so that every visitor clicks every link.
        let (id, slug) = &self.links[(self.sent / self.visitors) % self.links.len()];
        self.sent += 1;
        let from = format!("198.51.{}.{}", visitor / 250, visitor % 250 + 1);
        match deployment.click(slug, &from).await {
            Ok(answer) if answer.status() == 302 => {
                self.answered.entry(id.clone()).or_default().insert(click_id(&answer), visitor);
                true
            }
            _ => false,
        }
    }

    /// Returns the links' slugs.
    pub(crate) fn slugs(&self) -> impl Iterator<Item = &str> {
        self.links.iter().map(|(_, slug)| slug.as_str())
    }

    /// Returns the links' ids.
    pub(crate) fn link_ids(&self) -> impl Iterator<Item = &str> {
        self.links.iter().map(|(id, _)| id.as_str())
    }

    /// Returns the number of answered clicks.
    pub(crate) fn answered(&self) -> usize {
        self.answered.values().map(BTreeMap::len).sum()
    }

    /// Returns the answered click ids.
    pub(crate) fn click_ids(&self) -> BTreeSet<&str> {
        self.answered.values().flat_map(|clicks| clicks.keys().map(String::as_str)).collect()
    }

    /// Waits until the API shows every answered click and the visitors of each link, and asserts that no row is
    /// doubled.
    ///
    /// A click without an answer may be counted or not, so totals may be higher by at most the number of unanswered
    /// clicks.
    pub(crate) async fn is_counted(&self, deployment: &Deployment) {
        let unanswered = self.sent - self.answered();
        let mut above = 0;
        for (id, clicks) in &self.answered {
            let total = eventually("the API shows every answered click", async || {
                match number(&deployment.show_link(id).await["total_clicks"]) {
                    Some(total) if total >= clicks.len() => Ok(total),
                    total => Err((total, clicks.len())),
                }
            })
            .await;
            above += total - clicks.len();
        }
        assert!(above <= unanswered, "{above} clicks too many, {unanswered} were not answered");
        for (id, clicks) in &self.answered {
            let visitors: BTreeSet<&usize> = clicks.values().collect();
            let unique = eventually("the API shows the visitors", async || {
                number(&deployment.show_link(id).await["unique_clicks"]).ok_or("no count")
            })
            .await;
            assert!(
                (visitors.len()..=visitors.len() + unanswered).contains(&unique),
                "{id}: {unique} unique, {} expected",
                visitors.len()
            );
        }
        let stored = click_ids(&deployment.engines).await;
        assert!(self.click_ids().iter().all(|id| stored.contains(*id)), "every answered click is a row");
        let repeats = count(&deployment.engines, "SELECT count() - uniqExact(src, koff) FROM clicks").await;
        assert_eq!(repeats, 0, "no position of the log is a row twice");
    }
}

/// Returns a count; `None` for null, while ClickHouse does not answer in time.
fn number(value: &Value) -> Option<usize> {
    value.as_u64().map(|count| count as usize)
}
