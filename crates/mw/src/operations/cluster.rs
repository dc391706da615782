//! The nodes and the repair of a shop on Cassandra, as its operations reach them.

use std::sync::Arc;

use async_trait::async_trait;
use mw_domain::Timestamp;
use mw_store::cluster::{BlackoutWindow, ClusterControl, NodeInfo, RepairOutcome, RepairReport};
use mw_store::{Refusal, Result};
use mw_store_cassandra::{CassandraStore, RepairPolicy};

use super::repair::RepairControl;
use crate::config::OperateConfig;

#[derive(Debug)]
pub(super) struct CassandraCluster {
    store: Arc<CassandraStore>,
    config: OperateConfig,
}

impl CassandraCluster {
    pub(super) fn new(store: Arc<CassandraStore>, config: OperateConfig) -> Self {
        Self { store, config }
    }

    async fn control(&self) -> Result<RepairControl> {
        RepairControl::new(Arc::clone(&self.store), &self.config).await
    }

    fn policy(&self, table: &str) -> Result<RepairPolicy> {
        let policies = self.store.repair_policies();
        if let Some(policy) = policies.iter().find(|policy| policy.table.name() == table) {
            return Ok(policy.clone());
        }
        let names: Vec<&str> = policies.iter().map(|policy| policy.table.name()).collect();
        let detail = match mw_store_cassandra::Table::named(table) {
            Some(_) => format!("repair {table}: its policy has repair = \"off\""),
            None => format!("repair {table}: there is no such table; the tables are {}", names.join(", ")),
        };
        Err(Refusal::RepairNotFound(detail).into())
    }
}

#[async_trait]
impl ClusterControl for CassandraCluster {
    async fn nodes(&self) -> Result<Vec<NodeInfo>> {
        self.store.nodes().await
    }

    async fn repairs(&self, now: Timestamp) -> Result<RepairReport> {
        let control = self.control().await?;
        let (running, notes) = control.observe().await;
        let mut tables = control.tables(now).await?;
        for table in &mut tables {
            table.running = running;
        }
        Ok(RepairReport { tables, paused: self.store.is_repair_paused().await?, notes })
    }

    fn blackout_windows(&self, now: Timestamp) -> Vec<BlackoutWindow> {
        let window = |blackout: &mw_operate::repair::Blackout| BlackoutWindow {
            window: blackout.to_string(),
            open: blackout.contains(now),
        };
        self.config.blackout.iter().map(window).collect()
    }

    fn check_repaired(&self, table: &str) -> Result<()> {
        self.policy(table).map(drop)
    }

    async fn repair(&self, table: &str) -> Result<RepairOutcome> {
        let policy = self.policy(table)?;
        self.control().await?.repair(&policy).await
    }

    async fn set_repair_paused(&self, is_paused: bool) -> Result<String> {
        self.control().await?.set_paused(is_paused).await
    }
}
