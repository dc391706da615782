//! Maintenance of the engine: the readiness check, and what the periodic purge does here.
//!
//! Rows that expire have a TTL, so the purge only compacts stock ledgers.

use mw_domain::Timestamp;
use mw_store::{Maintenance, Readiness, Result, StoreError};
use scylla::statement::prepared::PreparedStatement;

use crate::CassandraStore;
use crate::driver::quorum_availability::QuorumAvailability;
use crate::driver::statements::{Access, Cql};
use crate::schema::tables::Table;

/// A read of one partition that shows whether the nodes answer.
#[derive(Debug)]
pub(crate) struct ReadinessProbe {
    read: PreparedStatement,
    /// The share of token ranges that must have their quorum.
    ready_share: f64,
}

/// Partitions of which one is read; the setting need not exist.
const PROBES: usize = 32;

impl ReadinessProbe {
    pub(crate) async fn prepare(cql: &Cql, ready_share: f64) -> Result<Self> {
        let read = "SELECT value FROM {} WHERE name = ?";
        Ok(Self { read: cql.prepare(Table::Settings, Access::Read, read).await?, ready_share })
    }
}

#[async_trait::async_trait]
impl Maintenance for CassandraStore {
    async fn ready(&self) -> Result<Readiness> {
        self.clock.check()?;
        // A process of a data centre that does not sell is ready for the rest; one that cannot read whether it sells is not.
        if let Err(error @ StoreError::Unavailable(_)) = self.selling.check() {
            return Err(error);
        }
        let QuorumAvailability { lost_share, reason } = self.cql.quorum_availability();
        if 1.0 - lost_share < self.readiness.ready_share {
            return Err(StoreError::Unavailable(reason.unwrap_or_default()));
        }
        // The driver learns late that a node is down, so the nodes themselves are asked for one partition that has its quorum.
        let has_quorum = |name: &String| self.cql.has_quorum(&self.readiness.read, &(name.as_str(),));
        let name = (0..PROBES).map(|number| format!("probe-{number}")).find(has_quorum).unwrap_or_default();
        let probe: Result<Option<(Option<String>,)>> =
            self.cql.first(&self.readiness.read, (name.as_str(),)).await;
        probe.map_err(|error| StoreError::Unavailable(format!("read from the cluster: {error}")))?;
        Ok(Readiness { lost_share, reason })
    }

    fn clock_skew_ms(&self) -> i64 {
        self.clock.skew_ms()
    }

    async fn purge_expired(&self, now: Timestamp, limit: usize) -> Result<usize> {
        if !self.may_expire(now) {
            return Ok(0);
        }
        self.compact_ledgers(now, limit).await
    }
}
