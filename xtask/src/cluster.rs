//! `cargo xtask cluster`: a real Cassandra cluster that runs until `cluster down`.

use crate::say;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use mw_cassandra_testbed::{
    ClusterOptions, DetachedCluster, Network, NodeStatus, SUPERUSER, SUPERUSER_PASSWORD,
};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a cluster and leave it running
    #[command(
        after_help = "Cassandra itself is fetched once, with Maven; Java 17 and Maven are installed with \
                            apt-get where that is possible. A node takes about 1 GB of memory.\n\
                            Ctrl-C while it starts stops what was started."
    )]
    Up(Up),
    /// Show whether the nodes are up, their processes and their memory
    Status(Name),
    /// Stop a cluster and remove its data
    Down {
        #[command(flatten)]
        name: Name,
        /// Leave the data for the next `up`
        #[arg(long)]
        keep_data: bool,
    },
    /// Run nodetool against a node
    Nodetool {
        #[command(flatten)]
        name: Name,
        /// The node, counted from 1
        #[arg(long, default_value_t = 1)]
        node: usize,
        /// For example `status`, `describecluster`, `tablestats mobile_world`
        #[arg(trailing_var_arg = true, required = true)]
        arguments: Vec<String>,
    },
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
    /// Nodes, in all data centres together: 1 to 6
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// Data centres: 1 or 2
    #[arg(long, default_value_t = 1)]
    dcs: usize,
    /// The first three bytes of the nodes' addresses
    #[arg(long, default_value = "127.0.0", value_parser = network)]
    network: Network,
    /// Require a user and a password
    #[arg(long)]
    auth: bool,
    /// Require TLS
    #[arg(long)]
    tls: bool,
    /// JMX over HTTP (Jolokia) on every node, with a password
    #[arg(long)]
    jolokia: bool,
    /// Heap of a node in MiB
    #[arg(long, value_name = "MIB", default_value_t = 768)]
    heap: u32,
}

const DEFAULT_NAME: &str = "mobile-world";

pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Up(up) => start(up),
        Command::Status(name) => status(&name.name),
        Command::Down { name, keep_data } => {
            find(&name.name)?.down(keep_data)?;
            say(format_args!("cluster {} is down", name.name));
            Ok(())
        }
        Command::Nodetool { name, node, arguments } => {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let printed = find(&name.name)?.nodetool(node, &arguments, report)?;
            say(printed.trim_end());
            Ok(())
        }
    }
}

fn report(line: &str) {
    say(line);
}

fn start(up: Up) -> Result<()> {
    let options = ClusterOptions {
        name: up.name.name,
        nodes: up.nodes,
        dcs: up.dcs,
        network: up.network,
        auth: up.auth,
        tls: up.tls,
        heap_mib: up.heap,
        jolokia: up.jolokia,
        quick: false,
        report,
        ..ClusterOptions::default()
    };
    let cluster = DetachedCluster::up(options)?;
    say(format_args!("\n{}", instructions(&cluster)));
    Ok(())
}

fn find(name: &str) -> Result<DetachedCluster> {
    if let Some(cluster) = DetachedCluster::find(name)? {
        return Ok(cluster);
    }
    let names = DetachedCluster::names()?;
    if names.is_empty() {
        bail!("find a cluster: none is running; start one with `cargo xtask cluster up`");
    }
    bail!("find cluster `{name}`: not running; running: {}", names.join(", "));
}

fn status(name: &str) -> Result<()> {
    let cluster = find(name)?;
    let nodes = cluster.status();
    say(format_args!("cluster {name}, logs and data in {}\n{}", cluster.dir().display(), table(&nodes)));
    let down = nodes.iter().filter(|node| !node.listens).count();
    if down > 0 {
        bail!("{down} of {} nodes down", nodes.len());
    }
    Ok(())
}

fn table(nodes: &[NodeStatus]) -> String {
    let mut rows =
        vec![format!("{:<12} {:<4} {:<6} {:>8} {:>10}", "address", "dc", "state", "pid", "memory")];
    for node in nodes {
        let state = match (node.pid, node.listens) {
            (None, _) => "down",
            (Some(_), false) => "silent",
            (Some(_), true) => "up",
        };
        let pid = node.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let memory = node.memory.map_or_else(|| "-".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        rows.push(format!("{:<12} {:<4} {state:<6} {pid:>8} {memory:>10}", node.address, node.dc));
    }
    rows.join("\n")
}

fn instructions(cluster: &DetachedCluster) -> String {
    let points = cluster.contact_points();
    let joined = |texts: Vec<String>| texts.join(",");
    let quoted = joined(points.iter().map(|point| format!("\"{point}\"")).collect());
    let mut serve = vec![
        "mw serve --store cassandra --set store.cassandra.local_dc=dc1".to_owned(),
        format!("--set 'store.cassandra.contact_points=[{quoted}]'"),
    ];
    if cluster.auth() {
        serve.push(format!("--set store.cassandra.username={SUPERUSER}"));
        serve.push(format!("--set store.cassandra.password={SUPERUSER_PASSWORD}"));
    }
    if let Some(ca) = cluster.ca_pem() {
        serve.push(format!("--set store.cassandra.tls.ca={}", ca.display()));
    }
    let name =
        if cluster.name() == DEFAULT_NAME { String::new() } else { format!(" --name {}", cluster.name()) };
    format!(
        "contact points  {points}, local data centre dc1\n\
         the shop on it  {serve}\n\
         look at it      cargo xtask cluster status{name}\n\
         stop it         cargo xtask cluster down{name}",
        points = joined(points.iter().map(ToString::to_string).collect()),
        serve = serve.join(" "),
    )
}

/// `127.0.10`, three bytes of a loopback address.
pub(crate) fn network(text: &str) -> Result<Network> {
    let bytes: Vec<u8> = text
        .split('.')
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()
        .context("name three bytes, such as 127.0.10")?;
    match bytes[..] {
        [127, second, third] => Ok(Network::At([127, second, third])),
        _ => bail!("name three bytes that begin with 127, such as 127.0.10"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_network_is_three_bytes_of_loopback() {
        assert_eq!(network("127.0.10").unwrap(), Network::At([127, 0, 10]));
        for bad in ["", "127.0", "127.0.0.1", "10.0.0", "127.0.256", "127.0.x"] {
            network(bad).expect_err(bad);
        }
    }

    #[test]
    fn the_table_tells_up_silent_and_down() {
        let node = |last, pid, listens, memory| NodeStatus {
            address: Ipv4Addr::new(127, 0, 0, last),
            dc: "dc1".to_owned(),
            pid,
            listens,
            memory,
        };
        let nodes = [
            node(1, Some(4711), true, Some(1 << 30)),
            node(2, Some(4712), false, Some(1 << 29)),
            node(3, None, false, None),
        ];
        assert_eq!(
            table(&nodes),
            "address      dc   state       pid     memory\n\
             127.0.0.1    dc1  up         4711   1024 MiB\n\
             127.0.0.2    dc1  silent     4712    512 MiB\n\
             127.0.0.3    dc1  down          -          -"
        );
    }
}
