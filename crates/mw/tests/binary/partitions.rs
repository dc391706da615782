//! `mw partitions` on a real cluster, and where there is none.

use serde_json::Value;
use tempfile::TempDir;

use crate::cassandra::{Shop, Tables};
use crate::process::{Ended, run};

const FUTURE: &str = "2999-01-01";

fn json(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn plans_are_made_for_keys_and_shown() {
    let shop = Shop::new("plans");
    assert_eq!(shop.run(&["schema", "apply"], &[]).code, Some(0));
    let none = shop.run(&["partitions", "plans"], &[]);
    assert_eq!(none.code, Some(0), "{none:?}");
    assert!(none.stdout.ends_with("\nNo plan was made for a key.\n"), "{none:?}");

    let set = |arguments: &[&str]| shop.run(&[&["partitions", "plan", "set"], arguments].concat(), &[]);
    let made = set(&["orders_by_customer", "u-1", "--cut", "8", "--from", FUTURE]);
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_eq!(made.stdout, "orders_by_customer of u-1 is cut into 8 from 2999-01-01T00:00:00.000Z on\n");
    let made = json(&set(&["orders_by_day", "--cut", "16", "--from", "2999-01-01T03:00:00+03:00", "--json"]));
    assert_eq!((&made["from"], &made["state"]), (&"2999-01-01T00:00:00.000Z".into(), &"coming".into()));
    let rows: Vec<(String, String, i32)> =
        Tables::of(&shop).rows("SELECT table_name, key, cut FROM {}.bucket_plans");
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(rows.contains(&("orders_by_customer".to_owned(), "u-1".to_owned(), 8)), "{rows:?}");
    assert!(rows.contains(&("orders_by_day".to_owned(), String::new(), 16)), "{rows:?}");

    let shown = shop.run(&["partitions", "plans"], &[]);
    let line = "\norders_by_customer  u-1  2999-01-01T00:00:00.000Z  8    coming\n";
    assert!(shown.stdout.contains(line), "{shown:?}");
    let shown = json(&shop.run(&["partitions", "plans", "--table", "orders_by_day", "--json"], &[]));
    assert_eq!(shown["made"].as_array().unwrap().len(), 1);
    assert_eq!(shown["made"][0]["cut"], 16);
    assert_eq!(shown["usual"][0]["cut"], 4);
    let shown = json(&shop.run(&["partitions", "plans", "--key", "u-2", "--json"], &[]));
    assert_eq!((shown["made"].as_array().unwrap().len(), shown["usual"].as_array().unwrap().len()), (0, 4));

    let soon = set(&["orders_by_customer", "u-1", "--cut", "8", "--from", "2026-01-01"]);
    assert_eq!(soon.code, Some(1), "{soon:?}");
    assert!(soon.stderr.contains("mw: set the plan: from: at least 60 s from now, "), "{soon:?}");
    let fine = set(&["orders_by_customer", "u-1", "--cut", "32", "--from", FUTURE]);
    assert!(fine.stderr.contains("mw: set the plan: cut: 1 to 31"), "{fine:?}");
    let key = set(&["orders_by_zone_day", "--cut", "8", "--from", FUTURE]);
    assert!(
        key.stderr.contains("key: orders_by_zone_day cuts a day of a zone; the key is a zone"),
        "{key:?}"
    );
    let table = set(&["stock", "u-1", "--cut", "8", "--from", FUTURE]);
    assert_eq!(table.code, Some(2), "{table:?}");
    assert!(table.stderr.contains("the tables that plans cut are orders_by_customer, "), "{table:?}");
}

#[test]
fn the_embedded_engine_has_nothing_to_cut() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let set = ["partitions", "plan", "set", "orders_by_day", "--cut", "8", "--from", FUTURE];
    for command in [&["partitions", "plans"][..], &set] {
        let refused = run(&[command, &["--data", data.to_str().unwrap()]].concat());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let wanted =
            "mw: the embedded engine has no partitions, so there is nothing to plan: name a cluster with";
        assert!(refused.stderr.starts_with(wanted), "{refused:?}");
    }
    assert!(!data.exists());
}
