//! Rows: one field per ClickHouse column, and their bytes in ClickHouse's `RowBinary` format.
//!
//! Written by hand, because an insert that carries its guard reads its rows through the `input()` table
//! function, and because the same bytes must be there for a second try.

mod click;
mod conversion;
mod row_binary;

pub use click::{CLICK_STRUCTURE, ClickRow, FIRST_LOG, RowBytes, UPKEEP, log_of, partition_of, source};
pub use conversion::{CONVERSION_COLUMNS, write_conversion};
