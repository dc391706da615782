//! A server for the length of a run: this program as a child process, on a free port, in a temporary directory.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// For the server to stop after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(40);
const GLANCE: Duration = Duration::from_millis(20);

/// Running servers, to be killed on an immediate exit.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

pub(super) struct OwnServer {
    child: Child,
    url: String,
    _data: TempDir,
}

impl OwnServer {
    /// Its address and directory are passed in the environment, so that `options` override them.
    pub(super) fn start(options: &[OsString]) -> Result<Self> {
        let data = TempDir::with_prefix("mw-bench-").context("create a temporary directory")?;
        let program = std::env::current_exe().context("find this program")?;
        let mut child = Command::new(program)
            .arg("serve")
            .args(options)
            .env("MW_SERVER__LISTEN", "127.0.0.1:0")
            .env("MW_STORE__EMBEDDED__PATH", data.path())
            .env("MW_LOG__FILTER", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C must not reach the server: this process still needs it for its check.
            .process_group(0)
            .spawn()
            .context("start a server")?;
        let stdout = child.stdout.take().context("read from the server")?;
        let mut server = Self { child, url: String::new(), _data: data };
        if let (Ok(mut running), pid) = (RUNNING.lock(), Pid::from_child(&server.child)) {
            running.push(pid);
        }
        let mut greeting = String::new();
        BufReader::new(stdout).read_line(&mut greeting).context("read from the server")?;
        match greeting.split(' ').find(|word| word.starts_with("http")) {
            Some(url) => url.clone_into(&mut server.url),
            None => bail!("start a server: it ended before it served, see above"),
        }
        Ok(server)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Sends SIGTERM, and waits until requests in flight are finished.
    pub(super) fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).context("stop the server")?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().context("wait for the server")? {
                if !status.success() {
                    bail!("the server ended with {status}");
                }
                return Ok(());
            }
            std::thread::sleep(GLANCE);
        }
        bail!("the server did not stop in time and was killed")
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        if let (Ok(mut running), pid) = (RUNNING.lock(), Pid::from_child(&self.child)) {
            running.retain(|other| *other != pid);
        }
        // Killing a server that has ended fails, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Kills all servers, for an exit that runs no destructors.
pub(super) fn kill_all() {
    if let Ok(running) = RUNNING.lock() {
        for pid in running.iter() {
            let _ = kill_process(*pid, Signal::KILL);
        }
    }
}
