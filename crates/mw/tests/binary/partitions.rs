//! `mw partitions` on a real cluster, and with the embedded engine, which has no partitions.

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
fn a_stored_plan_is_listed() {
    let shop = Shop::new("plans");
    assert_eq!(shop.run(&["schema", "apply"], &[]).code, Some(0));
    let none = shop.run(&["partitions", "plans"], &[]);
    assert_eq!(none.code, Some(0), "{none:?}");
    assert!(none.stdout.ends_with("\nNo key has a plan.\n"), "{none:?}");

    let set = |arguments: &[&str]| shop.run(&[&["partitions", "plan", "set"], arguments].concat(), &[]);
    let made = set(&["orders_by_customer", "u-1", "--buckets", "8", "--from", FUTURE]);
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_eq!(
        made.stdout,
        "orders_by_customer of u-1 is divided into 8 buckets from 2999-01-01T00:00:00.000Z on\n"
    );
    let made =
        json(&set(&["orders_by_day", "--buckets", "16", "--from", "2999-01-01T03:00:00+03:00", "--json"]));
    assert_eq!((&made["from"], &made["state"]), (&"2999-01-01T00:00:00.000Z".into(), &"coming".into()));
    let rows: Vec<(String, String, i32)> =
        Tables::of(&shop).rows("SELECT table_name, key, buckets FROM {}.bucket_plans");
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(rows.contains(&("orders_by_customer".to_owned(), "u-1".to_owned(), 8)), "{rows:?}");
    assert!(rows.contains(&("orders_by_day".to_owned(), String::new(), 16)), "{rows:?}");

    let shown = shop.run(&["partitions", "plans"], &[]);
    let line = "\norders_by_customer  u-1  8        2999-01-01T00:00:00.000Z  operator  coming\n";
    assert!(shown.stdout.contains(line), "{shown:?}");
    let shown = json(&shop.run(&["partitions", "plans", "--table", "orders_by_day", "--json"], &[]));
    assert_eq!(shown["items"].as_array().unwrap().len(), 1);
    assert_eq!(shown["items"][0]["buckets"], 16);
    assert_eq!(shown["items"][0]["made_by"], "operator");
    assert_eq!(shown["defaults"][0]["buckets"], 6_144);
    let shown = json(&shop.run(&["partitions", "plans", "--key", "u-2", "--json"], &[]));
    assert_eq!(
        (shown["items"].as_array().unwrap().len(), shown["defaults"].as_array().unwrap().len()),
        (0, 3)
    );

    let soon = set(&["orders_by_customer", "u-1", "--buckets", "8", "--from", "2026-01-01"]);
    assert_eq!(soon.code, Some(1), "{soon:?}");
    assert!(soon.stderr.contains("mw: set the plan: from: at least 60 s from now, "), "{soon:?}");
    let fine = set(&["orders_by_customer", "u-1", "--buckets", "32", "--from", FUTURE]);
    assert!(fine.stderr.contains("mw: set the plan: buckets: 1 to 31"), "{fine:?}");
    let key = set(&["orders_by_day", "moscow", "--buckets", "8", "--from", FUTURE]);
    assert!(
        key.stderr.contains("key: orders_by_day divides a day of the shop and of its zones; there is no key"),
        "{key:?}"
    );
    let table = set(&["stock", "u-1", "--buckets", "8", "--from", FUTURE]);
    assert_eq!(table.code, Some(2), "{table:?}");
    assert!(table.stderr.contains("the tables with bucket plans are orders_by_customer, "), "{table:?}");
}

#[test]
fn plans_are_refused_on_the_embedded_engine() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let set = ["partitions", "plan", "set", "orders_by_day", "--buckets", "8", "--from", FUTURE];
    for command in [&["partitions", "plans"][..], &set] {
        let refused = run(&[command, &["--data", data.to_str().unwrap()]].concat());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let wanted =
            "mw: the embedded engine has no partitions to plan: name a cluster with --store cassandra";
        assert!(refused.stderr.starts_with(wanted), "{refused:?}");
    }
    assert!(!data.exists());
}
