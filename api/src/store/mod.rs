//! Every statement of the API to Postgres and ClickHouse: a module for each table, and one for operators' lists. They
//! import nothing above them.

pub(crate) mod accounts;
pub(crate) mod audit;
pub(crate) mod blocked_hosts;
pub(crate) mod clicks;
pub(crate) mod conversions;
pub(crate) mod deliveries;
pub(crate) mod directory;
pub(crate) mod edge_tokens;
pub(crate) mod endpoints;
pub(crate) mod erasure;
pub(crate) mod former_slugs;
pub(crate) mod grants;
pub(crate) mod idempotency;
pub(crate) mod imports;
pub(crate) mod keys;
pub(crate) mod links;
pub(crate) mod members;
pub(crate) mod migrate;
pub(crate) mod outbox;
pub(crate) mod permits;
pub(crate) mod portable;
pub(crate) mod role;
pub(crate) mod sessions;
pub(crate) mod sign_in_attempts;
pub(crate) mod two_factor;
pub(crate) mod workspaces;
