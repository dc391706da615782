//! Mobile World's server during a comparison, and the start and stop of all servers.

use super::process_group::ProcessGroup;
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// For a server to start or to stop.
pub(super) const TIMEOUT: Duration = Duration::from_mins(1);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Shop {
    server: Server,
    url: String,
}

impl Shop {
    pub(super) fn start(
        group: &ProcessGroup,
        program: &Path,
        environment: &[(&str, &str)],
        options: &[&str],
    ) -> Result<Self> {
        let mut command = group.command(program)?;
        command
            .arg("serve")
            .args(options)
            .env("MW_SERVER__LISTEN", "127.0.0.1:0")
            .env("MW_LOG__FILTER", "warn")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped());
        let mut server = Server::start("mw serve", &mut command)?;
        let stdout = server.child.stdout.take().context("read from mw serve")?;
        let mut greeting = String::new();
        BufReader::new(stdout).read_line(&mut greeting).context("read from mw serve")?;
        match greeting.split(' ').find(|word| word.starts_with("http")) {
            Some(url) => Ok(Self { url: url.to_owned(), server }),
            None => bail!("start mw serve: it ended before it served, see above"),
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn pid(&self) -> u32 {
        self.server.child.id()
    }

    pub(super) fn stop(self) -> Result<()> {
        self.server.stop("TERM")
    }
}

/// A server process, killed on drop.
pub(super) struct Server {
    name: &'static str,
    child: Child,
}

impl Server {
    pub(super) fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        Ok(Self { name, child })
    }

    /// Waits until it is ready; an error if it ends before, or at the timeout.
    pub(super) fn wait(&mut self, mut is_ready: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !is_ready() {
            if let Some(status) = self.child.try_wait().with_context(|| format!("wait for {}", self.name))? {
                bail!("start {}: it ended with {status}", self.name);
            }
            ensure!(Instant::now() < deadline, "start {}: it is not ready after {TIMEOUT:?}", self.name);
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Sends a signal, and waits for the end of the process.
    pub(super) fn stop(mut self, signal: &str) -> Result<()> {
        let doing = || format!("stop {}", self.name);
        let status = Command::new("kill").arg(format!("-{signal}")).arg(self.child.id().to_string()).status();
        ensure!(status.with_context(doing)?.success(), "stop {}: it had ended before", self.name);
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().with_context(doing)? {
                ensure!(status.success(), "stop {}: it ended with {status}", self.name);
                return Ok(());
            }
            thread::sleep(POLL_INTERVAL);
        }
        bail!("stop {}: it did not end after {TIMEOUT:?} and was killed", self.name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Killing a process that has ended fails, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
