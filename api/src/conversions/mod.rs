//! Conversions: at most one for a click, for ever.

mod create;
mod list;
mod store;

pub(crate) use create::create;
pub(crate) use list::list;
