//! Processes by identity. A pid alone is no identity, since it is given out again: it is compared with the moment its
//! process started before a signal is sent.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// In clock ticks since the machine started.
    pub(crate) started: u64,
}

const POLL: Duration = Duration::from_millis(20);

impl Process {
    /// `None` when no process has this pid.
    pub(crate) fn find(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, started) = state_and_start(&stat)?;
        (state != 'Z').then_some(Self { pid, started })
    }

    pub(crate) fn is_alive(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    /// Resident memory in bytes.
    pub(crate) fn memory(self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    }

    /// Nothing happens when it has ended.
    pub(crate) fn signal(self, signal: Signal) {
        if let Some(pid) = self.rustix_pid()
            && self.is_alive()
        {
            // It may end in between: then there is nobody to tell.
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether it ended within `patience`.
    pub(crate) fn wait_end(self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }

    fn rustix_pid(self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.pid).ok()?)
    }
}

/// The command's name stands in parentheses and may have spaces and parentheses itself: fields count from the last one.
fn state_and_start(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The 22nd of all, and the state is the third.
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_start_is_read_behind_any_name() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 50";
        assert_eq!(state_and_start(stat), Some(('S', 98765)));
    }

    #[test]
    fn this_process_is_alive_and_has_memory() {
        let own = Process::find(std::process::id()).unwrap();
        assert!(own.is_alive());
        assert!(own.memory().unwrap() > 0);
    }

    #[test]
    fn a_pid_that_was_given_out_again_gets_no_signal() {
        let mut child = Command::new("sleep").arg("30").spawn().unwrap();
        let real = Process::find(child.id()).unwrap();
        let former = Process { started: real.started - 1, ..real };
        assert!(!former.is_alive());
        former.signal(Signal::KILL);
        assert!(child.try_wait().unwrap().is_none());
        real.signal(Signal::KILL);
        child.wait().unwrap();
        assert!(!real.is_alive());
        assert!(real.wait_end(Duration::ZERO));
    }
}
