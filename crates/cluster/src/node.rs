//! A node: its process, and what may be done to it while the cluster runs.

use crate::cluster::Cluster;
use crate::error::{ClusterError, Doing, Result};
use crate::log;
use crate::options::Plan;
use crate::process::Process;
use rustix::process::Signal;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(50);
/// How long a node may take to end by itself before it is an error.
pub(crate) const STOP_PATIENCE: Duration = Duration::from_mins(1);

/// A node of a cluster that this process started. All changes are safe from several threads.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) slot: &'a Slot,
}

/// The place of a node in its cluster, with its process while it has one.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) plan: Plan,
    pub(crate) dir: PathBuf,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) process: Process,
    pub(crate) jmx_port: u16,
    /// Where the log of this run begins.
    pub(crate) log_from: u64,
    pub(crate) paused: bool,
}

impl Slot {
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

    /// What this run has logged; nothing when none is there.
    pub(crate) fn logged(&self) -> String {
        let from = self.running().as_ref().map(|running| running.log_from);
        from.map(|from| log::since(&self.log_path(), from)).unwrap_or_default()
    }

    pub(crate) fn failed(&self, what: impl Into<String>) -> ClusterError {
        let log = log::tails(&[&self.output_path(), &self.log_path()]);
        ClusterError::Node { node: self.plan.number, what: what.into(), log }
    }

    /// Waits until `reached`, and gives up when the process ends or `deadline` has passed; `what` says what it did not
    /// do by then.
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
                && let Some(status) = running.child.try_wait().doing(|| "look at a node".to_owned())?
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

    /// Ends the process at once, whatever it is doing. Nothing happens when there is none.
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
        self.slot.plan.address
    }

    pub fn dc(&self) -> &str {
        &self.slot.plan.dc
    }

    pub fn pid(&self) -> Option<u32> {
        self.slot.running().as_ref().map(|running| running.process.pid)
    }

    pub fn log_path(&self) -> PathBuf {
        self.slot.log_path()
    }

    /// Data, commit log and hints are below it.
    pub fn dir(&self) -> &Path {
        &self.slot.dir
    }

    /// The node stands still: it keeps its connections and answers nothing.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP, true)
    }

    /// Lets a paused node go on.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT, false)
    }

    /// A crash: the process is gone at once, its data is not.
    pub fn kill(&self) -> Result<()> {
        self.slot.kill()
    }

    /// Asks the node to end, and waits until it has.
    pub fn stop(&self) -> Result<()> {
        self.resume_if_paused();
        let mut place = self.slot.running();
        let Some(running) = place.as_mut() else { return Ok(()) };
        running.process.signal(Signal::TERM);
        let deadline = Instant::now() + STOP_PATIENCE;
        while running.child.try_wait().doing(|| "wait for a node".to_owned())?.is_none() {
            if Instant::now() >= deadline {
                drop(place);
                return Err(self.slot.failed("did not stop in time"));
            }
            thread::sleep(POLL);
        }
        *place = None;
        Ok(())
    }

    /// Stops the node if it runs, and starts it on the data that it has. Returns when clients may come and the other
    /// nodes that run have seen it.
    pub fn restart(&self) -> Result<()> {
        self.stop()?;
        self.cluster.start_again(self.slot)
    }

    /// What `nodetool <arguments>` prints, asked of this node.
    pub fn nodetool(&self, arguments: &[&str]) -> Result<String> {
        let port = self.slot.running().as_ref().map(|running| running.jmx_port);
        let port = port.ok_or_else(|| self.slot.failed("is not running"))?;
        self.cluster.launch.nodetool(port, arguments)
    }

    fn signal(&self, signal: Signal, paused: bool) -> Result<()> {
        let mut place = self.slot.running();
        let Some(running) = place.as_mut() else {
            drop(place);
            return Err(self.slot.failed("is not running"));
        };
        running.process.signal(signal);
        running.paused = paused;
        Ok(())
    }

    fn resume_if_paused(&self) {
        if let Some(running) = self.slot.running().as_mut().filter(|running| running.paused) {
            running.process.signal(Signal::CONT);
            running.paused = false;
        }
    }
}
