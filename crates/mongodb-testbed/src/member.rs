//! A member: one mongod or mongos process, and the operations on it while the cluster runs.

use crate::cluster::Cluster;
use crate::options::{Plan, Role};
use crate::ports::ClaimedPort;
use bson::{Document, doc};
use mw_testbed::{ClusterError, Doing, Process, Result, log};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const POLL: Duration = Duration::from_millis(20);
/// How long a member may take to end after SIGTERM.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a command of the testbed may take.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a member may take to say what it is; a paused one never does.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// A primary that stepped down stands for no election for this time.
const STEP_DOWN_SECONDS: i32 = 10;

/// A member of a cluster that this process started. All operations are safe from several threads.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) state: &'a MemberState,
}

/// The state of a member: its plan, port and directory, and its process while it runs.
#[derive(Debug)]
pub(crate) struct MemberState {
    pub(crate) plan: Plan,
    pub(crate) port: ClaimedPort,
    pub(crate) dir: PathBuf,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) process: Process,
    pub(crate) paused: bool,
}

impl MemberState {
    pub(crate) fn new(plan: Plan, port: ClaimedPort, dir: PathBuf) -> Self {
        Self { plan, port, dir, running: Mutex::new(None) }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.port)
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    pub(crate) fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failed(&self, what: impl Into<String>) -> ClusterError {
        let log = log::tails(&[&self.log_path()]);
        ClusterError::Node { node: self.plan.name.clone(), what: what.into(), log }
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
                    running.child.try_wait().doing(|| "read the status of a member".to_owned())?
            {
                return Err(self.failed(format!("did not {what}: it ended with {status}")));
            }
            if Instant::now() >= deadline {
                return Err(self.failed(format!("did not {what} in time")));
            }
            thread::sleep(POLL);
        }
    }

    /// Kills the process, if there is one.
    pub(crate) fn kill(&self) -> Result<()> {
        if let Some(mut running) = self.running().take() {
            running.child.kill().doing(|| "kill a member".to_owned())?;
            running.child.wait().doing(|| "wait for a member".to_owned())?;
        }
        Ok(())
    }
}

impl Member<'_> {
    /// Unique in the cluster, such as `rs0-1`, `a-2` or `mongos`.
    pub fn name(&self) -> &str {
        &self.state.plan.name
    }

    /// The replica set; `None` for a standalone server and for mongos.
    pub fn set(&self) -> Option<&'static str> {
        self.state.plan.set
    }

    /// Host and port, as the replica set's configuration has it.
    pub fn address(&self) -> String {
        self.state.address()
    }

    pub fn pid(&self) -> Option<u32> {
        self.state.running().as_ref().map(|running| running.process.pid)
    }

    pub fn log_path(&self) -> PathBuf {
        self.state.log_path()
    }

    pub fn dir(&self) -> &Path {
        &self.state.dir
    }

    /// A URI that reaches this member and no other.
    pub fn uri(&self) -> String {
        self.cluster.uri_of(&self.address(), "directConnection=true")
    }

    /// The reply of this very member to a command; `ok: 0` is an error.
    pub fn command(&self, database: &str, command: Document) -> Result<Document> {
        self.cluster.access().client(self.state.port.port, COMMAND_TIMEOUT)?.run(database, command)
    }

    /// Whether it responds and is the primary now.
    pub fn is_primary(&self) -> bool {
        self.hello().is_some_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))
    }

    /// Whether it is a primary, a secondary, or a mongos that serves.
    pub(crate) fn serves(&self) -> bool {
        let is = |hello: &Document, key: &str| hello.get_bool(key).unwrap_or(false);
        self.hello().is_some_and(|hello| is(&hello, "isWritablePrimary") || is(&hello, "secondary"))
    }

    pub(crate) fn hello(&self) -> Option<Document> {
        self.cluster.access().anonymous(self.state.port.port, HELLO_TIMEOUT).ok()?.hello().ok()
    }

    /// Pauses the process (SIGSTOP): it keeps its connections open and does not respond.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP, true)
    }

    /// Resumes a paused member.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT, false)
    }

    /// Crashes the member (SIGKILL); its data is kept.
    pub fn kill(&self) -> Result<()> {
        self.state.kill()
    }

    /// Stops the member (SIGTERM; a primary steps down first), and waits until it has ended.
    pub fn stop(&self) -> Result<()> {
        self.resume_if_paused();
        let mut guard = self.state.running();
        let Some(running) = guard.as_mut() else { return Ok(()) };
        running.process.signal(Signal::TERM);
        let deadline = Instant::now() + STOP_TIMEOUT;
        while running.child.try_wait().doing(|| "wait for a member".to_owned())?.is_none() {
            if Instant::now() >= deadline {
                drop(guard);
                return Err(self.state.failed("did not stop in time"));
            }
            thread::sleep(POLL);
        }
        *guard = None;
        Ok(())
    }

    /// Stops the member if it runs, and starts it on its data. Returns when it serves as primary or secondary.
    pub fn restart(&self) -> Result<()> {
        self.stop()?;
        self.cluster.spawn(self.state)?;
        let needs_election = self.state.plan.role != Role::Mongos && self.cluster.lacks_majority(self.state);
        self.state.wait(self.cluster.deadline(), "serve", || {
            // Without a majority it can be no primary, and need not be a secondary yet.
            self.serves() || (needs_election && self.hello().is_some())
        })
    }

    /// Makes a primary give up its office. It stands for no election for ten seconds; another member is elected at once.
    pub fn step_down(&self) -> Result<()> {
        let command = doc! {
            "replSetStepDown": STEP_DOWN_SECONDS, "secondaryCatchUpPeriodSecs": STEP_DOWN_SECONDS / 2, "force": true,
        };
        self.command("admin", command).map(drop)
    }

    fn signal(&self, signal: Signal, paused: bool) -> Result<()> {
        let mut guard = self.state.running();
        let Some(running) = guard.as_mut() else {
            drop(guard);
            return Err(self.state.failed("is not running"));
        };
        running.process.signal(signal);
        running.paused = paused;
        Ok(())
    }

    fn resume_if_paused(&self) {
        if let Some(running) = self.state.running().as_mut().filter(|running| running.paused) {
            running.process.signal(Signal::CONT);
            running.paused = false;
        }
    }
}
