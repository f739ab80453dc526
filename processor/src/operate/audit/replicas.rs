//! Compares the replicas of ClickHouse with each other.

use super::report::{Difference, Kind};
use super::store::{AuditStore, Content};
use crate::clickhouse::StoreError;

impl AuditStore {
    /// Describes the replicas whose clicks in these ranges of sources, or whose active rollups, are not those of the
    /// replica that everything else is compared with.
    pub(super) async fn unequal_replicas(
        &self,
        compared: &[(u32, u64, u64)],
    ) -> Result<Vec<Difference>, StoreError> {
        let mut unequal = Vec::new();
        for shard in self.statements.client.each_shard().await? {
            let own = Self::content(shard.clone(), compared).await?;
            for replica in shard.from_chosen().skip(1) {
                let (name, other) = (shard.name(replica), shard.at(replica));
                other.catch_up(&["clicks", "counts", "breakdowns", "slices", "deleted_links"]).await?;
                let content = Self::content(other, compared).await?;
                let differs = |(table, src, rows, sum): &Content| {
                    let detail =
                        format!("{name} has {rows} rows of {table}, source {src}, whose sum is {sum}");
                    Difference::new(Kind::Replica, detail)
                };
                unequal.extend(content.iter().filter(|part| !own.contains(part)).map(differs));
                let lacks = |(table, src, ..): &&Content| {
                    !content.iter().any(|(other, of, ..)| (other, of) == (table, src))
                };
                let missing = |(table, src, rows, _): &Content| {
                    let detail = format!("{name} has none of the {rows} rows of {table}, source {src}");
                    Difference::new(Kind::Replica, detail)
                };
                unequal.extend(own.iter().filter(lacks).map(missing));
            }
        }
        Ok(unequal)
    }
}
