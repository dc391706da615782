//! A server for the length of a run: this very program as a process of its own, on a free port, in a temporary directory.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// After being asked to stop.
const PATIENCE: Duration = Duration::from_secs(40);
const GLANCE: Duration = Duration::from_millis(20);

/// Servers that run, to be ended also where nobody can wait any more.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

pub(super) struct OwnServer {
    child: Child,
    url: String,
    _data: TempDir,
}

impl OwnServer {
    /// Its address and directory are settings of the environment, so that `options` come before them.
    pub(super) fn start(options: &[OsString]) -> Result<Self> {
        let data = TempDir::with_prefix("mw-bench-").context("make a temporary directory")?;
        let program = std::env::current_exe().context("find this program")?;
        let mut child = Command::new(program)
            .arg("serve")
            .args(options)
            .env("MW_SERVER__LISTEN", "127.0.0.1:0")
            .env("MW_STORE__EMBEDDED__PATH", data.path())
            .env("MW_LOG__FILTER", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C is for this process, which still needs the server for its checks.
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

    /// Lets it finish what is under way, and waits.
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
        // One that has ended already cannot be killed, and needs not be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends all servers at once, for an exit that runs nothing else.
pub(super) fn kill_all() {
    if let Ok(running) = RUNNING.lock() {
        for pid in running.iter() {
            let _ = kill_process(*pid, Signal::KILL);
        }
    }
}
