//! Calling cargo: from the workspace root, with an environment like the developer's own shell.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The part of `cargo metadata` that the house rules read.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    /// Where cargo builds.
    pub(crate) target_directory: PathBuf,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: String,
    pub(crate) dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `None` for an ordinary dependency, else `dev` or `build`.
    pub(crate) kind: Option<String>,
}

impl Dependency {
    pub(crate) fn is_dev(&self) -> bool {
        self.kind.as_deref() == Some("dev")
    }
}

impl Metadata {
    /// The workspace's own packages and what they declare. Needs neither the network nor a lock file.
    pub(crate) fn load() -> Result<Self> {
        let output = command("metadata --format-version 1 --no-deps")
            .stderr(Stdio::inherit())
            .output()
            .context("run cargo metadata")?;
        ensure!(output.status.success(), "run cargo metadata: {}", output.status);
        serde_json::from_slice(&output.stdout).context("read cargo metadata")
    }
}

pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// `cargo <arguments>` in the workspace root. The child shares the terminal and the process group, so that Ctrl-C ends
/// it too.
pub(crate) fn command(arguments: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments.split_whitespace()).current_dir(root()).stdin(Stdio::null());
    // Build scripts such as ring's watch these: left in place, every run from here would rebuild what a run from
    // the shell has built.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(describes_this_package) {
            command.env_remove(name);
        }
    }
    command
}

/// A message of cargo during a build.
#[derive(Deserialize)]
struct Built {
    executable: Option<PathBuf>,
}

/// Builds with these arguments, which ask for messages as JSON; returns the program.
pub(crate) fn program(arguments: &str) -> Result<PathBuf> {
    let output = command(arguments).stderr(Stdio::inherit()).output().context("run cargo")?;
    ensure!(output.status.success(), "build the program that is counted: cargo ended with {}", output.status);
    executable(&String::from_utf8_lossy(&output.stdout)).context("cargo built no program")
}

fn executable(messages: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Built>(line).ok())
        .find_map(|built| built.executable)
}

fn describes_this_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
        .iter()
        .any(|prefix| variable.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_do_not_see_this_package() {
        let removed: Vec<_> = command("--version")
            .get_envs()
            .filter(|(_, value)| value.is_none())
            .map(|(name, _)| name.to_owned())
            .collect();
        assert!(removed.iter().any(|name| name == "CARGO_PKG_NAME"), "{removed:?}");
        assert!(!describes_this_package("CARGO_TARGET_DIR"));
        assert!(!describes_this_package("CARGO_HOME"));
    }

    #[test]
    fn the_program_is_found_among_what_cargo_says() {
        let messages = "not json\n\
                    {\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                    {\"reason\":\"compiler-artifact\",\"executable\":\"/t/counts-1\"}\n\
                    {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages), Some(PathBuf::from("/t/counts-1")));
        assert_eq!(executable("{\"reason\":\"build-finished\",\"success\":true}\n"), None);
    }

    #[test]
    fn metadata_lists_the_workspace() {
        let metadata = Metadata::load().expect("metadata");
        let own = metadata.packages.iter().find(|package| package.name == "xtask").expect("this package");
        assert!(own.dependencies.iter().any(|dependency| dependency.name == "anyhow"));
    }
}
