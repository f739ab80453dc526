//! The state that all requests share.

use std::ops::Deref;
use std::sync::Arc;

use schemas::click_id::ClickIdKeys;
use service::Shutdown;
use service::config::KeyRing;
use service::destination::DestinationRules;
use service::slots::Slots;
use sqlx::PgPool;
use tokio::sync::Notify;
use url::Url;
use uuid::Uuid;

use crate::account::sessions::password::Hashing;
use crate::plan::Plans;
use crate::resources::links::destination::Destinations;
use crate::resources::live::hub::Hub;
use crate::store::clicks::ClickStore;
use crate::store::permits::Permits;

/// The source of the edges' country data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CountrySource {
    /// DB-IP, which `./dev up` fetches. Its licence requires an attribution.
    DbIp,
    /// Another source, or none.
    Other,
}

/// The state of the API. There are no globals.
#[derive(Clone)]
pub(crate) struct App(Arc<State>);

/// The fields of [`App`].
pub(crate) struct State {
    /// Postgres: accounts, keys, links, conversions, webhook endpoints, the outbox.
    pub(crate) pool: PgPool,
    /// ClickHouse: clicks and their counts.
    pub(crate) clicks: ClickStore,
    /// What each plan gives.
    pub(crate) plans: Plans,
    /// Verify click ids.
    pub(crate) click_ids: ClickIdKeys,
    /// Seal webhook secrets.
    pub(crate) secret_keys: KeyRing,
    /// The rules for destinations of links.
    pub(crate) destinations: Destinations,
    /// The base of short links as visitors see it.
    pub(crate) public_url: Url,
    /// The dashboard's address, if it is configured.
    pub(crate) dashboard_url: Option<Url>,
    /// The source of country data, for its attribution.
    pub(crate) country_source: CountrySource,
    /// Hashes passwords.
    pub(crate) hashing: Hashing,
    /// Listeners of live clicks.
    pub(crate) live: Hub,
    /// The turns of searches that no index answers.
    pub(crate) searches: Permits,
    /// The exports that are being sent, by account.
    pub(crate) exports: Slots<Uuid>,
    /// Notified when an import is ready to run.
    pub(crate) imports: Notify,
    /// The process's shutdown, which ends live streams.
    pub(crate) shutdown: Shutdown,
    /// The rules for webhook URLs.
    pub(crate) webhook_rules: DestinationRules,
}

impl App {
    pub(crate) fn new(state: State) -> Self {
        Self(Arc::new(state))
    }

    /// Returns the short URL of a slug.
    pub(crate) fn short_url(&self, slug: &str) -> String {
        format!("{}/{slug}", self.public_url.as_str().trim_end_matches('/'))
    }
}

impl Deref for App {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}
