//! Counts partition reads by the nodes' own coordinator metrics.

use mw_store_cassandra::{Class, Options, Table};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::host_filter::AllowListHostFilter;
use std::sync::Arc;

/// Tables that a process reads in the background.
const BACKGROUND: [Table; 2] = [Table::Processes, Table::BucketPlans];

/// A session to each node, and the keyspaces to count in.
pub(crate) struct PartitionReads {
    nodes: Vec<Session>,
    keyspaces: Vec<String>,
}

impl PartitionReads {
    pub(crate) async fn of(options: &Options) -> Self {
        let mut nodes = Vec::new();
        for point in &options.contact_points {
            // The metrics are a virtual table, local to each node.
            let only = AllowListHostFilter::new([point]).unwrap();
            let builder = SessionBuilder::new().known_node(point).host_filter(Arc::new(only));
            nodes.push(builder.build().await.unwrap());
        }
        let keyspaces = Class::ALL.iter().map(|class| class.keyspace(&options.keyspace));
        Self { nodes, keyspaces: keyspaces.collect() }
    }

    /// Partitions read so far for requests, each once whatever the number of replicas read.
    pub(crate) async fn count(&self) -> u64 {
        let text = "SELECT keyspace_name, table_name, count FROM system_views.coordinator_read_latency";
        let mut sum = 0;
        for node in &self.nodes {
            let rows = node.query_unpaged(text, ()).await.unwrap().into_rows_result().unwrap();
            for row in rows.rows::<(String, String, i64)>().unwrap() {
                let (keyspace, table, count) = row.unwrap();
                if self.keyspaces.contains(&keyspace)
                    && BACKGROUND.iter().all(|background| background.name() != table)
                {
                    sum += u64::try_from(count).unwrap();
                }
            }
        }
        sum
    }
}
