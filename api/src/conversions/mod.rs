//! Conversions: at most one for a click, for ever.

mod create;
mod store;

pub(crate) use create::{create, from_request};
pub(crate) use store::count_of_link;
