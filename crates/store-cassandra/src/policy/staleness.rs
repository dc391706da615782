//! How stale a read may be: decided by the consistency levels of the reads and writes of its table.

use std::time::Duration;

use mw_store::Freshness;

use super::Policy;
use super::level::ReplicaCounts;
use crate::schema::Replication;
use crate::schema::tables::Table;

/// The longest that a stale read may lag behind an acknowledged write. No consistency level promises a time: a replica that
/// was down returns old rows until the hints for it are replayed, which takes seconds after an outage of minutes.
pub const MAX_STALENESS: Duration = Duration::from_secs(30);

impl Table {
    /// Whether the engine reads it at the `stale_read` level.
    pub const fn has_stale_read(self) -> bool {
        matches!(self, Self::ProductById | Self::ProductsByCategory | Self::CategoryBands | Self::Stock)
    }
}

impl Policy {
    /// How stale a read of the table may be; `None` where every read sees every acknowledged write.
    pub fn max_staleness(
        &self,
        table: Table,
        freshness: Freshness,
        replication: &Replication,
        local_dc: &str,
    ) -> Option<Duration> {
        let policy = self.of(table);
        let read = match freshness {
            Freshness::StaleOk => policy.stale_read,
            Freshness::Latest => policy.read,
        };
        let replicas = ReplicaCounts::of(replication.of(table.class()), local_dc);
        (!replicas.overlap(policy.write, read)).then_some(MAX_STALENESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_stale_only_where_its_level_can_miss_a_write() {
        let replication = Replication::even("dc1", 3);
        let staleness = |policy: &Policy, freshness| {
            policy.max_staleness(Table::ProductById, freshness, &replication, "dc1")
        };
        let mut policy = Policy::default();
        assert_eq!(staleness(&policy, Freshness::StaleOk), Some(MAX_STALENESS));
        assert_eq!(staleness(&policy, Freshness::Latest), None);
        policy.set("product_by_id", "stale_read", "LOCAL_QUORUM").unwrap();
        assert_eq!(staleness(&policy, Freshness::StaleOk), None);
        policy.set("product_by_id", "read", "LOCAL_ONE").unwrap();
        assert_eq!(staleness(&policy, Freshness::Latest), Some(MAX_STALENESS));
    }

    #[test]
    fn only_tables_with_stale_reads_default_to_a_lower_level_for_them() {
        let policy = Policy::default();
        for table in Table::ALL {
            let table_policy = policy.of(*table);
            assert_eq!(table.has_stale_read(), table_policy.stale_read != table_policy.read, "{table}");
        }
    }
}
