//! What callers see and change: a file for each operation.

pub(crate) mod clicks;
pub(crate) mod conversions;
pub(crate) mod imports;
pub(crate) mod keys;
pub(crate) mod links;
pub(crate) mod live;
pub(crate) mod names;
pub(crate) mod stats;
pub(crate) mod usage;
pub(crate) mod webhooks;
