//! The change feed after a restart: every step of every order once and in order, no other order, and the stock as it is.

use std::collections::BTreeMap;

use serde_json::Value;

use super::crash_client::CrashClient;
use super::{PRODUCTS, ZONES, product};
use crate::client::Client;

/// The changes of each subject, from the oldest on.
fn by_subject(client: &mut Client, topic: &str) -> BTreeMap<String, Vec<Value>> {
    let mut subjects: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut path = format!("/v1/changes?topics={topic}&limit=1000");
    loop {
        let page = client.get(&path).body;
        let items = page["items"].as_array().unwrap_or_else(|| panic!("no changes in {page}"));
        if items.is_empty() {
            return subjects;
        }
        for item in items {
            let subject = item["subject"].as_str().unwrap().to_owned();
            subjects.entry(subject).or_default().push(item.clone());
        }
        let next = page["next_cursor"].as_str().unwrap();
        path = format!("/v1/changes?topics={topic}&limit=1000&after={next}");
    }
}

pub(super) fn check(client: &mut Client, clients: &[CrashClient]) {
    let mut orders = by_subject(client, "orders");
    for crash_client in clients {
        for (order_id, known) in &crash_client.expected.orders {
            let steps = orders.remove(order_id).unwrap_or_default();
            let versions: Vec<u64> = steps.iter().map(|step| step["version"].as_u64().unwrap()).collect();
            assert_eq!(versions, (1..=known.events as u64).collect::<Vec<_>>(), "{order_id}: {steps:?}");
            let last = steps.last().map(|step| &step["data"]["status"]);
            assert_eq!(last, Some(&Value::from(known.status)), "{order_id}");
        }
    }
    assert!(orders.is_empty(), "orders that do not exist: {:?}", orders.keys());

    let stock = by_subject(client, "stock");
    for product in (0..PRODUCTS).map(product) {
        for zone in ZONES {
            let found = client.get(&format!("/v1/products/{product}/stock/{zone}")).body;
            let last = stock.get(&format!("{product}/{zone}")).and_then(|changes| changes.last());
            let last = last.unwrap_or_else(|| panic!("no stock of {product} in {zone} in the feed"));
            // Units of ended holds leave `reserved` when they are settled.
            assert_eq!(last["data"]["on_hand"], found["on_hand"], "{product} in {zone}: {last}");
        }
    }
}
