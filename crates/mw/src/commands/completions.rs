//! `mw completions`: shell completion scripts.

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;
use crate::terminal;

/// Print a script that completes `mw` in a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  mw completions bash > /etc/bash_completion.d/mw
  mw completions zsh  > \"${fpath[1]}/_mw\"
  mw completions fish > ~/.config/fish/completions/mw.fish")]
pub(crate) struct Args {
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "mw", &mut script);
    terminal::print(&String::from_utf8_lossy(&script))
}
