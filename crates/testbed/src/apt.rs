//! Installs system packages, where that is possible.

use crate::error::{Doing, Result};
use std::path::Path;
use std::process::{Command, Stdio};

/// With apt-get and as root only. On other machines it does nothing, and the caller reports what is missing.
pub fn install(package: &str, report: fn(&str)) -> Result<()> {
    if !rustix::process::geteuid().is_root() || !runs(Path::new("apt-get"), "--version") {
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
        // Services of a package are not started: the caller starts what it needs.
        .env("RUNLEVEL", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map(|status| status.success())
        .doing(|| "run apt-get".to_owned())
}

pub fn runs(program: &Path, argument: &str) -> bool {
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
        assert!(!runs(Path::new("mw-no-such-program"), "-version"));
    }
}
