//! What is recorded of repairs, the switch that pauses them, and the sweep that replaces them where no node has JMX or auto-repair.

use std::time::Duration;

use mw_domain::Timestamp;
use mw_store::{Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::Consistency;
use scylla::value::{CqlTimestamp, Row};
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::statements::Access;
use crate::driver::time::{from_cql, to_cql};
use crate::policy::ReadRepair;
use crate::schema::tables::Table;

/// The table of runs that repaired all tables.
pub const ALL_TABLES: &str = "*";
/// Token ranges that a sweep reads one after another.
const SWEEP_RANGES: u32 = 256;
const SWEEP_PAGE: i32 = 500;
const PAUSED: &str = "repair_paused";
/// The key of ownership by which one process steers repair.
const STEERING: u64 = 0x7265_7061_6972_2121;

/// A recorded run of a repair on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairRun {
    /// [`ALL_TABLES`] for a run of auto-repair.
    pub table: String,
    pub node: String,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
    pub failed_ranges: u64,
    pub skipped_ranges: u64,
    /// The start of the last run in which no range failed or was skipped.
    pub last_complete: Option<Timestamp>,
}

/// The last run of auto-repair on a node, as the node itself recorded it. An interrupted or empty run is there as finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRun {
    pub node: String,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
}

/// What the policy says about the repair of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairPolicy {
    pub table: Table,
    pub keyspace: String,
    pub interval: Duration,
    pub gc_grace: Duration,
}

type RunRow =
    (String, Option<CqlTimestamp>, Option<CqlTimestamp>, Option<i64>, Option<i64>, Option<CqlTimestamp>);

impl CassandraStore {
    /// Whether this process steers repair; one of them does, at most moments.
    pub fn steers_repair(&self) -> bool {
        self.intents.ownership().rank(crate::recovery::ownership::key_of(&[STEERING])) == 0
    }

    /// The tables that the policy has repaired.
    pub fn repair_policies(&self) -> Vec<RepairPolicy> {
        let of = |table: &Table| {
            let policy = self.cql.policy().of(*table);
            Some(RepairPolicy {
                table: *table,
                keyspace: table.class().keyspace(self.cql.prefix()),
                interval: policy.repair?,
                gc_grace: policy.gc_grace,
            })
        };
        Table::ALL.iter().filter_map(of).collect()
    }

    pub async fn repair_runs(&self) -> Result<Vec<RepairRun>> {
        let read = "SELECT node, started_at, finished_at, failed_ranges, skipped_ranges, last_complete FROM {} \
             WHERE table_name = ?";
        let read = self.cql.prepare(Table::RepairRuns, Access::Read, read).await?;
        let count = |value: Option<i64>| u64::try_from(value.unwrap_or_default()).unwrap_or_default();
        let instant = |at: Option<CqlTimestamp>| at.map_or(Timestamp::EPOCH, from_cql);
        let mut runs = Vec::new();
        for table in Table::ALL.iter().map(|table| table.name()).chain([ALL_TABLES]) {
            let rows: Vec<RunRow> = self.cql.rows(&read, (table,)).await?;
            runs.extend(rows.into_iter().map(|(node, started, finished, failed, skipped, complete)| {
                RepairRun {
                    table: table.to_owned(),
                    node,
                    started_at: instant(started),
                    finished_at: instant(finished),
                    failed_ranges: count(failed),
                    skipped_ranges: count(skipped),
                    last_complete: complete.map(from_cql),
                }
            }));
        }
        Ok(runs)
    }

    /// Records how a run ended. One that was not complete keeps the last complete one.
    pub async fn record_repair_run(&self, run: &RepairRun) -> Result<()> {
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let ended = "INSERT INTO {} (table_name, node, started_at, finished_at, failed_ranges, skipped_ranges) \
             VALUES (?, ?, ?, ?, ?, ?)";
        let ended = self.cql.prepare(Table::RepairRuns, Access::Write, ended).await?;
        let (started, finished) = (to_cql(run.started_at), to_cql(run.finished_at));
        let (failed, skipped) = (signed(run.failed_ranges), signed(run.skipped_ranges));
        // A crash before the second write leaves a complete run that does not count: the table is repaired once more.
        self.cql.write(&ended, (&run.table, &run.node, started, finished, failed, skipped)).await?;
        let Some(complete) = run.last_complete else { return Ok(()) };
        let insert = "INSERT INTO {} (table_name, node, last_complete) VALUES (?, ?, ?)";
        let insert = self.cql.prepare(Table::RepairRuns, Access::Write, insert).await?;
        self.cql.write(&insert, (&run.table, &run.node, to_cql(complete))).await
    }

    /// The last run of auto-repair on every node that has finished one.
    pub async fn auto_repair_history(&self) -> Result<Vec<RecordedRun>> {
        let read = "SELECT host_id, repair_start_ts, repair_finish_ts FROM system_distributed.auto_repair_history \
             WHERE repair_type = 'full'";
        let unavailable = |error: &dyn std::fmt::Display| {
            StoreError::Unavailable(format!("read the history of auto-repair: {error}"))
        };
        let result = self.cql.session().query_unpaged(read, ()).await;
        let rows = result
            .map_err(|error| unavailable(&error))?
            .into_rows_result()
            .map_err(|error| unavailable(&error))?;
        let cluster = self.cql.session().get_cluster_state();
        let address = |host_id: Uuid| {
            let node = cluster.get_nodes_info().iter().find(|node| node.host_id == host_id);
            node.map(|node| node.address.ip().to_string())
        };
        let rows = rows
            .rows::<(Uuid, Option<CqlTimestamp>, Option<CqlTimestamp>)>()
            .map_err(|error| unavailable(&error))?;
        let mut runs = Vec::new();
        for row in rows {
            let (host_id, started, finished) = row.map_err(|error| unavailable(&error))?;
            let (Some(started), Some(finished)) = (started, finished) else { continue };
            // A run that is under way has the end of the one before.
            let (Some(node), true) = (address(host_id), finished.0 >= started.0) else { continue };
            runs.push(RecordedRun { node, started_at: from_cql(started), finished_at: from_cql(finished) });
        }
        Ok(runs)
    }

    /// When auto-repair was last paused or resumed by an operator.
    pub async fn repair_switched_at(&self) -> Result<Option<Timestamp>> {
        let read = "SELECT WRITETIME(value) FROM {} WHERE name = ?";
        let read = self.cql.prepare(Table::Settings, Access::Read, read).await?;
        let row: Option<(Option<i64>,)> = self.cql.first(&read, (PAUSED,)).await?;
        let micros = row.and_then(|(micros,)| micros);
        Ok(micros.map(|micros| Timestamp::from_millis(micros.div_euclid(1_000))))
    }

    /// Whether an operator has paused repair.
    pub async fn is_repair_paused(&self) -> Result<bool> {
        let read =
            self.cql.prepare(Table::Settings, Access::Read, "SELECT value FROM {} WHERE name = ?").await?;
        let row: Option<(Option<String>,)> = self.cql.first(&read, (PAUSED,)).await?;
        Ok(row.and_then(|(value,)| value).as_deref() == Some("true"))
    }

    pub async fn set_repair_paused(&self, is_paused: bool) -> Result<()> {
        let insert = "INSERT INTO {} (name, value) VALUES (?, ?)";
        let insert = self.cql.prepare(Table::Settings, Access::Write, insert).await?;
        self.cql.write(&insert, (PAUSED, is_paused.to_string())).await
    }

    /// Reads a whole table at ALL, range by range: read repair brings replicas that differ together. `progress` is told the ranges
    /// that are done. Returns how many ranges could not be read.
    pub async fn sweep(&self, table: Table, progress: &(dyn Fn(u32, u32) + Send + Sync)) -> Result<u64> {
        if self.cql.policy().of(table).read_repair == ReadRepair::None {
            let reason =
                format!("sweep {table}: its policy has read_repair = \"NONE\", so a read heals nothing");
            return Err(StoreError::NotServing(reason));
        }
        let keys = self.partition_key(table).await?.join(", ");
        let text = format!("SELECT * FROM {{}} WHERE token({keys}) >= ? AND token({keys}) <= ?");
        let mut read = self.cql.prepare(table, Access::Read, &text).await?;
        read.set_consistency(Consistency::All);
        read.set_page_size(SWEEP_PAGE);
        let mut failed = 0;
        for range in 0..SWEEP_RANGES {
            failed += u64::from(self.sweep_range(&read, bounds(range)).await.is_err());
            progress(range + 1, SWEEP_RANGES);
        }
        Ok(failed)
    }

    async fn sweep_range(
        &self,
        read: &scylla::statement::prepared::PreparedStatement,
        bounds: (i64, i64),
    ) -> Result<()> {
        let mut from = PagingState::start();
        loop {
            let (_, next) = self.cql.page::<Row>(read, bounds, from).await?;
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// The columns of a table's partition key, in order.
    async fn partition_key(&self, table: Table) -> Result<Vec<String>> {
        let read = "SELECT column_name, kind, position FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?";
        let keyspace = table.class().keyspace(self.cql.prefix());
        let unavailable =
            |error: &dyn std::fmt::Display| StoreError::Unavailable(format!("read the schema: {error}"));
        let result = self.cql.session().query_unpaged(read, (keyspace, table.name())).await;
        let rows = result
            .map_err(|error| unavailable(&error))?
            .into_rows_result()
            .map_err(|error| unavailable(&error))?;
        let rows = rows.rows::<(String, String, i32)>().map_err(|error| unavailable(&error))?;
        let mut columns: Vec<(String, String, i32)> =
            rows.collect::<std::result::Result<_, _>>().map_err(|error| unavailable(&error))?;
        columns.retain(|(_, kind, _)| kind == "partition_key");
        columns.sort_by_key(|(_, _, position)| *position);
        Ok(columns.into_iter().map(|(name, ..)| name).collect())
    }
}

/// The tokens of a range, both inclusive: the ranges together are the whole ring.
fn bounds(range: u32) -> (i64, i64) {
    let width = u64::MAX / u64::from(SWEEP_RANGES);
    let first = i64::MIN.wrapping_add_unsigned(u64::from(range) * width + u64::from(range > 0));
    let last = if range + 1 == SWEEP_RANGES {
        i64::MAX
    } else {
        i64::MIN.wrapping_add_unsigned(u64::from(range + 1) * width)
    };
    (first, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_of_a_sweep_are_the_whole_ring_without_gaps() {
        assert_eq!((bounds(0).0, bounds(SWEEP_RANGES - 1).1), (i64::MIN, i64::MAX));
        for range in 1..SWEEP_RANGES {
            assert_eq!(bounds(range).0, bounds(range - 1).1 + 1, "range {range}");
            assert!(bounds(range).0 < bounds(range).1);
        }
    }
}
