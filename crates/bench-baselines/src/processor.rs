//! CPU time of a process, of all its threads, as the kernel counts it.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// The unit of CPU time in `/proc`.
const TICKS_PER_SECOND: u64 = 100;

/// So far, in user and kernel mode together.
pub(crate) fn time_of(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let ticks = ticks(&stat).with_context(|| format!("read {path}: it has fewer fields than expected"))?;
    Ok(Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND))
}

/// The command's name is in parentheses and may contain spaces and parentheses: fields count from the last one.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    // The 14th and 15th of all, and the state is the third.
    let mut times = rest.split_whitespace().skip(11);
    let user: u64 = times.next()?.parse().ok()?;
    let kernel: u64 = times.next()?.parse().ok()?;
    Some(user + kernel)
}

/// Microseconds a request.
pub(crate) fn us_for_each(spent: Duration, requests: u64) -> Option<f64> {
    let requests = u32::try_from(requests).ok().filter(|requests| *requests > 0)?;
    Some(spent.as_secs_f64() * 1e6 / f64::from(requests))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_times_are_read_behind_any_name() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 1 2 3 4 150 50 7 8 20 0 1 0 98765 1000 50";
        assert_eq!(ticks(stat), Some(200));
        assert_eq!(ticks("42 (a) S 1"), None);
    }

    #[test]
    fn this_process_has_spent_some_time() {
        time_of(std::process::id()).unwrap();
    }

    #[test]
    fn time_is_divided_among_requests() {
        assert_eq!(us_for_each(Duration::from_secs(2), 1_000), Some(2_000.0));
        assert_eq!(us_for_each(Duration::from_secs(2), 0), None);
    }
}
