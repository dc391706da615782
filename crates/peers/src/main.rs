//! The same work of a shop, done by Mobile World and by its peers: PostgreSQL, Redis, and a bare loop over Cassandra's
//! driver. `cargo xtask bench peers` starts the servers and calls this; what comes out is figures, for it to judge.
//!
//! All do the work in turns, a round each, so that what else happens on the machine happens to all of them. Every side
//! has as many clients, of which each sends its next request when it has its answer. One failed request ends the run.

mod bare;
mod clients;
mod contest;
mod postgres;
mod processor;
mod redis;
mod shop;
mod work;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use crate::bare::BareDriver;
use crate::contest::{Contender, Figures, Pace};
use crate::postgres::Postgres;
use crate::redis::Redis;
use crate::shop::Shop;
use crate::work::{ON_CASSANDRA, ON_ONE_MACHINE, Sizes};

#[derive(Parser)]
#[command(
    about = "The same work of a shop, done by Mobile World and by its peers in turns",
    max_term_width = 100
)]
#[command(after_help = "`cargo xtask bench peers` starts the servers and calls this.")]
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
        /// An empty Redis that syncs its file before it answers
        #[arg(long, value_name = "URL")]
        redis_always: Option<String>,
    },
    /// Mobile World on Cassandra, and a bare loop over the driver on the same cluster
    Cassandra {
        #[command(flatten)]
        run: Run,
        /// Addresses of nodes, with commas between
        #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
        nodes: Vec<String>,
        /// The keyspaces of the shop begin with this
        #[arg(long, default_value = "mobile_world")]
        keyspace: String,
        /// A round of each side before those that count: nodes compile what they have seen often
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        practice: u64,
    },
}

#[derive(Args)]
struct Run {
    /// Where Mobile World serves
    #[arg(long, value_name = "URL")]
    mw: String,
    /// Its process, whose processor time is counted
    #[arg(long, value_name = "PID")]
    mw_pid: u32,
    /// Where the figures go, as JSON
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
    fn pace(&self, practice: Option<Duration>) -> Pace {
        Pace {
            clients: self.clients,
            warm_up: Duration::from_secs(self.warm_up),
            duration: Duration::from_secs(self.seconds),
            rounds: self.rounds,
            practice,
        }
    }

    fn shop(&self, sizes: &Sizes) -> Result<Shop> {
        Shop::fill(&self.mw, self.mw_pid, sizes, self.clients)
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
                let mut contenders: Vec<Box<dyn Contender>> = vec![Box::new(run.shop(&sizes)?)];
                if let Some(connection) = postgres {
                    contenders.push(Box::new(Postgres::fill(runtime, &connection, &sizes, run.clients)?));
                }
                for (name, url) in [("redis everysec", redis_everysec), ("redis always", redis_always)] {
                    if let Some(url) = url {
                        contenders.push(Box::new(Redis::fill(runtime, name, &url, &sizes, run.clients)?));
                    }
                }
                let figures = contest::hold(&mut contenders, ON_ONE_MACHINE, &run.pace(None))?;
                write(&run.out, &figures)
            }
            Self::Cassandra { run, nodes, keyspace, practice } => {
                let sizes = Sizes::ON_CASSANDRA;
                let shop = run.shop(&sizes)?;
                let bare =
                    BareDriver::connect(runtime, &nodes, &keyspace, shop.prefix(), &sizes, run.clients)?;
                let mut contenders: Vec<Box<dyn Contender>> = vec![Box::new(shop), Box::new(bare)];
                let figures = contest::hold(
                    &mut contenders,
                    ON_CASSANDRA,
                    &run.pace(Some(Duration::from_secs(practice))),
                )?;
                write(&run.out, &figures)
            }
        }
    }
}

fn write(path: &Path, figures: &[Figures]) -> Result<()> {
    let json = serde_json::to_string_pretty(figures).context("write the figures as JSON")?;
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
        let line = "mw-peers cassandra --mw http://127.0.0.1:1 --mw-pid 1 --out o.json --nodes 127.0.7.1:9042,127.0.7.2:9042";
        let Command::Cassandra { nodes, run, .. } = Cli::parse_from(line.split(' ')).command else {
            panic!("another command");
        };
        assert_eq!(nodes, ["127.0.7.1:9042", "127.0.7.2:9042"]);
        assert_eq!((run.clients, run.rounds), (64, 3));
    }
}
