//! `mw partitions` on a real cluster, and with the embedded engine, which has no partitions.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cassandra::{Shop, Tables};
use crate::client::Call;
use crate::process::{Ended, Server, run, until};

const FUTURE: &str = "2999-01-01";

fn parsed(ended: &Ended) -> Value {
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

    let set =
        |arguments: &[&str]| shop.run(&[&["partitions", "plan", "set"], arguments, &["--yes"]].concat(), &[]);
    let dry = ["partitions", "plan", "set", "orders_by_customer", "u-1", "--buckets", "8", "--from", FUTURE];
    let dry = shop.run(&dry, &[]);
    assert!(dry.stdout.ends_with("Nothing was changed: add --yes to execute it.\n"), "{dry:?}");
    assert!(Tables::of(&shop).rows::<(String,)>("SELECT key FROM {}.bucket_plans").is_empty());
    let made = set(&["orders_by_customer", "u-1", "--buckets", "8", "--from", FUTURE]);
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_eq!(
        made.stdout,
        "orders_by_customer of u-1 is divided into 8 buckets from 2999-01-01T00:00:00.000Z on\n"
    );
    let made =
        parsed(&set(&["orders_by_day", "--buckets", "16", "--from", "2999-01-01T03:00:00+03:00", "--json"]));
    assert_eq!((&made["from"], &made["state"]), (&"2999-01-01T00:00:00.000Z".into(), &"coming".into()));
    let rows: Vec<(String, String, i32)> =
        Tables::of(&shop).rows("SELECT table_name, key, buckets FROM {}.bucket_plans");
    assert_eq!(rows.len(), 2 * 4, "four copies: {rows:?}");
    assert!(rows.contains(&("orders_by_customer".to_owned(), "u-1".to_owned(), 8)), "{rows:?}");
    assert!(rows.contains(&("orders_by_day".to_owned(), String::new(), 16)), "{rows:?}");

    let shown = shop.run(&["partitions", "plans"], &[]);
    let line = "\norders_by_customer  u-1  8        2999-01-01T00:00:00.000Z  operator  coming\n";
    assert!(shown.stdout.contains(line), "{shown:?}");
    let shown = parsed(&shop.run(&["partitions", "plans", "--table", "orders_by_day", "--json"], &[]));
    assert_eq!(shown["items"].as_array().unwrap().len(), 1);
    assert_eq!(shown["items"][0]["buckets"], 16);
    assert_eq!(shown["items"][0]["made_by"], "operator");
    assert_eq!(shown["defaults"][0]["buckets"], 6_144);
    let shown = parsed(&shop.run(&["partitions", "plans", "--key", "u-2", "--json"], &[]));
    assert_eq!(
        (shown["items"].as_array().unwrap().len(), shown["defaults"].as_array().unwrap().len()),
        (0, 3)
    );

    let end =
        |arguments: &[&str]| shop.run(&[&["partitions", "plan", "end"], arguments, &["--yes"]].concat(), &[]);
    let ended = end(&["orders_by_customer", "u-1", "--from", "2999-02-01"]);
    assert_eq!(
        ended.stdout, "orders_by_customer of u-1 is divided into 1 bucket from 2999-02-01T00:00:00.000Z on\n",
        "{ended:?}"
    );
    let none = end(&["orders_by_customer", "u-2"]);
    assert!(
        none.stderr.contains("mw: end the plan: key \"u-2\" of orders_by_customer has no plan to end"),
        "{none:?}"
    );
    let logged: Vec<(String, String)> = Tables::of(&shop).rows("SELECT action, result FROM {}.audit_log");
    assert_eq!(logged.len(), 3, "{logged:?}");
    assert!(logged.iter().all(|(_, result)| result == "done"), "{logged:?}");
    let top = parsed(&shop.run(&["partitions", "top", "--json"], &[]));
    assert_eq!(top["items"], Value::Array(Vec::new()));

    assert_refusals(set);
}

/// Plans that are refused, whatever exists.
fn assert_refusals(set: impl Fn(&[&str]) -> Ended) {
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
fn the_busiest_product_is_named_on_the_embedded_engine() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &["--set", "operate.partitions.window=1s"]);
    let mut client = server.client();
    let body = json!({"name": "Hit", "category": "phones", "price": {"amount": "1.00", "currency": "RUB"}});
    client.done(&Call::new("PUT", "/v1/products/hit").json(body));
    let url = format!("http://{}", server.address);
    let mut named = Value::Null;
    until("the product is named", || {
        for number in 0..100 {
            let product = if number % 2 == 0 { "hit".to_owned() } else { format!("other-{number}") };
            client.get(&format!("/v1/products/{product}"));
        }
        let top = parsed(&run(&["partitions", "top", "--url", &url, "--table", "products", "--json"]));
        named = top["items"][0].clone();
        named["key"] == "hit" && named["share"].as_f64().unwrap() > 0.4
    });
    assert_eq!((&named["table"], &named["plan"]), (&json!("products"), &Value::Null));
    assert!(
        named["reads_per_s"].as_f64().unwrap() > 0.0 && named["share"].as_f64().unwrap() < 0.6,
        "{named}"
    );
    let text = run(&["partitions", "top", "--url", &url]);
    assert!(text.stdout.contains("products  hit"), "{text:?}");
}

#[test]
fn only_operators_change_plans_and_auditors_see_pseudonyms() {
    let folder = TempDir::new().unwrap();
    let tokens = r#"tokens=[{role="operator",token="operator-0123456789"},{role="auditor",token="auditor-0123456789"},{role="backoffice",token="backoffice-0123456789"}]"#;
    let server = Server::start(folder.path(), &["--set", tokens, "--set", "operate.partitions.window=1s"]);
    let mut client = server.client();
    let call = |method, path: &str, role: &str| Call::new(method, path).token(&format!("{role}-0123456789"));
    let path = "/v1/operations/partitions";
    assert_eq!(client.call(&call("GET", path, "backoffice")).code(), "forbidden");
    let plan = json!({"table": "orders_by_day", "buckets": 4, "confirm": true});
    let plans = "/v1/operations/partitions/plans";
    assert_eq!(client.call(&call("POST", plans, "auditor").json(plan.clone())).code(), "forbidden");
    let refused = client.call(&call("POST", plans, "operator").json(plan));
    assert_eq!(refused.code(), "invalid_field", "{refused:?}");
    let line = json!({"quantity": 1});
    client.done(&call("PUT", "/v1/users/anna/cart/lines/p", "operator").json(line));
    let mut key = Value::Null;
    until("the cart is counted", || {
        client.call(&call("GET", "/v1/users/anna/cart", "operator"));
        let seen = client.call(&call("GET", path, "auditor")).body;
        let items = seen["items"].as_array().unwrap().clone();
        items.iter().find(|item| item["table"] == "carts").is_some_and(|item| {
            key = item["key"].clone();
            true
        })
    });
    assert!(key.as_str().unwrap().starts_with("u-") && key != "anna", "{key}");
}

#[test]
fn plans_are_refused_on_the_embedded_engine() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let set = ["partitions", "plan", "set", "orders_by_day", "--buckets", "8", "--from", FUTURE];
    for command in [&["partitions", "plans"][..], &set] {
        let refused = run(&[command, &["--data", data.to_str().unwrap()]].concat());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let wanted = "mw: this engine has no partitions to plan: name a cluster with --store cassandra";
        assert!(refused.stderr.starts_with(wanted), "{refused:?}");
    }
    assert!(!data.exists());
}
