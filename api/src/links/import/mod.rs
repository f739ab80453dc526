//! Imports of links from a file of CSV, of the dashboard alone.
//!
//! The file is first received into the database and then worked off by any instance, a batch of rows at a time. A batch
//! makes its links and notes that its rows are done in one transaction, so whatever is killed in between, each row is
//! done once. A dry run does the same and takes the links back.

mod columns;
mod receive;
mod report;
mod rows;
mod store;
mod work;

pub(crate) use receive::import;
pub(crate) use report::show as show_import;
pub(crate) use work::work;
