//! `mw nodes`: the nodes of a cluster, their load, schema, hints and clocks.

use anyhow::{Context, Result, ensure};
use mw_http::NodeListView;
use serde_json::Value;

use crate::config::{Config, ConfigArgs, Engine};
use crate::shop_client::RemoteArgs;
use crate::storage::Storage;
use crate::terminal::{self, columns};
use crate::{operations, replies, runtime};

/// Print the nodes of a cluster
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every node is asked itself. Hints are the files that the other nodes keep for it; the clock is that of the node against the clock \
of this machine, or of the shop that --url names.

Examples:
  mw nodes --store cassandra
  mw nodes --url http://127.0.0.1:8080
  mw nodes --store cassandra --json | jq '.items[] | select(.up | not)'")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    remote: RemoteArgs,

    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let list = match args.remote.client()? {
        Some(client) => runtime::single()?.block_on(client.get_json("/v1/operations/nodes"))?,
        None => replies::value(&of_cluster(args)?)?,
    };
    replies::print(&list, args.json, text)
}

fn of_cluster(args: &Args) -> Result<NodeListView> {
    let config = Config::load(&args.config.sources())?.without_listener();
    ensure!(
        config.engine == Engine::Cassandra,
        "the configured engine has no nodes: name a cluster with --store cassandra"
    );
    terminal::log(&config.log);
    runtime::single()?.block_on(async {
        let storage = Storage::open(&config).await?;
        let nodes = operations::of(&storage, &config.operate).nodes().await.context("read the nodes");
        storage.close().await;
        Ok(NodeListView::new(nodes?))
    })
}

fn text(list: &Value) -> String {
    let heads = ["address", "data centre", "rack", "state", "load", "tokens", "schema", "hints", "clock"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let items = list.get("items").and_then(Value::as_array);
    for node in items.into_iter().flatten() {
        let text = |name: &str| node.get(name).and_then(Value::as_str).map(str::to_owned);
        let number = |name: &str| node.get(name).and_then(Value::as_i64);
        let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let is_up = node.get("up").and_then(Value::as_bool).unwrap_or_default();
        rows.push(vec![
            or_unknown(text("address")),
            or_unknown(text("data_center")),
            or_unknown(text("rack")),
            if is_up { "up" } else { "down" }.to_owned(),
            or_unknown(number("load_bytes").map(|bytes| format!("{} KiB", bytes >> 10))),
            or_unknown(number("tokens").filter(|tokens| *tokens > 0).map(|tokens| tokens.to_string())),
            or_unknown(text("schema").and_then(|version| version.get(..8).map(str::to_owned))),
            or_unknown(number("hints").map(|files| files.to_string())),
            or_unknown(number("clock_ms").map(|millis| format!("{millis:+} ms"))),
        ]);
    }
    columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_that_is_down_has_gaps() {
        let up = json!({
            "address": "127.0.0.1", "data_center": "dc1", "rack": "rack1", "up": true, "load_bytes": 204_800, "tokens": 16,
            "schema": "01234567-89ab-cdef-0123-456789abcdef", "hints": 0, "clock_ms": -3,
        });
        let down = json!({
            "address": "127.0.0.2", "data_center": "dc1", "rack": "rack1", "up": false, "load_bytes": null, "tokens": 0,
            "schema": null, "hints": 1, "clock_ms": null,
        });
        let text = text(&json!({"items": [up, down]}));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[1],
            ["127.0.0.1", "dc1", "rack1", "up", "200", "KiB", "16", "01234567", "0", "-3", "ms"]
        );
        assert_eq!(lines[2], ["127.0.0.2", "dc1", "rack1", "down", "-", "-", "-", "1", "-"]);
    }
}
