//! `mw nodes` and `mw repair` on a cluster of their own, whose nodes have JMX agents.

use mw_testkit::cassandra::{Cluster, ClusterOptions, JOLOKIA_PASSWORD, JOLOKIA_USER};
use serde_json::Value;

use crate::process::{Ended, mw};

struct Shop {
    cluster: Cluster,
}

impl Shop {
    fn start() -> Self {
        let name = "repair".to_owned();
        let options =
            ClusterOptions { name, nodes: 3, heap_mib: 512, jolokia: true, ..ClusterOptions::default() };
        Self { cluster: Cluster::start(options).unwrap() }
    }

    fn run(&self, arguments: &[&str], with_jmx: bool) -> Ended {
        let points: Vec<String> =
            self.cluster.contact_points().iter().map(|point| format!("\"{point}\"")).collect();
        let points = format!("store.cassandra.contact_points=[{}]", points.join(","));
        let mut command = mw(arguments);
        command.args(["--store", "cassandra", "--set", &points]);
        if with_jmx {
            command.arg("--set").arg(format!("operate.jolokia.username={JOLOKIA_USER}"));
            command.arg("--set").arg(format!("operate.jolokia.password={JOLOKIA_PASSWORD}"));
        }
        crate::process::ended(command.output().unwrap())
    }

    fn status(&self, table: &str) -> Value {
        let ended = self.run(&["repair", "status", "--json"], true);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let list: Value = serde_json::from_str(&ended.stdout).unwrap();
        list["items"].as_array().unwrap().iter().find(|item| item["table"] == table).unwrap().clone()
    }
}

#[test]
fn repair_is_seen_and_steered_through_jmx() {
    let shop = Shop::start();
    let applied = shop.run(&["schema", "apply"], false);
    assert_eq!(applied.code, Some(0), "{applied:?}");

    let nodes = shop.run(&["nodes", "--json"], false);
    let nodes: Value = serde_json::from_str(&nodes.stdout).unwrap_or_else(|_| panic!("{nodes:?}"));
    let nodes = nodes["items"].as_array().unwrap();
    assert_eq!(nodes.len(), 3);
    for node in nodes {
        assert!(node["up"] == true && node["data_center"] == "dc1" && node["tokens"] == 16, "{node}");
        assert!(node["clock_ms"].as_i64().unwrap().abs() < 2_000 && node["hints"] == 0, "{node}");
        assert!(node["load_bytes"].as_u64().unwrap() > 0 && node["schema"] == nodes[0]["schema"], "{node}");
    }

    let unknown = shop.status("stock");
    assert_eq!((&unknown["verdict"], &unknown["last_whole_repair"]), (&"unknown".into(), &Value::Null));
    let dry = shop.run(&["repair", "run", "stock"], true);
    assert!(dry.stdout.ends_with("Nothing was changed: add --yes to execute it.\n"), "{dry:?}");
    assert_eq!(shop.status("stock")["verdict"], "unknown");
    let repaired = shop.run(&["repair", "run", "stock", "--yes"], true);
    assert_eq!(repaired.stdout, "stock is repaired on 3 nodes\n", "{repaired:?}");
    let ok = shop.status("stock");
    assert_eq!((&ok["verdict"], &ok["interval_s"]), (&"ok".into(), &86_400.into()), "{ok}");
    assert_eq!(shop.status("stock_zones")["verdict"], "unknown", "another table was not repaired");

    let off = shop.run(&["repair", "run", "cart_changes", "--yes"], true);
    assert!(off.stderr.contains("repair cart_changes: its policy has repair = \"off\""), "{off:?}");
    for (command, state) in [("pause", "paused"), ("resume", "resumed")] {
        let ended = shop.run(&["repair", command, "--yes"], true);
        assert_eq!(ended.stdout, format!("auto-repair is {state} on 3 nodes\n"), "{ended:?}");
    }

    // Without JMX the commands say what they cannot do, and a sweep takes the place of a repair.
    let status = shop.run(&["repair", "status"], false);
    assert!(status.stdout.contains("no JMX agents are configured (operate.jolokia"), "{status:?}");
    let pause = shop.run(&["repair", "pause", "--yes"], false);
    assert!(pause.code == Some(1) && pause.stderr.contains("no JMX agents"), "{pause:?}");
    let swept = shop.run(&["repair", "run", "stock_zones", "--yes"], false);
    assert!(swept.stdout.contains("stock_zones was read as a whole at ALL"), "{swept:?}");
    assert_eq!(shop.status("stock_zones")["verdict"], "ok");

    // A run that misses a replica is not complete.
    shop.cluster.node(2).kill().unwrap();
    let incomplete = shop.run(&["repair", "run", "order_by_id", "--yes"], true);
    assert!(incomplete.code == Some(1) && incomplete.stderr.contains("not complete"), "{incomplete:?}");
    let status = shop.status("order_by_id");
    assert!(status["verdict"] == "unknown" && status["failed_ranges"].as_u64().unwrap() > 0, "{status}");
}

#[test]
fn commands_of_a_cluster_say_so_on_the_embedded_engine() {
    let ended = crate::process::run(&["nodes"]);
    assert!(ended.stderr.starts_with("mw: the configured engine has no nodes"), "{ended:?}");
    let ended = crate::process::run(&["repair", "status"]);
    assert!(ended.stderr.starts_with("mw: the configured engine has no replicas to repair"), "{ended:?}");
    let windows = r#"operate.repair.blackout=["Fri 06:00-Mon 02:00", "11-25..11-30"]"#;
    let ended = crate::process::run(&["repair", "windows", "--set", windows]);
    assert!(
        ended.stdout.contains("Fri 06:00-Mon 02:00") && ended.stdout.contains("11-25..11-30"),
        "{ended:?}"
    );
    let ended = crate::process::run(&["repair", "windows", "--set", r#"operate.repair.blackout=["Friday"]"#]);
    assert!(ended.code == Some(2) && ended.stderr.contains("a blackout window is"), "{ended:?}");
}
