//! Tools that the steps need besides cargo, and how to install them.

use crate::{cargo, say};
use anyhow::Result;
use std::env;
use std::process::{Command, Stdio};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Rustfmt,
    Clippy,
    CCompiler,
    Make,
    Deny,
    Valgrind,
}

impl Tool {
    /// `None` where the tool is installed, else how to install it.
    pub(crate) fn missing(self) -> Option<&'static str> {
        (!succeeds(self.probe())).then(|| self.install())
    }

    /// The same, after an attempt to install it where this program can: with apt-get, as root.
    pub(crate) fn missing_after_install(self) -> Result<Option<&'static str>> {
        if let (Self::Valgrind, Some(_)) = (self, self.missing()) {
            mw_testbed::apt::install("valgrind", |line| say(line))?;
        }
        Ok(self.missing())
    }

    fn probe(self) -> Command {
        match self {
            Self::Rustfmt => cargo::command("fmt --version"),
            Self::Clippy => cargo::command("clippy --version"),
            Self::CCompiler => {
                let mut command = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
                command.arg("--version");
                command
            }
            Self::Make => {
                let mut command = Command::new("make");
                command.arg("--version");
                command
            }
            Self::Deny => cargo::command("deny --version"),
            Self::Valgrind => {
                let mut command = Command::new("valgrind");
                command.arg("--version");
                command
            }
        }
    }

    fn install(self) -> &'static str {
        match self {
            Self::Rustfmt => "cargo fmt is missing: run `rustup component add rustfmt`",
            Self::Clippy => "cargo clippy is missing: run `rustup component add clippy`",
            Self::CCompiler => {
                "a C compiler is missing (TLS and the allocator are built with one): run `apt-get install gcc libc6-dev`, \
                 `dnf install gcc` or `xcode-select --install`, or name yours in the variable CC"
            }
            Self::Make => {
                "make is missing (the allocator is built with it): run `apt-get install make`, `dnf install make` or \
                 `xcode-select --install`"
            }
            Self::Deny => "cargo-deny is missing: run `cargo install --locked cargo-deny`",
            Self::Valgrind => {
                "valgrind is missing (it counts instructions): run `apt-get install valgrind` or \
                 `dnf install valgrind`"
            }
        }
    }
}

fn succeeds(mut probe: Command) -> bool {
    probe
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
    fn a_missing_program_is_noticed() {
        assert!(!succeeds(Command::new("mw-no-such-program")));
        assert!(!succeeds(cargo::command("mw-no-such-subcommand")));
        assert!(succeeds(cargo::command("--version")));
    }

    #[test]
    fn every_tool_has_an_install_command() {
        for tool in [Tool::Rustfmt, Tool::Clippy, Tool::CCompiler, Tool::Make, Tool::Deny, Tool::Valgrind] {
            assert!(tool.install().contains("run `"), "{tool:?}");
        }
    }
}
