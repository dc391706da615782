//! LWT routing: every conditional statement of a key goes to the same replica.
//!
//! Paxos queues the rounds of a partition on their coordinator; rounds from several coordinators compete. With `LOCAL_SERIAL` the
//! coordinator is a replica of the local data centre; with `SERIAL` it is the same replica for every data centre, or processes of
//! two data centres would compete for every partition. The driver does not recognise the LWTs of Cassandra, so it would spread them. A
//! replica that did not answer in time is suspect for a while and tried last, since a paused node keeps its connections open.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use scylla::cluster::{ClusterState, NodeRef};
use scylla::frame::response::result::TableSpec;
use scylla::policies::load_balancing::{FallbackPlan, LoadBalancingPolicy, RoutingInfo};
use scylla::routing::{Shard, Token};
use scylla::statement::SerialConsistency;
use uuid::Uuid;

/// How long a replica that did not answer stays suspect.
const SUSPECT_FOR: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(crate) struct LwtRouting {
    local_dc: String,
    suspects: Mutex<HashMap<Uuid, Instant>>,
}

impl LwtRouting {
    pub(crate) fn new(local_dc: String) -> Self {
        Self { local_dc, suspects: Mutex::default() }
    }

    pub(crate) fn local_dc(&self) -> &str {
        &self.local_dc
    }

    /// The replica that an LWT of this key goes to now. To be asked before the LWT is sent: when several fail together, the
    /// first failure moves the others to the next replica, which is healthy.
    pub(crate) fn coordinator(
        &self,
        cluster: &ClusterState,
        spec: &TableSpec<'_>,
        token: Token,
        serial: SerialConsistency,
    ) -> Option<Uuid> {
        let nodes = self.ordered(cluster, spec.ks_name(), spec.table_name(), token, self.dc(serial));
        nodes.first().map(|node| node.host_id)
    }

    /// Suspects a replica that did not coordinate an LWT.
    pub(crate) fn suspect(&self, coordinator: Uuid) {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        suspects.insert(coordinator, Instant::now() + SUSPECT_FOR);
    }

    /// The data centre whose replicas coordinate; `None` for all.
    fn dc(&self, serial: SerialConsistency) -> Option<&str> {
        match serial {
            SerialConsistency::Serial => None,
            SerialConsistency::LocalSerial => Some(self.local_dc.as_str()),
        }
    }

    /// The replicas of a data centre, or of all, in ring order; connected ones first, suspects last.
    fn ordered<'a>(
        &'a self,
        cluster: &'a ClusterState,
        keyspace: &str,
        table: &str,
        token: Token,
        dc: Option<&'a str>,
    ) -> Vec<NodeRef<'a>> {
        let Some(keyspace) = cluster.get_keyspace(keyspace) else { return Vec::new() };
        let spec = TableSpec::borrowed("", table);
        let replicas = cluster.replica_locator().replicas_for_token(token, &keyspace.strategy, dc, &spec);
        let now = Instant::now();
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        suspects.retain(|_, until| *until > now);
        let mut nodes: Vec<NodeRef<'a>> =
            replicas.into_replicas_ordered().into_iter().map(|(node, _)| node).collect();
        nodes.sort_by_key(|node| (!node.is_connected(), suspects.contains_key(&node.host_id)));
        nodes
    }

    fn plan<'a>(&'a self, request: &RoutingInfo<'_>, cluster: &'a ClusterState) -> Vec<NodeRef<'a>> {
        let dc = self.dc(request.serial_consistency.unwrap_or(SerialConsistency::LocalSerial));
        let replicas = match (request.token, request.table) {
            (Some(token), Some(table)) => {
                self.ordered(cluster, table.ks_name(), table.table_name(), token, dc)
            }
            _ => Vec::new(),
        };
        if !replicas.is_empty() {
            return replicas;
        }
        let is_local = |node: &NodeRef<'_>| node.datacenter.as_deref() == Some(self.local_dc.as_str());
        let mut nodes: Vec<NodeRef<'a>> = cluster.get_nodes_info().iter().filter(is_local).collect();
        nodes.sort_by_key(|node| !node.is_connected());
        nodes
    }
}

impl LoadBalancingPolicy for LwtRouting {
    fn pick<'a>(
        &'a self,
        request: &'a RoutingInfo<'_>,
        cluster: &'a ClusterState,
    ) -> Option<(NodeRef<'a>, Option<Shard>)> {
        self.plan(request, cluster).into_iter().next().map(|node| (node, None))
    }

    fn fallback<'a>(&'a self, request: &'a RoutingInfo<'_>, cluster: &'a ClusterState) -> FallbackPlan<'a> {
        Box::new(self.plan(request, cluster).into_iter().map(|node| (node, None)))
    }

    fn name(&self) -> String {
        "SameReplica".to_owned()
    }
}
