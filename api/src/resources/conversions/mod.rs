//! Conversions: at most one for a click, for ever.

pub(crate) mod create;
pub(crate) mod list;
