//! Developer commands, as `cargo xtask <command>`. Needs nothing installed but cargo.

#![expect(clippy::print_stdout, reason = "a command line program prints to its standard output")]

mod bench;
mod cargo;
mod cluster;
mod counts;
mod deny;
mod growth;
mod integrity;
mod mongo;
mod replica_ops;
mod steps;
mod test_cluster;
mod tidy;
mod tools;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks and tests of Mobile World", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every check and test, in order, and stop at the first that fails
    #[command(after_help = "The steps are independent: `--only` repeats one of them after a failure.\n\
                            A property test that fails prints its seed; see CONTRIBUTING.md.")]
    Test {
        /// Run the long form of the property and crash tests (sets `MW_TEST_LONG=1`)
        #[arg(long)]
        long: bool,
        /// Run this step only; may be given several times
        #[arg(long, value_name = "STEP", value_parser = PossibleValuesParser::new(steps::names()))]
        only: Vec<String>,
        /// Print the steps and their commands without running them
        #[arg(long)]
        list: bool,
    },
    /// Check the house rules: dependency direction, dead files, words, links, manifests, commit subjects
    #[command(after_help = "Each violation is one line, `path:line: what to change`.")]
    Tidy,
    /// Measure Mobile World against baselines that run the same operations
    #[command(subcommand)]
    Bench(bench::Command),
    /// Start, inspect and stop a real Cassandra cluster on this machine
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Start, inspect and stop a real MongoDB replica set or sharded cluster on this machine
    #[command(subcommand)]
    Mongo(mongo::Command),
    /// Count instructions and allocations of a request, and compare with crates/http/counts.toml
    #[command(
        after_help = "Fails where a hot route costs more than the file allows. It does not measure time, so \
                            the machine may be busy.\n\
                            Needs valgrind, installed with apt-get where that is possible; the first build takes \
                            minutes, counting one. docs/performance.md says what is counted."
    )]
    Counts {
        /// Write the file instead of comparing with it
        #[arg(long)]
        write: bool,
    },
    /// Count what the replicas do for a request on Cassandra, and compare with crates/store-cassandra/replica_ops.toml
    #[command(
        after_help = "Fails where a request costs the replicas more reads, writes or lightweight transactions than the \
                            file allows. It does not measure time, so the machine may be busy; the cluster must not be. \
                            Starts a cluster of three nodes unless MW_TEST_CASSANDRA names one. docs/scale.md says what \
                            is counted."
    )]
    ReplicaOps {
        /// Write the file instead of comparing with it
        #[arg(long)]
        write: bool,
    },
    /// Show hinted handoff, read repair and repair at work, each alone on a real cluster
    #[command(
        after_help = "Starts a cluster of three nodes, stops one of them twice while rows are written, and shows by reading each \
                            replica directly what each strategy heals. Fails where that is not what the policy of the table \
                            says. docs/integrity.md explains them."
    )]
    Integrity {
        /// Write the results as JSON
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// The first three bytes of the nodes' addresses, such as 127.0.10
        #[arg(long)]
        network: Option<String>,
    },
    /// Add a node to a filled Cassandra cluster and a shard to a filled MongoDB cluster, under load
    #[command(
        after_help = "Starts the clusters, fills them, and lets each grow while a prober sends requests. Prints the bytes that moved, \
                            the time and the latency meanwhile, and fails where the moved share differs by more than 20 % from \
                            the prediction of the models. docs/scale.md explains them."
    )]
    Growth {
        /// Grow this database only
        #[arg(long)]
        only: Option<growth::Database>,
        /// Write the results as JSON
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// The first three bytes of the Cassandra nodes' addresses, such as 127.0.10
        #[arg(long)]
        network: Option<String>,
    },
    /// Check licences, advisories and sources of dependencies with cargo-deny
    #[command(after_help = "The rules are in deny.toml. cargo-deny is installed separately and `test` does \
                            not need it.")]
    Deny,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Test { list: true, .. } => {
            steps::list();
            Ok(())
        }
        Command::Test { long, only, list: false } => steps::run_chosen(&only, long),
        Command::Tidy => tidy::run(),
        Command::Bench(command) => bench::run(&command),
        Command::Cluster(command) => cluster::run(command),
        Command::Mongo(command) => mongo::run(command),
        Command::Counts { write } => counts::run(write),
        Command::ReplicaOps { write } => replica_ops::run(write),
        Command::Integrity { json, network } => integrity::run(json.as_deref(), network.as_deref()),
        Command::Growth { only, json, network } => growth::run(only, json.as_deref(), network.as_deref()),
        Command::Deny => deny::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line. All output goes through here, so that it stays in order with that of child processes.
fn say(line: impl Display) {
    println!("{line}");
}
