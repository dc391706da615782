//! The binary: reads the command line, runs one command, turns its outcome into an exit code.

mod commands;
mod config;
mod demo;
mod open_files;
mod operations;
mod replies;
mod runtime;
mod shop_client;
mod storage;
mod terminal;
mod trace;

use std::process::ExitCode;

use clap::Parser;
use tikv_jemallocator::Jemalloc;

use crate::commands::Cli;
use crate::config::ConfigError;

/// A server allocates many small objects on few threads; the system allocator takes a tenth of its time.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// The exit code for a bad configuration, the same as for bad options.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            terminal::error(&error);
            if error.is::<ConfigError>() { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
        }
    }
}
