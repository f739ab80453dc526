//! Single clicks: pages, and exports as they come.

pub(crate) mod click;
mod export;
pub(crate) mod format;
pub(crate) mod list;
