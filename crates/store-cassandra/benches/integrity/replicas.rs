//! A session to each node that talks to that node alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_store_cassandra::{Options, Table};
use mw_testkit::cassandra::Cluster;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::policies::host_filter::AllowListHostFilter;
use scylla::statement::Consistency;
use scylla::statement::unprepared::Statement;
use scylla::value::CqlTimestamp;

use crate::rows::{RowSet, full_name};

const TIMEOUT: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(500);

pub(crate) struct Replicas {
    sessions: Vec<Option<Session>>,
    /// A table of three replicas.
    settings: String,
}

impl Replicas {
    pub(crate) async fn connect(cluster: &Cluster, options: &Options, without: Option<usize>) -> Self {
        let mut sessions = Vec::new();
        for (node, address) in cluster.contact_points().iter().enumerate() {
            if without == Some(node) {
                sessions.push(None);
                continue;
            }
            let alone = AllowListHostFilter::new([*address]).unwrap();
            let session = SessionBuilder::new().known_node_addr(*address).host_filter(Arc::new(alone));
            sessions.push(Some(session.build().await.unwrap()));
        }
        Self { sessions, settings: full_name(options, Table::Settings) }
    }

    pub(crate) fn of(&self, node: usize) -> &Session {
        self.sessions[node].as_ref().unwrap_or_else(|| panic!("node {node} is down"))
    }

    pub(crate) fn any(&self) -> &Session {
        self.of(0)
    }

    /// Waits until the other nodes have noticed that a node is down: then they refuse a read at ALL at once.
    pub(crate) async fn wait_down(&self, node: usize) {
        let deadline = Instant::now() + TIMEOUT;
        for other in (0..self.sessions.len()).filter(|other| *other != node) {
            while !self.refuses_all(other).await {
                assert!(Instant::now() < deadline, "node {other} did not notice that node {node} is down");
                tokio::time::sleep(POLL).await;
            }
        }
    }

    async fn refuses_all(&self, node: usize) -> bool {
        let mut read = Statement::new(format!("SELECT value FROM {} WHERE name = 'currency'", self.settings));
        read.set_consistency(Consistency::All);
        let refused = self.of(node).query_unpaged(read, ()).await.err();
        let Some(ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, _))) = refused else {
            return false;
        };
        matches!(error, DbError::Unavailable { .. })
    }

    /// Every other replica has all rows of a set.
    pub(crate) async fn check_others_have(&self, set: &RowSet, victim: usize) {
        for node in (0..self.sessions.len()).filter(|node| *node != victim) {
            assert_eq!(set.missing(self.of(node)).await, 0, "node {node} has every row of {}", set.table);
        }
    }

    /// Waits until every node has finished a run of auto-repair.
    pub(crate) async fn wait_auto_repaired(&self, deadline: Instant) {
        let read = "SELECT repair_start_ts, repair_finish_ts FROM system_distributed.auto_repair_history \
                    WHERE repair_type = 'full'";
        loop {
            let rows = self.any().query_unpaged(read, ()).await.unwrap().into_rows_result().unwrap();
            let rows = rows.rows::<(Option<CqlTimestamp>, Option<CqlTimestamp>)>();
            let finished =
                rows.unwrap().map(Result::unwrap).filter(|(start, finish)| match (start, finish) {
                    (Some(start), Some(finish)) => finish.0 >= start.0 && finish.0 > 0,
                    _ => false,
                });
            if finished.count() >= self.sessions.len() {
                return;
            }
            assert!(Instant::now() < deadline, "auto-repair did not finish on every node");
            tokio::time::sleep(POLL).await;
        }
    }
}
