//! The tables whose rows are divided among shards.

use std::collections::BTreeMap;
use std::fmt;

use clickhouse::error::Result;

use super::query_pool::QueryPool;

/// The expressions that read tables of all shards. Debug does not show them: they have a password.
#[derive(Default, Clone, PartialEq, Eq)]
pub(super) struct Tables(BTreeMap<&'static str, String>);

impl Tables {
    /// Returns those of the replicas that are used now.
    pub(super) async fn everywhere(queries: &QueryPool) -> Result<Self> {
        let mut tables = BTreeMap::new();
        for table in ["clicks", "counts", "breakdowns"] {
            tables.insert(table, queries.client.everywhere(table).await?);
        }
        Ok(Self(tables))
    }

    /// Returns the expression of a table.
    pub(super) fn of<'a>(&'a self, table: &'a str) -> &'a str {
        self.0.get(table).map_or(table, String::as_str)
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Tables")
    }
}
