//! Maintenance of the engine: the readiness check, and what the periodic purge does here.
//!
//! Rows that expire have a TTL, so the purge only compacts stock ledgers.

use mw_domain::Timestamp;
use mw_store::{Maintenance, Result, StoreError};
use scylla::statement::prepared::PreparedStatement;

use crate::CassandraStore;
use crate::driver::statements::{Access, Cql};
use crate::schema::tables::Table;

/// A read of one partition that shows whether the nodes answer.
#[derive(Debug)]
pub(crate) struct ReadinessProbe {
    read: PreparedStatement,
}

impl ReadinessProbe {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let read = "SELECT value FROM {} WHERE name = ?";
        Ok(Self { read: cql.prepare(Table::Settings, Access::Read, read).await? })
    }
}

#[async_trait::async_trait]
impl Maintenance for CassandraStore {
    async fn ready(&self) -> Result<()> {
        self.clock.check()?;
        // A process of a data centre that does not sell is ready for the rest; one that cannot read whether it sells is not.
        if let Err(error @ StoreError::Unavailable(_)) = self.selling.check() {
            return Err(error);
        }
        self.cql.check_replicas()?;
        // The driver learns late that a node is down, so the nodes themselves are asked for one partition.
        let probe: Result<Option<(Option<String>,)>> =
            self.cql.first(&self.readiness.read, ("currency",)).await;
        probe.map(drop).map_err(|error| StoreError::Unavailable(format!("read from the cluster: {error}")))
    }

    async fn purge_expired(&self, now: Timestamp, limit: usize) -> Result<usize> {
        if !self.may_expire(now) {
            return Ok(0);
        }
        self.compact_ledgers(now, limit).await
    }
}
