//! Conversions: at most one for a click, for ever.

mod create;
mod list;
mod store;

pub(crate) use create::{create, from_request};
pub(crate) use list::list;
