//! Rows for ClickHouse, encoded as `RowBinary`.
//!
//! Encoded here and not by the client library: inserts read their rows through the `input()` table function, to check
//! the epoch in the same statement, and a retry must send the same bytes.

mod click;
mod conversion;
mod row_binary;
mod source;

pub use click::{CLICK_STRUCTURE, ClickRow, RowBytes};
pub use conversion::{CONVERSION_COLUMNS, write_conversion};
pub use source::{FIRST_LOG, UPKEEP, log_of, partition_of, source};
