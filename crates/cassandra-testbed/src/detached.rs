//! Detached clusters: they outlive the command that started them and are found again by name, through a state file in
//! their directory.

use crate::CQL_PORT;
use crate::cluster::Cluster;
use crate::launch::Launcher;
use crate::network::Network;
use crate::node::STOP_TIMEOUT;
use crate::options::ClusterOptions;
use mw_testbed::cache::{self, Lock};
use mw_testbed::{ClusterError, Doing, Process, Result, RunDir, check_name};
use rustix::process::Signal;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a running node may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

const STATE_FILE: &str = "cluster.state";

/// A detached cluster; its nodes may run or have ended.
#[derive(Debug)]
pub struct DetachedCluster {
    dir: PathBuf,
    name: String,
    state: State,
    _lock: Lock,
}

/// The current state of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    pub address: Ipv4Addr,
    pub dc: String,
    /// `None` if its process has ended.
    pub pid: Option<u32>,
    /// Whether clients can connect.
    pub listens: bool,
    /// Resident memory in bytes.
    pub memory: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    shape: Shape,
    nodes: Vec<SavedNode>,
}

/// What must be equal when a cluster is started on kept data.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shape {
    nodes: usize,
    dcs: usize,
    network: [u8; 3],
    auth: bool,
    tls: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SavedNode {
    address: Ipv4Addr,
    dc: String,
    process: Process,
    jmx_port: u16,
}

impl DetachedCluster {
    /// Starts a cluster and detaches it; until it is up it ends with this process. Data that `down` kept is used again.
    pub fn up(options: ClusterOptions) -> Result<Self> {
        options.check()?;
        let Network::At(network) = options.network else {
            return Err(ClusterError::Options("a detached cluster needs a fixed network".to_owned()));
        };
        let (name, shape) = (options.name.clone(), Shape::of(&options, network));
        let (dir, lock) = open(&name)?;
        let former = State::load(&dir)?;
        let starts_empty = former.is_none();
        match former {
            Some(state) if state.nodes.iter().any(|node| node.process.is_alive()) => {
                return Err(ClusterError::Detached(format!("start cluster `{name}`: it is running already")));
            }
            Some(state) if state.shape != shape => {
                return Err(ClusterError::Detached(format!(
                    "start cluster `{name}`: its data is of another shape ({}): take it down without keeping the data",
                    state.shape
                )));
            }
            Some(_) => (options.report)("using the kept data"),
            None => cache::remove_dir(&dir)?,
        }
        cache::create_dir(&dir)?;
        let cluster = Cluster::start_in(options, RunDir::kept(dir.clone()), true).or_else(|error| {
            if starts_empty {
                cache::remove_dir(&dir)?;
            }
            Err(error)
        })?;
        let state = State { shape, nodes: cluster.node_states().iter().filter_map(SavedNode::of).collect() };
        state.save(&dir)?;
        cluster.detach()?;
        Ok(Self { dir, name, state, _lock: lock })
    }

    /// `None` if there is no cluster of this name, and no data of one.
    pub fn find(name: &str) -> Result<Option<Self>> {
        let (dir, lock) = open(name)?;
        Ok(State::load(&dir)?.map(|state| Self { dir, name: name.to_owned(), state, _lock: lock }))
    }

    /// Names of all detached clusters, running or not.
    pub fn names() -> Result<Vec<String>> {
        let clusters = cache::root()?.join("clusters");
        let entries = fs::read_dir(&clusters).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter(|entry| entry.path().join(STATE_FILE).exists())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn status(&self) -> Vec<NodeStatus> {
        self.state.nodes.iter().map(SavedNode::status).collect()
    }

    pub fn contact_points(&self) -> Vec<SocketAddr> {
        self.state.nodes.iter().map(|node| SocketAddr::from((node.address, CQL_PORT))).collect()
    }

    /// Whether clients need [`crate::SUPERUSER`].
    pub fn auth(&self) -> bool {
        self.state.shape.auth
    }

    /// The certificate authority to trust; `None` without TLS.
    pub fn ca_pem(&self) -> Option<PathBuf> {
        self.state.shape.tls.then(|| self.dir.join("tls").join("ca.pem"))
    }

    /// The directory of the nodes' logs and data.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The output of `nodetool <arguments>` on a node, counted from 1.
    pub fn nodetool(&self, number: usize, arguments: &[&str], report: fn(&str)) -> Result<String> {
        let node = number.checked_sub(1).and_then(|index| self.state.nodes.get(index));
        let node = node.filter(|node| node.process.is_alive());
        let node = node.ok_or_else(|| {
            ClusterError::Detached(format!(
                "run nodetool: cluster `{}` has no running node {number}",
                self.name
            ))
        })?;
        Launcher::prepare(&cache::root()?, report)?.nodetool(node.jmx_port, arguments)
    }

    /// Ends all nodes: with SIGTERM if their data is kept, so that they flush it, else with SIGKILL.
    pub fn down(self, keep_data: bool) -> Result<()> {
        let signal = if keep_data { Signal::TERM } else { Signal::KILL };
        for node in &self.state.nodes {
            node.process.signal(Signal::CONT);
            node.process.signal(signal);
        }
        for node in &self.state.nodes {
            if !node.process.wait_end(STOP_TIMEOUT) {
                return Err(ClusterError::Detached(format!(
                    "stop {}: process {} did not end in {} s",
                    node.address,
                    node.process.pid,
                    STOP_TIMEOUT.as_secs()
                )));
            }
        }
        if keep_data { Ok(()) } else { cache::remove_dir(&self.dir) }
    }
}

/// The directory of a cluster, and the lock on it.
fn open(name: &str) -> Result<(PathBuf, Lock)> {
    check_name(name)?;
    let clusters = cache::root()?.join("clusters");
    let lock = Lock::try_take(&clusters.join(format!("{name}.lock")))?
        .ok_or_else(|| ClusterError::Detached(format!("lock cluster `{name}`: another command holds it")))?;
    Ok((clusters.join(name), lock))
}

impl Shape {
    fn of(options: &ClusterOptions, network: [u8; 3]) -> Self {
        Self { nodes: options.nodes, dcs: options.dcs, network, auth: options.auth, tls: options.tls }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, dcs, network: [a, b, c], auth, tls } = self;
        write!(f, "nodes={nodes} dcs={dcs} network={a}.{b}.{c} auth={auth} tls={tls}")
    }
}

impl SavedNode {
    fn of(node_state: &crate::node::NodeState) -> Option<Self> {
        let running = node_state.running();
        let running = running.as_ref()?;
        Some(Self {
            address: node_state.plan.address,
            dc: node_state.plan.dc.clone(),
            process: running.process,
            jmx_port: running.jmx_port,
        })
    }

    fn status(&self) -> NodeStatus {
        let alive = self.process.is_alive();
        let address = SocketAddr::from((self.address, CQL_PORT));
        NodeStatus {
            address: self.address,
            dc: self.dc.clone(),
            pid: alive.then_some(self.process.pid),
            listens: alive && TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok(),
            memory: if alive { self.process.memory() } else { None },
        }
    }
}

impl State {
    /// One line for the shape, then one per node.
    fn to_text(&self) -> String {
        let mut text = format!("{}\n", self.shape);
        for node in &self.nodes {
            let SavedNode { address, dc, process: Process { pid, started }, jmx_port } = node;
            let _ = writeln!(text, "address={address} dc={dc} pid={pid} started={started} jmx={jmx_port}");
        }
        text
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let shape = lines.next()?;
        let mut network = field(shape, "network")?.split('.').map(|byte| byte.parse().ok());
        let shape = Shape {
            nodes: field(shape, "nodes")?.parse().ok()?,
            dcs: field(shape, "dcs")?.parse().ok()?,
            network: [network.next()??, network.next()??, network.next()??],
            auth: field(shape, "auth")?.parse().ok()?,
            tls: field(shape, "tls")?.parse().ok()?,
        };
        let node = |line: &str| {
            Some(SavedNode {
                address: field(line, "address")?.parse().ok()?,
                dc: field(line, "dc")?.to_owned(),
                process: Process {
                    pid: field(line, "pid")?.parse().ok()?,
                    started: field(line, "started")?.parse().ok()?,
                },
                jmx_port: field(line, "jmx")?.parse().ok()?,
            })
        };
        Some(Self { shape, nodes: lines.map(node).collect::<Option<_>>()? })
    }

    fn load(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(STATE_FILE);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.at("read", &path)?,
        };
        Self::from_text(&text).map(Some).ok_or_else(|| {
            ClusterError::Detached(format!("parse {}: it is damaged; remove it", path.display()))
        })
    }

    /// Written atomically: without this file the nodes are not found again.
    fn save(&self, dir: &Path) -> Result<()> {
        let (path, part) = (dir.join(STATE_FILE), dir.join("cluster.state.part"));
        cache::write(&part, &self.to_text())?;
        fs::rename(&part, &path).at("write", &path)
    }
}

fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            shape: Shape { nodes: 2, dcs: 1, network: [127, 0, 3], auth: true, tls: false },
            nodes: vec![
                SavedNode {
                    address: Ipv4Addr::new(127, 0, 3, 1),
                    dc: "dc1".to_owned(),
                    process: Process { pid: 4_000_001, started: 12 },
                    jmx_port: 40001,
                },
                SavedNode {
                    address: Ipv4Addr::new(127, 0, 3, 2),
                    dc: "dc1".to_owned(),
                    process: Process { pid: 4_000_002, started: 13 },
                    jmx_port: 40002,
                },
            ],
        }
    }

    #[test]
    fn a_saved_state_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(State::load(dir.path()).unwrap(), None);
        state().save(dir.path()).unwrap();
        assert_eq!(State::load(dir.path()).unwrap(), Some(state()));
    }

    #[test]
    fn a_damaged_state_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let whole = state().to_text();
        for text in ["", "nodes=2", &whole.replace("pid=4000002 ", ""), &whole.replace("127.0.3.2", "x")] {
            fs::write(dir.path().join(STATE_FILE), text).unwrap();
            let error = State::load(dir.path()).unwrap_err().to_string();
            assert!(error.ends_with("it is damaged; remove it"), "{error}");
        }
    }

    #[test]
    fn a_node_whose_process_ended_is_down() {
        let status = state().nodes[0].status();
        assert_eq!((status.pid, status.listens, status.memory), (None, false, None));
    }
}
