//! `cargo xtask bench`: Mobile World beside others who do the same work, in the same run on the same machine.
//!
//! This starts and stops the servers and judges the figures; the work itself is in `crates/peers`, which has the drivers.

mod guard;
mod peers;
mod shop;
mod table;

use crate::cluster::network;
use crate::{cargo, say};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use guard::Guard;
use mw_cluster::{Cluster, ClusterOptions, Network};
use peers::{Postgres, Redis};
use shop::Shop;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use table::{Figures, Verdicts};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// The same carts and orders on PostgreSQL, on Redis and by a bare driver loop on Cassandra, as ratios
    #[command(
        after_help = "PostgreSQL and Redis are installed with apt-get where that is possible, Cassandra is fetched \
                            once. All of them are started here, on loopback addresses and with their data in --dir, and \
                            stopped at the end, also on Ctrl-C.\n\
                            Every work is done by Mobile World and by the peer in turns. A ratio is the median of the \
                            rounds, with the smallest and the largest. The command fails where a target is missed.\n\
                            It takes about ten minutes, and the machine should do nothing else meanwhile."
    )]
    Peers(Peers),
}

#[derive(Args)]
pub(crate) struct Peers {
    /// Compare with this one only; may be given several times
    #[arg(long, value_name = "PEER")]
    only: Vec<Peer>,
    /// How long a round is
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..))]
    seconds: u64,
    /// Rounds that count, of each side
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Connections of each side, which send their next request when they have their answer
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=512))]
    clients: u64,
    /// Where all of them keep their data: a folder on a disk that other users may enter
    #[arg(long, value_name = "FOLDER", default_value = "/var/tmp")]
    dir: PathBuf,
    /// The first three bytes of the addresses of Cassandra's nodes [default: a free one]
    #[arg(long, value_parser = network)]
    network: Option<Network>,
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    Postgres,
    Redis,
    Cassandra,
}

/// What was built, and what every run is told.
struct Bench<'a> {
    options: &'a Peers,
    mw: PathBuf,
    peers: PathBuf,
    guard: Guard,
}

const NODES: usize = 3;
const HEAP_MIB: u32 = 1_024;

pub(crate) fn run(Command::Peers(options): &Command) -> Result<()> {
    let started = Instant::now();
    if let Some(path) = &options.json {
        // Asked now: ten minutes of load for nothing annoy.
        fs::write(path, "").with_context(|| format!("write {}", path.display()))?;
    }
    if options.wants(Peer::Postgres) {
        Postgres::install()?;
    }
    if options.wants(Peer::Redis) {
        Redis::install()?;
    }
    let release = build()?;
    let bench = Bench {
        options,
        mw: release.join("mw"),
        peers: release.join("mw-peers"),
        guard: Guard::start(&options.dir)?,
    };
    let mut figures = Vec::new();
    if options.wants(Peer::Postgres) || options.wants(Peer::Redis) {
        figures.extend(bench.on_one_machine()?);
    }
    if options.wants(Peer::Cassandra) {
        figures.extend(bench.on_cassandra()?);
    }
    drop(bench);
    let verdicts = Verdicts::of(&figures)?;
    say(format_args!(
        "\n{}\n\n{} clients, {} rounds of {} s each, {} cores, {:.0} s in all",
        verdicts.table(),
        options.clients,
        options.rounds,
        options.seconds,
        std::thread::available_parallelism().map_or(0, usize::from),
        started.elapsed().as_secs_f64()
    ));
    if let Some(path) = &options.json {
        fs::write(path, verdicts.json()?).with_context(|| format!("write {}", path.display()))?;
    }
    let missed = verdicts.missed();
    ensure!(missed == 0, "{missed} of {} targets missed", verdicts.targets());
    Ok(())
}

/// Builds what is measured, and answers where it is.
fn build() -> Result<PathBuf> {
    let arguments = "build --release --locked -p mw -p mw-peers";
    say(format_args!("cargo {arguments}"));
    let status = cargo::command(arguments).status().context("run cargo build")?;
    ensure!(status.success(), "build mw and mw-peers: {status}");
    Ok(cargo::Metadata::load()?.target_directory.join("release"))
}

impl Peers {
    fn wants(&self, peer: Peer) -> bool {
        self.only.is_empty() || self.only.contains(&peer)
    }
}

impl Bench<'_> {
    /// PostgreSQL, Redis and the embedded engine, with their data on the same disk.
    fn on_one_machine(&self) -> Result<Vec<Figures>> {
        let data = self.guard.dir().join("mw");
        let shop = Shop::start(
            &self.guard,
            &self.mw,
            &[("MW_STORE__EMBEDDED__PATH", &data.to_string_lossy())],
            &[],
        )?;
        let mut arguments = Vec::new();
        let postgres = if self.options.wants(Peer::Postgres) {
            let postgres = Postgres::start(&self.guard, self.options.clients)?;
            arguments.extend(["--postgres".to_owned(), postgres.connection()]);
            Some(postgres)
        } else {
            None
        };
        let mut redis = Vec::new();
        if self.options.wants(Peer::Redis) {
            for fsync in ["everysec", "always"] {
                let server = Redis::start(&self.guard, fsync)?;
                arguments.extend([format!("--redis-{fsync}"), server.url()]);
                redis.push(server);
            }
        }
        let figures = self.measure("embedded", &shop, &arguments)?;
        shop.stop()?;
        postgres.map(Postgres::stop).transpose()?;
        redis.into_iter().try_for_each(Redis::stop)?;
        Ok(figures)
    }

    fn on_cassandra(&self) -> Result<Vec<Figures>> {
        let cluster = Cluster::start(ClusterOptions {
            name: "peers".to_owned(),
            nodes: NODES,
            network: self.options.network.unwrap_or(Network::Free),
            heap_mib: HEAP_MIB,
            quick: false,
            report: |line| say(format_args!("cassandra: {line}")),
            ..ClusterOptions::default()
        })?;
        let points: Vec<String> = cluster.contact_points().iter().map(ToString::to_string).collect();
        let quoted: Vec<String> = points.iter().map(|point| format!("\"{point}\"")).collect();
        let contact = format!("store.cassandra.contact_points=[{}]", quoted.join(","));
        let options = ["--store", "cassandra", "--apply-schema", "--set", &contact];
        let shop = Shop::start(&self.guard, &self.mw, &[], &options)?;
        let figures = self.measure("cassandra", &shop, &["--nodes".to_owned(), points.join(",")])?;
        shop.stop()?;
        Ok(figures)
    }

    fn measure(&self, what: &str, shop: &Shop, arguments: &[String]) -> Result<Vec<Figures>> {
        let out = self.guard.dir().join(format!("{what}.json"));
        let status = self
            .guard
            .command(&self.peers)?
            .arg(what)
            .args(["--mw", shop.url(), "--mw-pid", &shop.pid().to_string()])
            .args(["--seconds", &self.options.seconds.to_string()])
            .args(["--rounds", &self.options.rounds.to_string()])
            .args(["--clients", &self.options.clients.to_string()])
            .arg("--out")
            .arg(&out)
            .args(arguments)
            .status()
            .context("run mw-peers")?;
        if !status.success() {
            bail!("measure {what}: mw-peers ended with {status}, see above");
        }
        read(&out)
    }
}

fn read(path: &Path) -> Result<Vec<Figures>> {
    let json = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&json).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        command: Command,
    }

    fn parsed(line: &str) -> std::result::Result<Peers, clap::Error> {
        let Command::Peers(options) = Cli::try_parse_from(line.split(' '))?.command;
        Ok(options)
    }

    #[test]
    fn all_peers_are_compared_unless_some_are_named() {
        let all = parsed("xtask peers").unwrap();
        assert!([Peer::Postgres, Peer::Redis, Peer::Cassandra].into_iter().all(|peer| all.wants(peer)));
        let two = parsed("xtask peers --only postgres --only cassandra --seconds 2").unwrap();
        assert!(two.wants(Peer::Postgres) && two.wants(Peer::Cassandra) && !two.wants(Peer::Redis));
        assert_eq!((two.seconds, two.rounds, two.clients), (2, 3, 64));
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for line in ["peers --only oracle", "peers --rounds 0", "peers --seconds 1", "peers --clients 9999"] {
            assert!(parsed(&format!("xtask {line}")).is_err(), "{line}");
        }
    }
}
