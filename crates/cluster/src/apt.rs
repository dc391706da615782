//! Packages of the system, where it is one that we know and may change.

use crate::error::{Doing, Result};
use std::path::Path;
use std::process::{Command, Stdio};

/// With apt-get, and only as root: on other machines it does nothing, and the caller says what is missing.
pub fn install(package: &str, report: fn(&str)) -> Result<()> {
    if !rustix::process::geteuid().is_root() || !answers(Path::new("apt-get"), "--version") {
        return Ok(());
    }
    report(&format!("installing {package} with apt-get"));
    if !apt_get(&["install", package])? {
        report("refreshing the list of packages");
        apt_get(&["update"])?;
        apt_get(&["install", package])?;
    }
    Ok(())
}

fn apt_get(arguments: &[&str]) -> Result<bool> {
    Command::new("apt-get")
        .args(["-qq", "-y", "--no-install-recommends"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Services that come with a package are not started: what is needed here is started here.
        .env("RUNLEVEL", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map(|status| status.success())
        .doing(|| "run apt-get".to_owned())
}

pub(crate) fn answers(program: &Path, argument: &str) -> bool {
    Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_does_not_answer() {
        assert!(!answers(Path::new("mw-no-such-program"), "-version"));
    }
}
