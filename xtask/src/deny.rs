//! `cargo xtask deny`: dependencies against deny.toml. Apart from `test`, since cargo-deny is a large install.

use crate::cargo;
use crate::tools::Tool;
use anyhow::{Context, Result, bail, ensure};

pub(crate) fn run() -> Result<()> {
    if let Some(install) = Tool::Deny.missing() {
        bail!("{install}");
    }
    let status = cargo::command("deny check").status().context("run cargo deny")?;
    ensure!(status.success(), "check dependencies: cargo deny ended with {status}");
    Ok(())
}
