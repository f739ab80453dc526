//! Single clicks: pages and exports.

pub(crate) mod click;
mod export;
pub(crate) mod format;
pub(crate) mod list;
