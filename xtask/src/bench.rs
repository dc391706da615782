//! `cargo xtask bench`: Mobile World against baselines that run the same operations, on the same machine.
//!
//! This module starts and stops the servers and compares the results; the operations are in `crates/bench-baselines`.

mod baselines;
mod process_group;
mod shop;
mod table;

use crate::cluster::network;
use crate::{cargo, say};
use anyhow::{Context, Result, bail, ensure};
use baselines::{Postgres, Redis};
use clap::{Args, Subcommand, ValueEnum};
use mw_cassandra_testbed::{Cluster, ClusterOptions, Network};
use process_group::ProcessGroup;
use shop::Shop;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use table::{Comparisons, OperationRounds};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// The same carts and orders on PostgreSQL, on Redis and by a bare driver loop on Cassandra, as ratios
    #[command(
        after_help = "PostgreSQL and Redis are installed with apt-get where that is possible, Cassandra is fetched \
                            once. All of them are started here, on loopback addresses and with their data in --dir, and \
                            stopped at the end, also on Ctrl-C.\n\
                            Every operation runs on Mobile World and on the baseline in alternating rounds. A ratio is the median of the \
                            rounds, with the smallest and the largest. The command fails where a target is missed.\n\
                            It takes about ten minutes, and the machine should do nothing else meanwhile."
    )]
    Baselines(Baselines),
}

#[derive(Args)]
pub(crate) struct Baselines {
    /// Compare with this one only; may be given several times
    #[arg(long, value_name = "PEER")]
    only: Vec<Baseline>,
    /// How long a round is
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..))]
    seconds: u64,
    /// Measured rounds of each side
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Connections of each side, each in a closed loop
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=512))]
    clients: u64,
    /// Parent of the data folder of all servers; other users need access to it
    #[arg(long, value_name = "FOLDER", default_value = "/var/tmp")]
    dir: PathBuf,
    /// The first three bytes of the addresses of Cassandra's nodes [default: a free one]
    #[arg(long, value_parser = network)]
    network: Option<Network>,
    /// Another build of mw, such as an earlier one, on the same cluster as Cassandra's side in keyspaces of its own
    #[arg(long, value_name = "PROGRAM")]
    earlier: Option<PathBuf>,
    /// Write the results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Baseline {
    Postgres,
    Redis,
    Cassandra,
}

/// The built programs, and the options of every run.
struct Bench<'a> {
    options: &'a Baselines,
    mw: PathBuf,
    baselines: PathBuf,
    group: ProcessGroup,
}

const NODES: usize = 3;
const HEAP_MIB: u32 = 1_024;
/// The keyspaces of another build of mw on the same cluster.
const EARLIER_KEYSPACE: &str = "store.cassandra.keyspace=earlier";

pub(crate) fn run(Command::Baselines(options): &Command) -> Result<()> {
    let started = Instant::now();
    if let Some(path) = &options.json {
        // Checked now, so that a wrong path does not fail after ten minutes of load.
        fs::write(path, "").with_context(|| format!("write {}", path.display()))?;
    }
    if options.wants(Baseline::Postgres) {
        Postgres::install()?;
    }
    if options.wants(Baseline::Redis) {
        Redis::install()?;
    }
    let release = build()?;
    let bench = Bench {
        options,
        mw: release.join("mw"),
        baselines: release.join("mw-bench-baselines"),
        group: ProcessGroup::start(&options.dir)?,
    };
    let mut results = Vec::new();
    if options.wants(Baseline::Postgres) || options.wants(Baseline::Redis) {
        results.extend(bench.on_one_machine()?);
    }
    if options.wants(Baseline::Cassandra) {
        results.extend(bench.on_cassandra()?);
    }
    drop(bench);
    let comparisons = Comparisons::of(&results)?;
    say(format_args!(
        "\n{}\n\n{} clients, {} rounds of {} s each, {} cores, {:.0} s in all",
        comparisons.table(),
        options.clients,
        options.rounds,
        options.seconds,
        std::thread::available_parallelism().map_or(0, usize::from),
        started.elapsed().as_secs_f64()
    ));
    if let Some(path) = &options.json {
        fs::write(path, comparisons.json()?).with_context(|| format!("write {}", path.display()))?;
    }
    let missed = comparisons.missed();
    ensure!(missed == 0, "{missed} of {} targets missed", comparisons.targets());
    Ok(())
}

/// Builds the programs, and returns their folder.
fn build() -> Result<PathBuf> {
    let arguments = "build --release --locked -p mw -p mw-bench-baselines";
    say(format_args!("cargo {arguments}"));
    let status = cargo::command(arguments).status().context("run cargo build")?;
    ensure!(status.success(), "build mw and mw-bench-baselines: {status}");
    Ok(cargo::Metadata::load()?.target_directory.join("release"))
}

impl Baselines {
    fn wants(&self, baseline: Baseline) -> bool {
        self.only.is_empty() || self.only.contains(&baseline)
    }
}

impl Bench<'_> {
    /// PostgreSQL, Redis and the embedded engine, with their data on the same disk.
    fn on_one_machine(&self) -> Result<Vec<OperationRounds>> {
        let data = self.group.dir().join("mw");
        let shop = Shop::start(
            &self.group,
            &self.mw,
            &[("MW_STORE__EMBEDDED__PATH", &data.to_string_lossy())],
            &[],
        )?;
        let mut arguments = Vec::new();
        let postgres = if self.options.wants(Baseline::Postgres) {
            let postgres = Postgres::start(&self.group, self.options.clients)?;
            arguments.extend(["--postgres".to_owned(), postgres.connection()]);
            Some(postgres)
        } else {
            None
        };
        let mut redis = Vec::new();
        if self.options.wants(Baseline::Redis) {
            for fsync in ["everysec", "always"] {
                let server = Redis::start(&self.group, fsync)?;
                arguments.extend([format!("--redis-{fsync}"), server.url()]);
                redis.push(server);
            }
        }
        let results = self.measure("embedded", &shop, &arguments)?;
        shop.stop()?;
        postgres.map(Postgres::stop).transpose()?;
        redis.into_iter().try_for_each(Redis::stop)?;
        Ok(results)
    }

    fn on_cassandra(&self) -> Result<Vec<OperationRounds>> {
        let cluster = Cluster::start(ClusterOptions {
            name: "baselines".to_owned(),
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
        let shop = Shop::start(&self.group, &self.mw, &[], &options)?;
        let mut arguments = vec!["--nodes".to_owned(), points.join(",")];
        let in_keyspace: Vec<&str> = options.into_iter().chain(["--set", EARLIER_KEYSPACE]).collect();
        let start = |program: &PathBuf| Shop::start(&self.group, program, &[], &in_keyspace);
        let earlier = self.options.earlier.as_ref().map(start).transpose()?;
        if let Some(earlier) = &earlier {
            let pid = earlier.pid().to_string();
            arguments.extend(["--earlier", earlier.url(), "--earlier-pid", &pid].map(str::to_owned));
        }
        let results = self.measure("cassandra", &shop, &arguments)?;
        earlier.map(Shop::stop).transpose()?;
        shop.stop()?;
        Ok(results)
    }

    fn measure(&self, what: &str, shop: &Shop, arguments: &[String]) -> Result<Vec<OperationRounds>> {
        let out = self.group.dir().join(format!("{what}.json"));
        let status = self
            .group
            .command(&self.baselines)?
            .arg(what)
            .args(["--mw", shop.url(), "--mw-pid", &shop.pid().to_string()])
            .args(["--seconds", &self.options.seconds.to_string()])
            .args(["--rounds", &self.options.rounds.to_string()])
            .args(["--clients", &self.options.clients.to_string()])
            .arg("--out")
            .arg(&out)
            .args(arguments)
            .status()
            .context("run mw-bench-baselines")?;
        if !status.success() {
            bail!("measure {what}: mw-bench-baselines ended with {status}, see above");
        }
        read(&out)
    }
}

fn read(path: &Path) -> Result<Vec<OperationRounds>> {
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

    fn parsed(line: &str) -> std::result::Result<Baselines, clap::Error> {
        let Command::Baselines(options) = Cli::try_parse_from(line.split(' '))?.command;
        Ok(options)
    }

    #[test]
    fn all_peers_are_compared_unless_some_are_named() {
        let all = parsed("xtask baselines").unwrap();
        assert!(
            [Baseline::Postgres, Baseline::Redis, Baseline::Cassandra]
                .into_iter()
                .all(|baseline| all.wants(baseline))
        );
        let two = parsed("xtask baselines --only postgres --only cassandra --seconds 2").unwrap();
        assert!(
            two.wants(Baseline::Postgres) && two.wants(Baseline::Cassandra) && !two.wants(Baseline::Redis)
        );
        assert_eq!((two.seconds, two.rounds, two.clients), (2, 3, 64));
    }

    #[test]
    fn invalid_options_are_refused() {
        for line in [
            "baselines --only oracle",
            "baselines --rounds 0",
            "baselines --seconds 1",
            "baselines --clients 9999",
        ] {
            assert!(parsed(&format!("xtask {line}")).is_err(), "{line}");
        }
    }
}
