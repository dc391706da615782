//! The nodes of the cluster as operators see them: each is asked for its own schema version, hints and clock. Needs no JMX.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use mw_store::cluster::NodeInfo;
use mw_store::{Result, StoreError};
use scylla::client::session::Session;
use scylla::cluster::NodeRef;
use scylla::deserialize::row::DeserializeRow;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::statement::Statement;
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::connect::clock::{Reading, read_clock};

/// A node that takes longer is down.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What one node answered.
struct OwnView {
    schema: Option<Uuid>,
    tokens: usize,
    skew_ms: i64,
    hints_for: Vec<(IpAddr, u64)>,
    loads: Vec<(IpAddr, u64)>,
}

impl CassandraStore {
    /// Every node of the cluster, by data centre and address.
    pub async fn nodes(&self) -> Result<Vec<NodeInfo>> {
        let session = self.cql.session();
        let cluster = session.get_cluster_state();
        let nodes = cluster.get_nodes_info();
        let views = join_all(nodes.iter().map(|node| own_view(session, node))).await;
        if views.iter().all(Option::is_none) {
            return Err(StoreError::Unavailable("read the nodes: none of them answers".to_owned()));
        }
        let mut hints: HashMap<IpAddr, u64> = HashMap::new();
        let mut loads: HashMap<IpAddr, u64> = HashMap::new();
        for view in views.iter().flatten() {
            for (address, files) in &view.hints_for {
                *hints.entry(*address).or_default() += files;
            }
            loads.extend(view.loads.iter().copied());
        }
        let info = |(node, view): (NodeRef<'_>, Option<OwnView>)| {
            let address = node.address.ip();
            NodeInfo {
                address: address.to_string(),
                data_center: node.datacenter.clone().unwrap_or_default(),
                rack: node.rack.clone().unwrap_or_default(),
                up: view.is_some(),
                load_bytes: loads.get(&address).copied(),
                tokens: view.as_ref().map_or(0, |view| view.tokens),
                schema: view.as_ref().and_then(|view| view.schema),
                hints: Some(hints.get(&address).copied().unwrap_or_default()),
                clock_ms: view.map(|view| -view.skew_ms),
            }
        };
        let mut infos: Vec<NodeInfo> = nodes.iter().zip(views).map(info).collect();
        infos.sort_by(|a, b| (&a.data_center, &a.address).cmp(&(&b.data_center, &b.address)));
        Ok(infos)
    }
}

async fn own_view(session: &Session, node: NodeRef<'_>) -> Option<OwnView> {
    let host = NodeIdentifier::HostId(node.host_id);
    let anchor = read_clock(session, host.clone()).await.ok()?;
    let skew_ms = anchor.skew_ms(&Reading::of(SystemTime::now));
    let local: Vec<(Option<Uuid>, Option<Vec<String>>)> =
        query_node(session, &host, "SELECT schema_version, tokens FROM system.local").await?;
    let (schema, tokens) = local.into_iter().next()?;
    let hints: Option<Vec<(Option<IpAddr>, Option<i32>)>> =
        query_node(session, &host, "SELECT address, files FROM system_views.pending_hints").await;
    let loads: Option<Vec<(IpAddr, Option<String>)>> =
        query_node(session, &host, "SELECT address, load FROM system_views.gossip_info").await;
    let files = |files: Option<i32>| u64::try_from(files.unwrap_or_default()).unwrap_or_default();
    Some(OwnView {
        schema,
        tokens: tokens.map_or(0, |tokens| tokens.len()),
        skew_ms,
        hints_for: hints
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(address, count)| Some((address?, files(count))))
            .collect(),
        loads: loads
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(address, load)| Some((address, bytes(&load?)?)))
            .collect(),
    })
}

/// A number of bytes as gossip spells it, such as `123456.0`.
fn bytes(load: &str) -> Option<u64> {
    load.split('.').next()?.parse().ok()
}

/// Queries one node; `None` where it does not answer, or the role may not read the table.
async fn query_node<R>(session: &Session, host: &NodeIdentifier, text: &str) -> Option<Vec<R>>
where
    R: for<'f, 'm> DeserializeRow<'f, 'm>,
{
    let mut read = Statement::new(text);
    read.set_load_balancing_policy(Some(SingleTargetLoadBalancingPolicy::new(host.clone(), None)));
    read.set_retry_policy(Some(Arc::new(FallthroughRetryPolicy::new())));
    read.set_request_timeout(Some(TIMEOUT));
    let result = session.query_unpaged(read, ()).await.ok()?.into_rows_result().ok()?;
    result.rows::<R>().ok()?.collect::<std::result::Result<Vec<R>, _>>().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_a_whole_number_of_bytes() {
        assert_eq!((bytes("123456.0"), bytes("789"), bytes("")), (Some(123_456), Some(789), None));
    }
}
