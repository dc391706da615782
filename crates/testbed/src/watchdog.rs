//! The watchdog: no node outlives this process. Nodes run in the process group of a small shell that reads a pipe whose
//! other end only this process holds. When this process ends, by Ctrl-C or `kill -9`, the pipe closes and the shell kills
//! its group. A node joins the group before it executes, so none is missed.

use crate::error::{ClusterError, Doing, Result};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

/// The shell ignores signals: it notices a Ctrl-C by the end of the pipe.
const SCRIPT: &str = "trap '' HUP INT QUIT TERM; IFS= read -r line; [ \"$line\" = release ] || kill -9 0";

#[derive(Debug)]
pub struct Watchdog {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    pub fn start() -> Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .doing(|| "start sh".to_owned())?;
        let pipe = shell.stdin.take();
        Ok(Self { shell, pipe })
    }

    /// Puts `command` into the group that ends with this process.
    pub fn guard(&self, command: &mut Command) -> Result<()> {
        let group = i32::try_from(self.shell.id())
            .map_err(|_| ClusterError::Options("the watchdog's pid is out of range".to_owned()))?;
        command.process_group(group);
        Ok(())
    }

    /// Lets the group outlive this process.
    pub fn release(&mut self) -> Result<()> {
        if let Some(mut pipe) = self.pipe.take() {
            pipe.write_all(b"release\n").doing(|| "release the nodes".to_owned())?;
        }
        self.shell.wait().doing(|| "wait for the watchdog".to_owned()).map(drop)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;
    use std::time::Duration;

    fn sleeper(watchdog: &Watchdog) -> Child {
        let mut command = Command::new("sleep");
        command.arg("60");
        watchdog.guard(&mut command).unwrap();
        command.spawn().unwrap()
    }

    #[test]
    fn guarded_processes_end_with_the_watchdog() {
        let watchdog = Watchdog::start().unwrap();
        let mut child = sleeper(&watchdog);
        drop(watchdog);
        let status = child.wait().unwrap();
        assert!(!status.success());
    }

    #[test]
    fn a_stopped_process_ends_with_the_watchdog() {
        let watchdog = Watchdog::start().unwrap();
        let mut child = sleeper(&watchdog);
        Process::find(child.id()).unwrap().signal(rustix::process::Signal::STOP);
        drop(watchdog);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_released_process_goes_on() {
        let mut watchdog = Watchdog::start().unwrap();
        let mut child = sleeper(&watchdog);
        watchdog.release().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
