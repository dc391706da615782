//! The binary: reads the command line, runs one command, turns its outcome into an exit code.

mod commands;
mod config;
mod demo;
mod record;
mod runtime;
mod storage;
mod terminal;

use std::process::ExitCode;

use clap::Parser;
use tikv_jemallocator::Jemalloc;

use crate::commands::Cli;
use crate::config::ConfigError;

/// A server makes and frees many small pieces on few threads; the system's allocator takes a tenth of its time for it.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// A command that was refused for its configuration ends as one that was refused for its options.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            terminal::complain(&error);
            if error.is::<ConfigError>() { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
        }
    }
}
