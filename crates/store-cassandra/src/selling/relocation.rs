//! Moving selling to another data centre, without a moment at which two sell.
//!
//! First no data centre sells: all copies say `Moving`, also to the nodes of the old data centre. Every process of it has read that,
//! or has stopped by its lease, after [`LEASE`]; what was in flight has ended [`IN_FLIGHT`] later. Then all copies name the new one.
//! Waiting is by the clock of the command that moves, so no clocks are compared.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mw_store::StoreError;
use scylla::client::session::Session;
use scylla::cluster::NodeRef;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};

use super::{COPIES, IN_FLIGHT, LEASE, Selling, SellingSetting, Statements, local_sale_tables};
use crate::driver::connect::Options;
use crate::driver::statements::Cql;
use crate::driver::trace::Tracer;
use crate::schema::tables::Class;

/// Attempts to write a copy while its value changes or the outcome is unknown.
const ROUNDS: usize = 10;
/// The nodes of the old data centre must show the change within this time.
const VISIBLE_WITHIN: Duration = Duration::from_mins(1);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
pub enum RelocationError {
    #[error(
        "the shop has no selling data centre yet: start a process there (`mw serve`), the first one stores its own"
    )]
    NotStored,

    #[error("data centre {dc:?} has no replicas of the stock: it is in {exist}")]
    NoReplicas { dc: String, exist: String },

    #[error("the setting was changed at the same time: look at `mw cluster status`, then repeat the command")]
    Concurrent,

    #[error(
        "the nodes of {dc} do not show the change within {within:?}, so its processes may still sell: no data centre sells \
         by the setting; repeat the command when they answer"
    )]
    NotVisible { dc: String, within: Duration },

    #[error(
        "{0}; the move needs a quorum over all data centres. Where one is lost for good, remove it from the replication of the \
         keyspaces first (ALTER KEYSPACE), then repeat the command"
    )]
    Store(#[from] StoreError),
}

/// What a move does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelocationStep<'a> {
    /// Stores that no data centre sells.
    Stopping { from: &'a str },
    /// Waits for the processes of the old data centre.
    Waiting(Duration),
    /// Stores that the new one sells.
    Starting { to: &'a str },
}

/// The selling data centre of a cluster, for the operator.
#[derive(Debug)]
pub struct Relocation {
    cql: Cql,
    statements: Statements,
    /// Replication factors of the stock.
    replicas: BTreeMap<String, u32>,
    every_dc_sells: bool,
}

impl Relocation {
    /// How long a move must wait for the processes of the old data centre, whose requests end within `request_timeout`.
    pub fn safe_wait(request_timeout: Duration) -> Duration {
        LEASE + IN_FLIGHT.max(request_timeout)
    }

    /// On a session of [`connect`](crate::connect::connect).
    pub async fn on(session: Session, options: Options) -> Result<Self, RelocationError> {
        let every_dc_sells = local_sale_tables(&options.policy).is_empty();
        let replicas = options.replication.of(Class::Core).clone();
        let Options { keyspace, local_dc, policy, request_timeout, .. } = options;
        let cql = Cql::new(session, keyspace, local_dc, policy, request_timeout, Tracer::default());
        let statements = Statements::prepare(&cql).await?;
        Ok(Self { cql, statements, replicas, every_dc_sells })
    }

    /// Whether every data centre may sell, because all sales are decided across them.
    pub const fn every_dc_sells(&self) -> bool {
        self.every_dc_sells
    }

    /// The newest setting, and whether all copies have it.
    async fn copies(&self) -> Result<(SellingSetting, bool), RelocationError> {
        let mut copies = Vec::with_capacity(COPIES);
        for copy in 0..COPIES {
            copies.push(self.statements.find(&self.cql, &self.statements.read_serial, copy).await?);
        }
        let newest = copies.iter().flatten().max_by_key(|it| it.generation).cloned();
        let newest = newest.ok_or(RelocationError::NotStored)?;
        let is_everywhere = copies.iter().all(|copy| copy.as_ref() == Some(&newest));
        Ok((newest, is_everywhere))
    }

    pub async fn setting(&self) -> Result<SellingSetting, RelocationError> {
        Ok(self.copies().await?.0)
    }

    /// Refuses a data centre that cannot sell.
    pub fn check_target(&self, to: &str) -> Result<(), RelocationError> {
        if self.replicas.contains_key(to) {
            return Ok(());
        }
        let exist = self.replicas.keys().cloned().collect::<Vec<_>>().join(", ");
        Err(RelocationError::NoReplicas { dc: to.to_owned(), exist })
    }

    /// Moves selling to a data centre; [`Relocation::safe_wait`] is a safe `wait`. An interrupted move leaves a shop that does not
    /// sell; the same command begins again and finishes it, or another moves selling elsewhere.
    pub async fn run(
        &self,
        to: &str,
        wait: Duration,
        progress: &(dyn Fn(RelocationStep<'_>) + Sync),
    ) -> Result<(), RelocationError> {
        self.check_target(to)?;
        let (newest, is_everywhere) = self.copies().await?;
        let from = match &newest.selling {
            Selling::In(dc) if dc == to && is_everywhere => return Ok(()),
            // A crash after the wait left some copies behind: the rest follows.
            Selling::In(dc) if dc == to => return self.write(&newest).await,
            Selling::In(dc) => dc.clone(),
            Selling::Moving { from, .. } => from.clone(),
        };
        progress(RelocationStep::Stopping { from: &from });
        let generation = newest.generation + 1;
        let moving = Selling::Moving { from: from.clone(), to: to.to_owned() };
        // A crash in here, or before the last step, leaves a shop in which a part of the processes, or none, sells: those of
        // the old data centre only. The operator repeats the command.
        self.write(&SellingSetting { generation, selling: moving }).await?;
        self.wait_until_visible(&from, generation).await?;
        progress(RelocationStep::Waiting(wait));
        tokio::time::sleep(wait).await;
        progress(RelocationStep::Starting { to });
        // A crash in here leaves some copies behind, and a process of the new data centre sells when it reads another one.
        self.write(&SellingSetting { generation: generation + 1, selling: Selling::In(to.to_owned()) }).await
    }

    /// Writes all copies. Fails where another command has stored as new a generation.
    async fn write(&self, setting: &SellingSetting) -> Result<(), RelocationError> {
        for copy in 0..COPIES {
            self.write_copy(copy, setting).await?;
        }
        Ok(())
    }

    async fn write_copy(&self, copy: usize, setting: &SellingSetting) -> Result<(), RelocationError> {
        for _ in 0..ROUNDS {
            match self.statements.find(&self.cql, &self.statements.read_serial, copy).await? {
                Some(found) if found == *setting => return Ok(()),
                Some(found) if found.generation >= setting.generation => {
                    return Err(RelocationError::Concurrent);
                }
                Some(found) => {
                    if self.statements.replace(&self.cql, copy, &found, setting).await? {
                        return Ok(());
                    }
                }
                None => {
                    self.cql.cas(&self.statements.insert, (super::name(copy), setting.encode())).await?;
                }
            }
        }
        Err(RelocationError::Concurrent)
    }

    /// Waits until every read at `LOCAL_QUORUM` in the data centre shows the generation. One without nodes or replicas has no
    /// process that could sell.
    async fn wait_until_visible(&self, dc: &str, generation: u64) -> Result<(), RelocationError> {
        if !self.replicas.contains_key(dc) {
            return Ok(());
        }
        let started = Instant::now();
        for copy in 0..COPIES {
            while self.generation_in(dc, copy).await < Some(generation) {
                if started.elapsed() > VISIBLE_WITHIN {
                    return Err(RelocationError::NotVisible { dc: dc.to_owned(), within: VISIBLE_WITHIN });
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    /// The generation of a copy by a quorum of the data centre, through one of its nodes.
    async fn generation_in(&self, dc: &str, copy: usize) -> Option<u64> {
        let cluster = self.cql.session().get_cluster_state();
        let is_usable = |node: &&NodeRef<'_>| node.datacenter.as_deref() == Some(dc) && node.is_connected();
        let nodes: Vec<NodeRef<'_>> = cluster.get_nodes_info().iter().collect();
        let node = nodes.iter().find(is_usable)?.host_id;
        let mut read = self.statements.read.clone();
        read.set_load_balancing_policy(Some(SingleTargetLoadBalancingPolicy::new(
            NodeIdentifier::HostId(node),
            None,
        )));
        let found = self.statements.find(&self.cql, &read, copy).await;
        found.ok().flatten().map(|found| found.generation)
    }
}
