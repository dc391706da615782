//! A cluster that ends with this process: its start, and the operations on the whole of it.

use crate::launch::Launcher;
use crate::network::{self, ClaimedNetwork};
use crate::node::{Node, NodeState};
use crate::options::{ClusterOptions, Plan, joining_plan, plans};
use crate::tls::{self, Certificates};
use crate::{CQL_PORT, archive, log};
use mw_testbed::{ClusterError, Result, RunDir, Watchdog, cache};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

#[derive(Debug)]
pub struct Cluster {
    options: ClusterOptions,
    node_states: Vec<NodeState>,
    pub(crate) launch: Launcher,
    certificates: Option<Certificates>,
    watchdog: Watchdog,
    outlives_terminal: bool,
    /// Dropped after the watchdog: the directory is removed after the processes that write to it.
    home: RunDir,
    _network: ClaimedNetwork,
}

impl Cluster {
    /// Starts the nodes and waits until they accept clients and see each other. After a failure no node is left running,
    /// and the error has the end of the log of the node that failed.
    pub fn start(options: ClusterOptions) -> Result<Self> {
        options.check()?;
        let root = cache::root()?;
        let home = RunDir::temporary(&root, &options.name)?;
        Self::start_in(options, home, false)
    }

    pub(crate) fn start_in(options: ClusterOptions, home: RunDir, outlives_terminal: bool) -> Result<Self> {
        let root = cache::root()?;
        let launch = Launcher::prepare(&root, options.report)?;
        let launch = archive::equip(launch, &root, options.report);
        Self::start_on(launch, options, home, outlives_terminal)
    }

    pub(crate) fn start_on(
        launch: Launcher,
        options: ClusterOptions,
        home: RunDir,
        outlives_terminal: bool,
    ) -> Result<Self> {
        let started = Instant::now();
        let root = cache::root()?;
        let network = network::claim(options.network, options.nodes, &root.join("networks"))?;
        let plans = plans(&options, network.bytes);
        let certificates = options
            .tls
            .then(|| tls::certificates(&launch.java, &plans, &home.dir.join("tls")))
            .transpose()?;
        let node_states = plans
            .into_iter()
            .map(|plan| {
                let dir = home.dir.join(format!("node{}", plan.number));
                NodeState::new(plan, dir)
            })
            .collect();
        let watchdog = Watchdog::start()?;
        let cluster = Self {
            options,
            node_states,
            launch,
            certificates,
            watchdog,
            outlives_terminal,
            home,
            _network: network,
        };
        cluster.start_nodes()?;
        let nodes = cluster.node_states.len();
        let plural = if nodes == 1 { "" } else { "s" };
        cluster.report(&format!("{nodes} node{plural} up after {:.1} s", started.elapsed().as_secs_f64()));
        Ok(cluster)
    }

    /// The first node is the seed; the others join it concurrently.
    fn start_nodes(&self) -> Result<()> {
        let Some((seed, others)) = self.node_states.split_first() else { return Ok(()) };
        for node_state in &self.node_states {
            Launcher::configure(&self.options, node_state, &seed.plan, self.certificates.as_ref())?;
        }
        self.spawn(seed)?;
        seed.wait_listening(self.deadline())?;
        self.report(&format!("node 1 of {} listens on {}", self.node_states.len(), seed.plan.address));
        for node_state in others {
            self.spawn(node_state)?;
        }
        let deadline = self.deadline();
        for node_state in others {
            node_state.wait_listening(deadline)?;
            self.report(&format!(
                "node {} of {} listens on {}",
                node_state.plan.number,
                self.node_states.len(),
                node_state.plan.address
            ));
        }
        for node_state in &self.node_states {
            node_state.wait(deadline, "see the other nodes", || self.sees_all(node_state))?;
        }
        if self.options.auth {
            seed.wait(deadline, "create the superuser", || self.has_superuser())?;
        }
        Ok(())
    }

    /// Adds a node to a data centre of the running cluster. It allocates its tokens itself and bootstraps: returns when it has streamed
    /// its rows, accepts clients and all nodes see each other. A node that fails is killed; what it left with the others, a removal
    /// (`nodetool assassinate`) ends.
    pub fn add_node(&mut self, dc: &str) -> Result<Node<'_>> {
        let running: Vec<Plan> = self.node_states.iter().map(|it| it.plan.clone()).collect();
        let plan = joining_plan(&running, dc)?;
        network::check_node_free(plan.address)?;
        if self.certificates.is_some() {
            let what = "add a node: the certificates of this cluster do not name its address".to_owned();
            return Err(ClusterError::Options(what));
        }
        let home = self.home.dir.join(format!("node{}", plan.number));
        let joining = NodeState::new(plan, home);
        let before: Vec<u64> = self.node_states.iter().map(|it| log::length(&it.log_path())).collect();
        if let Some(seed) = running.first() {
            Launcher::configure(&self.options, &joining, seed, None)?;
        }
        if let Err(error) = self.join(&joining, &before) {
            joining.kill()?;
            return Err(error);
        }
        self.node_states.push(joining);
        Ok(self.node(running.len()))
    }

    fn join(&self, joining: &NodeState, before: &[u64]) -> Result<()> {
        self.spawn(joining)?;
        let deadline = self.deadline();
        joining.wait_listening(deadline)?;
        joining.wait(deadline, "be seen by the other nodes", || {
            self.node_states.iter().zip(before).all(|(other, from)| {
                log::saw_normal(&log::since(&other.log_path(), *from), joining.plan.address)
            })
        })
    }

    /// Starts a node that was stopped or killed.
    pub(crate) fn restart(&self, node_state: &NodeState) -> Result<()> {
        let others: Vec<(&NodeState, u64)> = self
            .node_states
            .iter()
            .filter(|other| other.plan != node_state.plan)
            .filter(|other| other.running().as_ref().is_some_and(|running| !running.paused))
            .map(|other| (other, log::length(&other.log_path())))
            .collect();
        self.spawn(node_state)?;
        let deadline = self.deadline();
        node_state.wait_listening(deadline)?;
        let address = node_state.plan.address;
        node_state.wait(deadline, "see the other nodes", || {
            let logged = node_state.logged();
            others.iter().all(|(other, _)| log::saw_up(&logged, other.plan.address))
        })?;
        node_state.wait(deadline, "be seen by the other nodes", || {
            others.iter().all(|(other, from)| log::saw_up(&log::since(&other.log_path(), *from), address))
        })
    }

    fn sees_all(&self, node_state: &NodeState) -> bool {
        let logged = node_state.logged();
        self.node_states
            .iter()
            .map(|other| other.plan.address)
            .filter(|address| *address != node_state.plan.address)
            .all(|address| log::saw_up(&logged, address) && log::saw_normal(&logged, address))
    }

    /// Any node may create it; kept data has it already.
    fn has_superuser(&self) -> bool {
        self.node_states
            .iter()
            .any(|node_state| log::since(&node_state.log_path(), 0).contains(log::SUPERUSER_CREATED))
    }

    fn spawn(&self, node_state: &NodeState) -> Result<()> {
        self.launch.spawn(&self.options, node_state, &self.watchdog, self.outlives_terminal)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.options.start_timeout
    }

    fn report(&self, line: &str) {
        (self.options.report)(line);
    }

    /// The nodes, those of the first data centre first.
    pub fn nodes(&self) -> impl Iterator<Item = Node<'_>> {
        self.node_states.iter().map(|node_state| Node { cluster: self, node_state })
    }

    /// The node at `index`, counted from 0.
    ///
    /// # Panics
    ///
    /// If there is no such node, as an index into a slice does.
    #[expect(clippy::indexing_slicing, reason = "a test knows how many nodes it started")]
    pub fn node(&self, index: usize) -> Node<'_> {
        Node { cluster: self, node_state: &self.node_states[index] }
    }

    /// The addresses of all nodes.
    pub fn contact_points(&self) -> Vec<SocketAddr> {
        self.node_states
            .iter()
            .map(|node_state| SocketAddr::from((node_state.plan.address, CQL_PORT)))
            .collect()
    }

    /// The certificate authority of the nodes, as PEM; `None` without TLS.
    pub fn ca_pem(&self) -> Option<&Path> {
        self.certificates.as_ref().map(|it| it.ca_pem.as_path())
    }

    /// The output of `nodetool <arguments>` on the first node.
    pub fn nodetool(&self, arguments: &[&str]) -> Result<String> {
        self.node(0).nodetool(arguments)
    }

    pub fn options(&self) -> &ClusterOptions {
        &self.options
    }

    pub(crate) fn node_states(&self) -> &[NodeState] {
        &self.node_states
    }

    /// Lets the nodes outlive this process.
    pub(crate) fn detach(mut self) -> Result<()> {
        self.watchdog.release()?;
        for node_state in &self.node_states {
            node_state.running().take();
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node_state in &self.node_states {
            // The watchdog, dropped next, kills the nodes that this could not.
            let _ = node_state.kill();
        }
    }
}
