//! Processes by identity: pid and start time. Pids are reused, so the start time is compared before a signal is sent.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// In clock ticks since the machine started.
    pub started: u64,
}

const POLL: Duration = Duration::from_millis(20);

impl Process {
    /// `None` if no process has this pid.
    pub fn find(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, started) = state_and_start(&stat)?;
        (state != 'Z').then_some(Self { pid, started })
    }

    pub fn is_alive(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    /// Resident memory in bytes.
    pub fn memory(self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    }

    /// Does nothing if it has ended.
    pub fn signal(self, signal: Signal) {
        if let Some(pid) = self.rustix_pid()
            && self.is_alive()
        {
            // It may end in between, which is no error.
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether it ended within `timeout`.
    pub fn wait_end(self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
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

/// The command name is in parentheses and may contain spaces and parentheses: fields are counted after the last one.
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
    fn the_start_time_is_parsed_after_any_command_name() {
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
    fn a_reused_pid_gets_no_signal() {
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
