//! Counts the partitions that were read, by the nodes' own count.

use mw_store_cassandra::{Class, Options, Table};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::host_filter::AllowListHostFilter;
use std::sync::Arc;

/// What a process reads by itself, beside the requests.
const BESIDE: [Table; 2] = [Table::Processes, Table::BucketPlans];

/// The nodes of a cluster, each asked for itself, and the keyspaces to count in.
pub(crate) struct Reads {
    nodes: Vec<Session>,
    keyspaces: Vec<String>,
}

impl Reads {
    pub(crate) async fn of(options: &Options) -> Self {
        let mut nodes = Vec::new();
        for point in &options.contact_points {
            // What a node counted is a table that only this node has.
            let only = AllowListHostFilter::new([point]).unwrap();
            let builder = SessionBuilder::new().known_node(point).host_filter(Arc::new(only));
            nodes.push(builder.build().await.unwrap());
        }
        let keyspaces = Class::ALL.iter().map(|class| class.keyspace(&options.keyspace));
        Self { nodes, keyspaces: keyspaces.collect() }
    }

    /// Partitions read so far for requests, each once however many copies were asked.
    pub(crate) async fn count(&self) -> u64 {
        let text = "SELECT keyspace_name, table_name, count FROM system_views.coordinator_read_latency";
        let mut sum = 0;
        for node in &self.nodes {
            let rows = node.query_unpaged(text, ()).await.unwrap().into_rows_result().unwrap();
            for row in rows.rows::<(String, String, i64)>().unwrap() {
                let (keyspace, table, count) = row.unwrap();
                if self.keyspaces.contains(&keyspace) && BESIDE.iter().all(|beside| beside.name() != table) {
                    sum += u64::try_from(count).unwrap();
                }
            }
        }
        sum
    }
}
