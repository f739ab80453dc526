//! Conversions: at most one for a click.

pub(crate) mod create;
pub(crate) mod list;
