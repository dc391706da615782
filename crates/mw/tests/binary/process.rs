//! Starting the binary, waiting for its address, and ending it one way or another.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::client::Client;

/// A generous timeout, also for a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_mw")
}

/// `mw` with these arguments, without configuration in its environment.
pub(crate) fn mw(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments);
    without_settings(&mut command);
    command
}

fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MW_") {
            command.env_remove(name);
        }
    }
}

/// Runs a command that ends by itself.
pub(crate) fn run(arguments: &[&str]) -> Ended {
    ended(mw(arguments).stdin(Stdio::null()).output().unwrap())
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn ended(output: Output) -> Ended {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A server with a known address, killed on drop.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// The line that it printed.
    pub(crate) greeting: String,
    stderr: Option<JoinHandle<String>>,
    stdout: Receiver<String>,
}

impl Server {
    /// On the data directory, on a port of the system's choice.
    pub(crate) fn start(data: &Path, more: &[&str]) -> Self {
        Self::try_start(data, more).unwrap_or_else(|ended| panic!("{ended:?}"))
    }

    /// The other outcome is a process that ended instead of serving.
    pub(crate) fn try_start(data: &Path, more: &[&str]) -> Result<Self, Ended> {
        let mut command = mw(&["serve", "--listen", "127.0.0.1:0", "--data"]);
        command.arg(data).args(more);
        Self::spawn(command)
    }

    pub(crate) fn spawn(mut command: Command) -> Result<Self, Ended> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            BufReader::new(stderr).read_to_string(&mut text).unwrap();
            text
        });
        let (send, stdout) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
        let Ok(greeting) = stdout.recv_timeout(PATIENCE) else {
            let status = wait(&mut child);
            let stderr = stderr.join().unwrap();
            return Err(Ended { code: status.code(), stdout: String::new(), stderr });
        };
        let address = greeting.split('/').nth(2).and_then(|rest| rest.split(' ').next());
        let address = address.and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address in {greeting:?}"));
        Ok(Self { child, address, greeting, stderr: Some(stderr), stdout })
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.address)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// SIGTERM, then waits; the standard output is what came after the greeting.
    pub(crate) fn stop(self) -> Ended {
        self.signal(Signal::TERM);
        self.wait()
    }

    pub(crate) fn wait(mut self) -> Ended {
        let status = wait(&mut self.child);
        let stdout = self.stdout.iter().collect();
        let stderr = self.stderr.take().unwrap().join().unwrap();
        Ended { code: status.code(), stdout, stderr }
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails where the process was waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "the process does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asks again and again until it is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
