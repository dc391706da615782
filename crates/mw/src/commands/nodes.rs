//! `mw nodes`: the nodes of a cluster, their load, schema, hints and clocks.

use anyhow::{Context, Result, bail};
use mw_store_cassandra::NodeInfo;
use serde::Serialize;

use crate::config::{Config, ConfigArgs, Engine};
use crate::runtime;
use crate::storage::Storage;
use crate::terminal::{self, columns};

/// Print the nodes of a cluster
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every node is asked itself. Hints are the files that the other nodes keep for it; the clock is that of the node against the clock \
of this machine.

Examples:
  mw nodes --store cassandra
  mw nodes --json | jq '.items[] | select(.up | not)'")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Serialize)]
struct NodeList {
    items: Vec<NodeRow>,
}

#[derive(Debug, Serialize)]
struct NodeRow {
    address: String,
    data_center: String,
    rack: String,
    up: bool,
    load_bytes: Option<u64>,
    tokens: usize,
    schema: Option<String>,
    hints: Option<u64>,
    clock_ms: Option<i64>,
}

impl From<NodeInfo> for NodeRow {
    fn from(node: NodeInfo) -> Self {
        Self {
            address: node.address,
            data_center: node.data_center,
            rack: node.rack,
            up: node.up,
            load_bytes: node.load_bytes,
            tokens: node.tokens,
            schema: node.schema.map(|version| version.to_string()),
            hints: node.hints,
            clock_ms: node.clock_ms,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let config = Config::load(&args.config.sources())?.without_listener();
    if config.engine != Engine::Cassandra {
        bail!("the configured engine has no nodes: name a cluster with --store cassandra");
    }
    terminal::log(&config.log);
    let nodes = runtime::single()?.block_on(async {
        let storage = Storage::open(&config).await?;
        let nodes = match &storage {
            Storage::Cassandra { store, .. } => store.nodes().await.context("read the nodes"),
            Storage::Embedded { .. } | Storage::Mongodb { .. } => Ok(Vec::new()),
        };
        storage.close().await;
        nodes
    })?;
    let list = NodeList { items: nodes.into_iter().map(NodeRow::from).collect() };
    if args.json {
        let json = serde_json::to_string_pretty(&list).context("write JSON")?;
        return terminal::print(&format!("{json}\n"));
    }
    terminal::print(&list.text())
}

impl NodeList {
    fn text(&self) -> String {
        let heads = ["address", "data centre", "rack", "state", "load", "tokens", "schema", "hints", "clock"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        rows.extend(self.items.iter().map(|node| {
            vec![
                node.address.clone(),
                node.data_center.clone(),
                node.rack.clone(),
                if node.up { "up" } else { "down" }.to_owned(),
                or_unknown(node.load_bytes.map(|bytes| format!("{} KiB", bytes >> 10))),
                node.tokens.to_string(),
                or_unknown(node.schema.as_ref().and_then(|version| version.get(..8)).map(str::to_owned)),
                or_unknown(node.hints.map(|files| files.to_string())),
                or_unknown(node.clock_ms.map(|millis| format!("{millis:+} ms"))),
            ]
        }));
        columns(&rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_down_has_gaps() {
        let row = |address: &str, up: bool| NodeRow {
            address: address.to_owned(),
            data_center: "dc1".to_owned(),
            rack: "rack1".to_owned(),
            up,
            load_bytes: up.then_some(204_800),
            tokens: if up { 16 } else { 0 },
            schema: up.then(|| "01234567-89ab-cdef-0123-456789abcdef".to_owned()),
            hints: Some(u64::from(!up)),
            clock_ms: up.then_some(-3),
        };
        let text = NodeList { items: vec![row("127.0.0.1", true), row("127.0.0.2", false)] }.text();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[1],
            ["127.0.0.1", "dc1", "rack1", "up", "200", "KiB", "16", "01234567", "0", "-3", "ms"]
        );
        assert_eq!(lines[2], ["127.0.0.2", "dc1", "rack1", "down", "-", "0", "-", "1", "-"]);
    }
}
