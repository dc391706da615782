//! The binary on a real MongoDB: its schema, its policy, serving, moving to another engine, and its shards.

use std::fs;
use std::process::Command;

use mw_testkit::mongodb::{Cluster, ClusterOptions, Layout, shared};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cassandra::{records, stock_up};
use crate::export::{export, populate};
use crate::process::{Ended, Server, ended, mw, run};

/// A database of this test.
struct Shop {
    uri: String,
    database: String,
}

impl Shop {
    fn new(uri: &str, name: &str) -> Self {
        Self { uri: uri.to_owned(), database: format!("mw_test_{}_{name}", std::process::id()) }
    }

    fn command(&self, arguments: &[&str], sets: &[&str]) -> Command {
        let mut command = mw(arguments);
        let uri = format!("store.mongodb.uri={}", self.uri);
        let database = format!("store.mongodb.database={}", self.database);
        command.args(["--store", "mongodb", "--set", &uri, "--set", &database]);
        for set in sets {
            command.args(["--set", set]);
        }
        command
    }

    fn run(&self, arguments: &[&str], sets: &[&str]) -> Ended {
        ended(self.command(arguments, sets).output().unwrap())
    }

    fn serve(&self, sets: &[&str]) -> Result<Server, Ended> {
        Server::spawn(self.command(&["serve", "--listen", "127.0.0.1:0"], sets))
    }
}

#[test]
fn a_shop_runs_on_a_replica_set_and_moves_to_one_machine() {
    let shop = Shop::new(&shared(), "life");
    let refused = shop.serve(&[]).err().unwrap();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let wanted =
        format!("mw: open the store on MongoDB: the database {} has no schema of this shop", shop.database);
    assert!(refused.stderr.contains(&wanted) && refused.stderr.contains("mw schema apply"), "{refused:?}");

    let applied = shop.run(&["schema", "apply"], &[]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert!(
        applied.stdout.starts_with(&format!("the schema of {} is up to date: ", shop.database)),
        "{applied:?}"
    );
    let same = shop.run(&["schema", "drift"], &[]);
    assert_eq!((same.code, same.stdout.ends_with(": no drift\n")), (Some(0), true), "{same:?}");

    let server = shop.serve(&[]).unwrap_or_else(|ended| panic!("{ended:?}"));
    assert!(
        server.greeting.ends_with(&format!("(MongoDB, database {})", shop.database)),
        "{}",
        server.greeting
    );
    let mut client = server.client();
    assert_eq!(client.get("/readyz").status, 200);
    stock_up(&mut client);
    populate(&mut client);
    let metrics = client.get("/metrics").body;
    let metrics = metrics.as_str().unwrap();
    assert!(metrics.contains("mw_mongodb_calls_total{call=\"stock_change\",shards=\"one\"}"), "{metrics}");
    assert_eq!(server.stop().code, Some(0));

    let audit = shop.run(&["stock", "audit"], &[]);
    assert!(audit.stdout.starts_with("audited 9 stock levels against "), "{audit:?}");
    let currency = shop.serve(&["shop.currency=EUR"]).err().unwrap();
    assert!(
        currency.stderr.contains("shop.currency: amounts are stored in RUB, and EUR is configured"),
        "{currency:?}"
    );
    moves(&shop);
}

fn moves(shop: &Shop) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("shop.ndjson");
    let exported = shop.run(&["export", "--output", file.to_str().unwrap()], &[]);
    assert_eq!(exported.code, Some(0), "{exported:?}");
    let data = folder.path().join("data");
    let imported = run(&["import", file.to_str().unwrap(), "--data", data.to_str().unwrap()]);
    assert_eq!(imported.code, Some(0), "{imported:?}");
    assert_eq!(records(&export(&data)), records(&fs::read_to_string(&file).unwrap()));
}

#[test]
fn a_failed_start_on_mongodb_names_the_setting() {
    let shop = Shop::new(&shared(), "faults");
    let cases = [
        (
            "store.mongodb.uri=mongodb://127.0.0.1:1",
            Some(1),
            "store.mongodb.uri: no server of 127.0.0.1:1 can be reached",
        ),
        ("store.mongodb.uri=http://127.0.0.1", Some(2), "store.mongodb.uri: expected mongodb://"),
        (
            "store.mongodb.shard_keys.carts='status: 1'",
            Some(2),
            "store.mongodb.shard_keys.carts: \"status: 1\" is none",
        ),
        ("store.mongodb.policy.cart.preference=secondary", Some(2), "cart is always read on the primary"),
    ];
    for (set, code, what) in cases {
        let refused = shop.serve(&[set]).err().unwrap();
        assert_eq!(refused.code, code, "{refused:?}");
        assert!(refused.stderr.contains(what), "{what}\n{refused:?}");
    }
}

#[test]
fn the_plan_and_the_policy_of_mongodb_need_no_servers() {
    let nowhere = ["--store", "mongodb", "--set", "store.mongodb.uri=mongodb://127.0.0.1:1"];
    let fast = ["--set", "store.mongodb.request_timeout=200ms"];
    let plan = run(&[&["schema", "plan"], &nowhere[..], &fast].concat());
    assert_eq!(plan.code, Some(0), "{plan:?}");
    assert!(
        plan.stdout.contains("sh.shardCollection(\"mobile_world.carts\", { \"owner\": \"hashed\" })"),
        "{plan:?}"
    );
    let policy = run(&["policy", "--store", "mongodb", "--json"]);
    let policy: Value = serde_json::from_str(&policy.stdout).unwrap();
    let row = policy["calls"].as_array().unwrap().iter().find(|it| it["call"] == "catalogue").unwrap();
    assert_eq!(
        (&row["read_preference"], &row["max_staleness_seconds"]),
        (&json!("secondaryPreferred"), &json!(30))
    );
    assert!(run(&["policy", "--store", "mongodb"]).stdout.contains("checkout"));
    let shown = run(&["config", "--set", "store.mongodb.uri=mongodb://mw:hunter2@db.example/"]).stdout;
    assert!(shown.contains("mongodb://mw:…@db.example/") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn shards_are_shown_and_changed_after_a_dry_run() {
    let options =
        ClusterOptions { name: "binary".to_owned(), layout: Layout::Sharded, ..ClusterOptions::default() };
    let cluster = Cluster::start(options).unwrap();
    let shop = Shop::new(&cluster.uri(), "shards");
    assert_eq!(shop.run(&["schema", "apply"], &[]).code, Some(0));
    let server = shop.serve(&[]).unwrap_or_else(|ended| panic!("{ended:?}"));
    stock_up(&mut server.client());
    assert_eq!(server.stop().code, Some(0));

    let shown = shop.run(&["shards", "--json"], &[]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let report: Value = serde_json::from_str(&shown.stdout).unwrap();
    let products =
        report["collections"].as_array().unwrap().iter().find(|it| it["name"] == "products").unwrap();
    assert_eq!((&products["sharded"], &products["shard_key"]), (&json!(true), &json!("_id: hashed")));
    let documents: u64 =
        products["shards"].as_array().unwrap().iter().map(|it| it["documents"].as_u64().unwrap()).sum();
    assert_eq!(documents, 3);
    assert_eq!(report["balancer"], json!({"enabled": true, "window": null}));
    assert_eq!(report["members"].as_array().unwrap().len(), 4);

    let dry = shop.run(&["shards", "balancer", "off"], &[]);
    assert!(dry.stdout.ends_with("Nothing was changed.\n"), "{dry:?}");
    let done = shop.run(&["shards", "balancer", "off", "--yes"], &[]);
    assert!(done.stdout.starts_with("done: turn the balancer off"), "{done:?}");
    assert!(shop.run(&["shards"], &[]).stdout.contains("balancer: off"));
    let advice = shop.run(&["shards", "advise", "--json"], &[]);
    let advice: Value = serde_json::from_str(&advice.stdout).unwrap();
    assert_eq!(advice["keys"].as_array().unwrap().iter().filter(|it| it["configured"] == true).count(), 3);
    let wrong = shop.serve(&["store.mongodb.shard_keys.products='category: hashed'"]).err().unwrap();
    assert!(
        wrong.stderr.contains("store.mongodb.shard_keys.products: the collection products is sharded by"),
        "{wrong:?}"
    );
}
