//! A node: its process, and the operations on it while the cluster runs.

use crate::cluster::Cluster;
use crate::log;
use crate::options::Plan;
use mw_testbed::{ClusterError, Doing, Process, Result};
use rustix::process::Signal;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(50);
/// How long a node may take to end after SIGTERM.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_mins(1);

/// A node of a cluster that this process started. All operations are safe from several threads.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) node_state: &'a NodeState,
}

/// The state of a node: its plan and directory, and its process while it runs.
#[derive(Debug)]
pub(crate) struct NodeState {
    pub(crate) plan: Plan,
    pub(crate) dir: PathBuf,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) process: Process,
    pub(crate) jmx_port: u16,
    /// The length of the log when this run started.
    pub(crate) log_from: u64,
    pub(crate) paused: bool,
}

impl NodeState {
    pub(crate) fn new(plan: Plan, dir: PathBuf) -> Self {
        Self { plan, dir, running: Mutex::new(None) }
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.dir.join("system.log")
    }

    pub(crate) fn output_path(&self) -> PathBuf {
        self.dir.join("output.log")
    }

    pub(crate) fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log of this run; empty if the node does not run.
    pub(crate) fn logged(&self) -> String {
        let from = self.running().as_ref().map(|running| running.log_from);
        from.map(|from| log::since(&self.log_path(), from)).unwrap_or_default()
    }

    pub(crate) fn failed(&self, what: impl Into<String>) -> ClusterError {
        let log = log::tails(&[&self.output_path(), &self.log_path()]);
        ClusterError::Node { node: self.plan.number.to_string(), what: what.into(), log }
    }

    /// Waits until `reached`; fails when the process ends or `deadline` has passed. `what` names what was awaited.
    pub(crate) fn wait(
        &self,
        deadline: Instant,
        what: &str,
        mut reached: impl FnMut() -> bool,
    ) -> Result<()> {
        loop {
            if reached() {
                return Ok(());
            }
            if let Some(running) = self.running().as_mut()
                && let Some(status) =
                    running.child.try_wait().doing(|| "read the status of a node".to_owned())?
            {
                return Err(self.failed(format!("did not {what}: it ended with {status}")));
            }
            if Instant::now() >= deadline {
                return Err(self.failed(format!("did not {what} in time")));
            }
            thread::sleep(POLL);
        }
    }

    pub(crate) fn wait_listening(&self, deadline: Instant) -> Result<()> {
        self.wait(deadline, "start", || self.logged().contains(log::LISTENING))?;
        let address = SocketAddr::from((self.plan.address, crate::CQL_PORT));
        self.wait(deadline, "listen", || TcpStream::connect_timeout(&address, POLL).is_ok())
    }

    /// Kills the process, if there is one.
    pub(crate) fn kill(&self) -> Result<()> {
        if let Some(mut running) = self.running().take() {
            running.child.kill().doing(|| "kill a node".to_owned())?;
            running.child.wait().doing(|| "wait for a node".to_owned())?;
        }
        Ok(())
    }
}

impl Node<'_> {
    pub fn address(&self) -> Ipv4Addr {
        self.node_state.plan.address
    }

    pub fn dc(&self) -> &str {
        &self.node_state.plan.dc
    }

    pub fn pid(&self) -> Option<u32> {
        self.node_state.running().as_ref().map(|running| running.process.pid)
    }

    pub fn log_path(&self) -> PathBuf {
        self.node_state.log_path()
    }

    /// The directory of its data, commit log and hints.
    pub fn dir(&self) -> &Path {
        &self.node_state.dir
    }

    /// Pauses the process (SIGSTOP): it keeps its connections open and does not respond.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP, true)
    }

    /// Resumes a paused node.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT, false)
    }

    /// Crashes the node (SIGKILL); its data is kept.
    pub fn kill(&self) -> Result<()> {
        self.node_state.kill()
    }

    /// Stops the node (SIGTERM), and waits until it has ended.
    pub fn stop(&self) -> Result<()> {
        self.resume_if_paused();
        let mut guard = self.node_state.running();
        let Some(running) = guard.as_mut() else { return Ok(()) };
        running.process.signal(Signal::TERM);
        let deadline = Instant::now() + STOP_TIMEOUT;
        while running.child.try_wait().doing(|| "wait for a node".to_owned())?.is_none() {
            if Instant::now() >= deadline {
                drop(guard);
                return Err(self.node_state.failed("did not stop in time"));
            }
            thread::sleep(POLL);
        }
        *guard = None;
        Ok(())
    }

    /// Stops the node if it runs, and starts it on its data. Returns when it accepts clients and the other running nodes
    /// see it.
    pub fn restart(&self) -> Result<()> {
        self.stop()?;
        self.cluster.restart(self.node_state)
    }

    /// The output of `nodetool <arguments>` on this node.
    pub fn nodetool(&self, arguments: &[&str]) -> Result<String> {
        let port = self.node_state.running().as_ref().map(|running| running.jmx_port);
        let port = port.ok_or_else(|| self.node_state.failed("is not running"))?;
        self.cluster.launch.nodetool(port, arguments)
    }

    fn signal(&self, signal: Signal, paused: bool) -> Result<()> {
        let mut guard = self.node_state.running();
        let Some(running) = guard.as_mut() else {
            drop(guard);
            return Err(self.node_state.failed("is not running"));
        };
        running.process.signal(signal);
        running.paused = paused;
        Ok(())
    }

    fn resume_if_paused(&self) {
        if let Some(running) = self.node_state.running().as_mut().filter(|running| running.paused) {
            running.process.signal(Signal::CONT);
            running.paused = false;
        }
    }
}
