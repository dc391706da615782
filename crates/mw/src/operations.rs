//! The operations of a shop: partition statistics, nodes and repair, and the audit log.

mod audit_file;
mod cluster;
mod repair;
pub(crate) mod steering;

use std::sync::Arc;

use anyhow::{Context, Result};
use mw_http::prometheus::Registry;
use mw_operate::partitions::judgement::Limits;
use mw_operate::partitions::{LocalPartitions, PartitionCounters, Steward, StewardSettings};
use mw_shop::operations::Operations;
use mw_shop::{Clock, SystemClock};
use mw_store::audit::AuditLog;
use mw_store::partitions::{PartitionReports, PartitionStore};

use crate::config::{Config, OperateConfig};
use crate::storage::Storage;
use audit_file::AuditFile;
use cluster::CassandraCluster;

/// Lets the engine that is opened next count its accesses of partitions.
pub(crate) fn count_partitions(config: &mut Config) -> Arc<PartitionCounters> {
    let counters = Arc::new(PartitionCounters::default());
    let reports = PartitionReports::to(Arc::clone(&counters) as _);
    config.cassandra.partitions = reports.clone();
    config.embedded.partitions = reports;
    counters
}

/// What operators see and steer of an open store.
pub(crate) fn of(storage: &Storage, config: &OperateConfig) -> Operations {
    let (partitions, audit): (Arc<dyn PartitionStore>, Arc<dyn AuditLog>) = match storage {
        Storage::Embedded { path, .. } => {
            (Arc::new(LocalPartitions::default()), Arc::new(AuditFile::in_folder(path)))
        }
        Storage::Cassandra { store, .. } => (Arc::clone(store) as _, Arc::clone(store) as _),
        Storage::Mongodb { store, .. } => (Arc::new(LocalPartitions::default()), Arc::clone(store) as _),
    };
    let operations = Operations::new(partitions, audit, Arc::new(SystemClock));
    match storage {
        Storage::Cassandra { store, .. } => {
            operations.with_cluster(Arc::new(CassandraCluster::new(Arc::clone(store), config.clone())))
        }
        Storage::Embedded { .. } | Storage::Mongodb { .. } => operations,
    }
}

/// The background task of the partition statistics.
pub(crate) fn steward(
    operations: &Operations,
    counters: Arc<PartitionCounters>,
    config: &OperateConfig,
    registry: &Registry,
) -> Result<Steward> {
    let limits = Limits { window: config.window, wide_bytes: config.wide_bytes };
    let settings = StewardSettings { limits, adapt: config.adapt };
    let now = Arc::new(|| SystemClock.now());
    let store = operations.partition_store();
    Steward::new(counters, store, settings, now, registry).context("register metrics of partitions")
}
