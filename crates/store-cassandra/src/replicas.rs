//! Where conditional statements go: always to the same replica of their key, in the local data centre.
//!
//! Paxos queues the rounds of a partition on their coordinator; rounds from several coordinators fight each other. The
//! driver knows conditional statements of Cassandra only by their text, so it would spread them. A replica that did not
//! answer in time is passed over for a while, since a paused node keeps its connections open.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use scylla::cluster::{ClusterState, NodeRef};
use scylla::policies::load_balancing::{FallbackPlan, LoadBalancingPolicy, RoutingInfo};
use scylla::routing::{Shard, Token};
use uuid::Uuid;

/// How long a replica that did not answer is passed over.
const PASSED_OVER_FOR: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(crate) struct SameReplica {
    local_dc: String,
    slow: Mutex<HashMap<Uuid, Instant>>,
}

impl SameReplica {
    pub(crate) fn new(local_dc: String) -> Self {
        Self { local_dc, slow: Mutex::default() }
    }

    /// Passes over the replica that statements of this key go to now.
    pub(crate) fn pass_over(&self, cluster: &ClusterState, keyspace: &str, table: &str, token: Token) {
        let Some(node) = self.first(cluster, keyspace, table, token) else { return };
        let until = Instant::now() + PASSED_OVER_FOR;
        self.slow.lock().unwrap_or_else(PoisonError::into_inner).insert(node.host_id, until);
    }

    fn first<'a>(
        &'a self,
        cluster: &'a ClusterState,
        keyspace: &str,
        table: &str,
        token: Token,
    ) -> Option<NodeRef<'a>> {
        self.ordered(cluster, keyspace, table, token).into_iter().next()
    }

    /// The local replicas in the ring's order, those that answer before those that do not.
    fn ordered<'a>(
        &'a self,
        cluster: &'a ClusterState,
        keyspace: &str,
        table: &str,
        token: Token,
    ) -> Vec<NodeRef<'a>> {
        let Some(keyspace) = cluster.get_keyspace(keyspace) else { return Vec::new() };
        let spec = scylla::frame::response::result::TableSpec::borrowed("", table);
        let replicas = cluster.replica_locator().replicas_for_token(
            token,
            &keyspace.strategy,
            Some(&self.local_dc),
            &spec,
        );
        let now = Instant::now();
        let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        slow.retain(|_, until| *until > now);
        let mut nodes: Vec<NodeRef<'a>> =
            replicas.into_replicas_ordered().into_iter().map(|(node, _)| node).collect();
        nodes.sort_by_key(|node| (!node.is_connected(), slow.contains_key(&node.host_id)));
        nodes
    }

    fn plan<'a>(&'a self, request: &RoutingInfo<'_>, cluster: &'a ClusterState) -> Vec<NodeRef<'a>> {
        let replicas = match (request.token, request.table) {
            (Some(token), Some(table)) => self.ordered(cluster, table.ks_name(), table.table_name(), token),
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

impl LoadBalancingPolicy for SameReplica {
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
