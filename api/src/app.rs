//! What a request needs.

use std::ops::Deref;
use std::sync::Arc;

use schemas::click_id::ClickIdKeys;
use service::Shutdown;
use service::config::KeyRing;
use service::destination::DestinationRules;
use sqlx::PgPool;
use tokio::sync::Notify;
use url::Url;

use crate::account::sessions::password::Hashing;
use crate::plan::Plans;
use crate::resources::live::hub::Hub;
use crate::store::clicks::ClickStore;

/// Whose data of countries the edges have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CountrySource {
    /// DB-IP's, which the documentation names and `./dev up` fetches.
    DbIp,
    /// Somebody's who asks for no link, or none.
    Other,
}

/// The state of the API, shared by all requests. No globals.
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
    /// Tell real click ids from forged ones.
    pub(crate) click_ids: ClickIdKeys,
    /// Seal webhook secrets.
    pub(crate) secret_keys: KeyRing,
    /// The base of short links as visitors see it.
    pub(crate) public_url: Url,
    /// Where the dashboard's page is, if the operator has said so.
    pub(crate) dashboard_url: Option<Url>,
    /// Whose the data of countries is, for those who see them.
    pub(crate) country_source: CountrySource,
    /// Where passwords are hashed, few at a time.
    pub(crate) hashing: Hashing,
    /// Who listens to clicks as they happen.
    pub(crate) live: Hub,
    /// Says that there is an import to be worked off.
    pub(crate) imports: Notify,
    /// The end of the process, for answers that would go on for ever.
    pub(crate) shutdown: Shutdown,
    /// Where webhooks may go.
    pub(crate) webhook_rules: DestinationRules,
}

impl App {
    pub(crate) fn new(state: State) -> Self {
        Self(Arc::new(state))
    }

    /// The link that a visitor follows.
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
