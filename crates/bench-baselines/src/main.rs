//! The same operations on Mobile World and on its baselines: PostgreSQL, Redis, and a bare loop over Cassandra's driver.
//! `cargo xtask bench baselines` starts the servers, calls this program and compares the rates that it writes.
//!
//! The sides alternate, a round each, so that other load on the machine affects all of them alike. Every side has the same
//! number of clients in a closed loop. One failed request ends the run.

mod bare;
mod clients;
mod postgres;
mod processor;
mod redis;
mod rounds;
mod shop;
mod work;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use crate::bare::BareDriver;
use crate::postgres::Postgres;
use crate::redis::Redis;
use crate::rounds::{Baseline, OperationRounds, RoundOptions};
use crate::shop::Shop;
use crate::work::{ON_CASSANDRA, ON_ONE_MACHINE, Sizes};

#[derive(Parser)]
#[command(
    about = "The same operations on Mobile World and on its baselines, in alternating rounds",
    max_term_width = 100
)]
#[command(after_help = "`cargo xtask bench baselines` starts the servers and calls this.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Mobile World on its embedded engine, PostgreSQL and Redis
    Embedded {
        #[command(flatten)]
        run: Run,
        /// An empty database, as `host=… port=… user=… dbname=…`
        #[arg(long, value_name = "CONNECTION")]
        postgres: Option<String>,
        /// An empty Redis that syncs its file every second, as redis://host:port
        #[arg(long, value_name = "URL")]
        redis_everysec: Option<String>,
        /// An empty Redis that syncs its file before it responds
        #[arg(long, value_name = "URL")]
        redis_always: Option<String>,
    },
    /// Mobile World on Cassandra, and a bare loop over the driver on the same cluster
    Cassandra {
        #[command(flatten)]
        run: Run,
        /// Addresses of nodes, separated by commas
        #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
        nodes: Vec<String>,
        /// The prefix of the keyspaces of the shop
        #[arg(long, default_value = "mobile_world")]
        keyspace: String,
        /// An unmeasured round of each side before the others, in which the nodes' JIT compiles the hot code
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        practice: u64,
        /// URL of another build of Mobile World with keyspaces of its own on the same cluster
        #[arg(long, value_name = "URL", requires = "earlier_pid")]
        earlier: Option<String>,
        #[arg(long, value_name = "PID")]
        earlier_pid: Option<u32>,
    },
}

#[derive(Args)]
struct Run {
    /// URL of Mobile World
    #[arg(long, value_name = "URL")]
    mw: String,
    /// Its process id, for its CPU time
    #[arg(long, value_name = "PID")]
    mw_pid: u32,
    /// The file for the results, as JSON
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Clients of each side
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    clients: usize,
    /// How long a round is
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    seconds: u64,
    /// Before each round, unmeasured
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    warm_up: u64,
    /// Rounds of each side
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    rounds: usize,
}

impl Run {
    fn options(&self, practice: Option<Duration>) -> RoundOptions {
        RoundOptions {
            clients: self.clients,
            warm_up: Duration::from_secs(self.warm_up),
            duration: Duration::from_secs(self.seconds),
            rounds: self.rounds,
            practice,
        }
    }

    fn shop(&self, sizes: &Sizes) -> Result<Shop> {
        Shop::fill("mw", (&self.mw, self.mw_pid), sizes, self.clients)
    }
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn run(self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("start threads for the clients")?;
        let runtime = runtime.handle();
        match self {
            Self::Embedded { run, postgres, redis_everysec, redis_always } => {
                let sizes = Sizes::ON_ONE_MACHINE;
                let mut baselines: Vec<Box<dyn Baseline>> = vec![Box::new(run.shop(&sizes)?)];
                if let Some(connection) = postgres {
                    baselines.push(Box::new(Postgres::fill(runtime, &connection, &sizes, run.clients)?));
                }
                for (name, url) in [("redis everysec", redis_everysec), ("redis always", redis_always)] {
                    if let Some(url) = url {
                        baselines.push(Box::new(Redis::fill(runtime, name, &url, &sizes, run.clients)?));
                    }
                }
                let results = rounds::run(&mut baselines, ON_ONE_MACHINE, &run.options(None))?;
                write(&run.out, &results)
            }
            Self::Cassandra { run, nodes, keyspace, practice, earlier, earlier_pid } => {
                let sizes = Sizes::ON_CASSANDRA;
                let shop = run.shop(&sizes)?;
                let bare =
                    BareDriver::connect(runtime, &nodes, &keyspace, shop.prefix(), &sizes, run.clients)?;
                let mut baselines: Vec<Box<dyn Baseline>> = vec![Box::new(shop), Box::new(bare)];
                if let Some((url, pid)) = earlier.as_deref().zip(earlier_pid) {
                    baselines.push(Box::new(Shop::fill("earlier mw", (url, pid), &sizes, run.clients)?));
                }
                let results = rounds::run(
                    &mut baselines,
                    ON_CASSANDRA,
                    &run.options(Some(Duration::from_secs(practice))),
                )?;
                write(&run.out, &results)
            }
        }
    }
}

fn write(path: &Path, results: &[OperationRounds]) -> Result<()> {
    let json = serde_json::to_string_pretty(results).context("write the results as JSON")?;
    fs::write(path, json + "\n").with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn nodes_are_given_with_commas() {
        let line = "mw-bench-baselines cassandra --mw http://127.0.0.1:1 --mw-pid 1 --out o.json --nodes 127.0.7.1:9042,127.0.7.2:9042";
        let Command::Cassandra { nodes, run, .. } = Cli::parse_from(line.split(' ')).command else {
            panic!("another command");
        };
        assert_eq!(nodes, ["127.0.7.1:9042", "127.0.7.2:9042"]);
        assert_eq!((run.clients, run.rounds), (64, 3));
        let lonely = line.split(' ').chain(["--earlier", "http://127.0.0.1:2"]);
        assert!(Cli::try_parse_from(lonely).is_err(), "its process id is missing");
    }
}
