//! Nodes and repair of a cluster: who sees and steers them, dry runs, and the audit log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::Method;
use mw_domain::Timestamp;
use mw_http::prometheus::Registry;
use mw_http::{Api, Role, ServerSettings, Token, Tokens};
use mw_store::cluster::{
    BlackoutWindow, ClusterControl, NodeInfo, RepairOutcome, RepairReport, RepairState, TableRepair,
};
use mw_store::{Refusal, Result};
use mw_testkit::{FakeClock, builders};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::client::{Client, client};
use crate::engine::fresh_store;
use crate::storage::operations;

/// A cluster with one table, whose repair ends when `may_end` says so.
#[derive(Debug, Default)]
struct OneTable {
    may_end: Notify,
    is_paused: AtomicBool,
}

#[async_trait]
impl ClusterControl for OneTable {
    async fn nodes(&self) -> Result<Vec<NodeInfo>> {
        let node = |address: &str, up: bool| NodeInfo {
            address: address.to_owned(),
            data_center: "dc1".to_owned(),
            rack: "rack1".to_owned(),
            up,
            load_bytes: up.then_some(4_096),
            tokens: if up { 16 } else { 0 },
            schema: None,
            hints: Some(u64::from(!up)),
            clock_ms: up.then_some(-2),
        };
        Ok(vec![node("10.0.0.1", true), node("10.0.0.2", false)])
    }

    async fn repairs(&self, now: Timestamp) -> Result<RepairReport> {
        let stock = TableRepair {
            table: "stock".to_owned(),
            interval: Duration::from_hours(24),
            last_whole_repair: Some(now),
            deadline: Some(now.plus_seconds(-1)),
            running: false,
            failed_ranges: 2,
            skipped_ranges: 0,
            state: RepairState::Missed,
        };
        let paused = self.is_paused.load(Ordering::SeqCst);
        Ok(RepairReport { tables: vec![stock], paused, notes: vec!["a note".to_owned()] })
    }

    fn blackout_windows(&self, _: Timestamp) -> Vec<BlackoutWindow> {
        vec![BlackoutWindow { window: "11-25..11-30".to_owned(), open: true }]
    }

    fn check_repaired(&self, table: &str) -> Result<()> {
        let refused = || Refusal::RepairNotFound(format!("repair {table}: there is no such table")).into();
        if table == "stock" { Ok(()) } else { Err(refused()) }
    }

    async fn repair(&self, table: &str) -> Result<RepairOutcome> {
        self.may_end.notified().await;
        Ok(RepairOutcome { complete: true, text: format!("{table} is repaired on 2 nodes") })
    }

    async fn set_repair_paused(&self, is_paused: bool) -> Result<String> {
        self.is_paused.store(is_paused, Ordering::SeqCst);
        Ok("auto-repair is switched on 2 nodes".to_owned())
    }
}

fn token(role: Role, secret: &str) -> Token {
    Token { role, secret: secret.into(), rate_limit: None }
}

fn shop() -> (Client, Arc<OneTable>) {
    let tokens = Tokens(vec![
        token(Role::Backoffice, "back"),
        token(Role::Operator, "ops"),
        token(Role::Auditor, "audit"),
    ]);
    let (cluster, clock, store) = (Arc::new(OneTable::default()), FakeClock::new(), fresh_store());
    let operations = operations(&clock).with_cluster(Arc::clone(&cluster) as _);
    let shop = builders::shop(Arc::clone(&store) as _, &clock);
    let settings = ServerSettings::default();
    let api = Api::with_operations(shop, &settings, &tokens, Registry::new(), Some(operations)).unwrap();
    (Client::of(api, clock, store), cluster)
}

async fn call(
    client: &Client,
    method: Method,
    path: &str,
    token: &str,
    body: Value,
) -> crate::client::Response {
    let authorization = format!("Bearer {token}");
    client.call(method, path, &[("authorization", &authorization)], &body).await
}

const REPAIR: &str = "/v1/operations/repair";

#[tokio::test]
async fn nodes_repairs_and_windows_are_seen_by_operators_and_auditors() {
    let (client, _) = shop();
    for token in ["ops", "audit"] {
        let get = async |path: &str| call(&client, Method::GET, path, token, Value::Null).await.ok();
        let nodes = get("/v1/operations/nodes").await;
        assert_eq!(
            nodes["items"][0],
            json!({
                "address": "10.0.0.1", "data_center": "dc1", "rack": "rack1", "up": true, "load_bytes": 4_096, "tokens": 16,
                "schema": null, "hints": 0, "clock_ms": -2,
            })
        );
        assert_eq!((&nodes["items"][1]["up"], &nodes["items"][1]["clock_ms"]), (&json!(false), &Value::Null));
        let repairs = get(REPAIR).await;
        let row = repairs["items"][0].as_object().unwrap();
        let mut names: Vec<&str> = row.keys().map(String::as_str).collect();
        names.sort_unstable();
        let expected = [
            "deadline",
            "failed_ranges",
            "interval_s",
            "last_whole_repair",
            "running",
            "skipped_ranges",
            "table",
            "verdict",
        ];
        assert_eq!(names, expected);
        assert_eq!((&row["verdict"], &row["interval_s"]), (&json!("missed"), &json!(86_400)));
        assert_eq!((&repairs["paused"], &repairs["notes"]), (&json!(false), &json!(["a note"])));
        let windows = get("/v1/operations/repair/windows").await;
        assert_eq!(windows["items"], json!([{"window": "11-25..11-30", "open": true}]));
    }
    for path in
        ["/v1/operations/nodes", REPAIR, "/v1/operations/repair/windows", "/v1/operations/repair/stock"]
    {
        call(&client, Method::GET, path, "back", Value::Null).await.problem(403, "forbidden");
    }
    for path in ["run", "pause", "resume"] {
        let path = format!("{REPAIR}/{path}");
        let body = json!({"confirm": true});
        call(&client, Method::POST, &path, "audit", body).await.problem(403, "forbidden");
    }
}

#[tokio::test]
async fn a_repair_is_a_dry_run_until_it_is_confirmed_and_then_goes_on_after_the_response() {
    let (client, cluster) = shop();
    let get = async |path: &str| call(&client, Method::GET, path, "ops", Value::Null).await;
    let post = async |path: &str, body: Value| {
        call(&client, Method::POST, &format!("{REPAIR}/{path}"), "ops", body).await
    };
    let stock = format!("{REPAIR}/stock");
    let dry = post("run", json!({"tables": ["stock"]})).await.ok();
    assert_eq!(dry, json!({"done": false, "text": "would repair stock"}));
    let read = get(&stock).await.ok();
    assert_eq!((&read["requested"], &read["running"]), (&Value::Null, &json!(false)));

    let begun = post("run", json!({"tables": ["stock"], "confirm": true})).await;
    assert_eq!((begun.status.as_u16(), &begun.json["done"]), (202, &json!(true)));
    let read = get(&stock).await.ok();
    assert_eq!((&read["requested"]["state"], &read["running"]), (&json!("running"), &json!(true)));
    assert_eq!(get(REPAIR).await.ok()["items"][0]["running"], true);
    let again = post("run", json!({"tables": ["stock"], "confirm": true})).await;
    again.invalid_field("tables");
    cluster.may_end.notify_one();
    let ended = async {
        loop {
            let read = get(&stock).await.ok();
            if read["requested"]["state"] != "running" {
                return read;
            }
            tokio::task::yield_now().await;
        }
    };
    let read = tokio::time::timeout(crate::client::PATIENCE, ended).await.unwrap();
    assert_eq!(read["requested"]["state"], "complete");
    assert_eq!(read["requested"]["text"], "stock is repaired on 2 nodes");
    let audit = get("/v1/operations/audit").await.ok();
    let entry = &audit["items"][0];
    assert_eq!((&entry["action"], &entry["result"]), (&json!("repair stock"), &json!("done")), "{audit}");
}

#[tokio::test]
async fn pausing_is_a_dry_run_until_it_is_confirmed() {
    let (client, cluster) = shop();
    let post = async |path: &str, body: Value| {
        call(&client, Method::POST, &format!("{REPAIR}/{path}"), "ops", body).await.ok()
    };
    for dry in [Value::Null, json!({}), json!({"confirm": false})] {
        assert_eq!(post("pause", dry).await["done"], false);
    }
    assert!(!cluster.is_paused.load(Ordering::SeqCst));
    for (path, is_paused) in [("pause", true), ("resume", false)] {
        let done = post(path, json!({"confirm": true})).await;
        assert_eq!(done, json!({"done": true, "text": "auto-repair is switched on 2 nodes"}));
        assert_eq!(cluster.is_paused.load(Ordering::SeqCst), is_paused);
    }
    let audit = call(&client, Method::GET, "/v1/operations/audit", "ops", Value::Null).await.ok();
    let actions: Vec<&Value> = audit["items"].as_array().unwrap().iter().map(|it| &it["action"]).collect();
    assert_eq!(actions, [&json!("resume repair"), &json!("pause repair")]);
}

#[tokio::test]
async fn tables_that_are_not_repaired_are_not_found() {
    let (client, _) = shop();
    let unknown = format!("{REPAIR}/carts");
    call(&client, Method::GET, &unknown, "ops", Value::Null).await.problem(404, "repair_not_found");
    for confirm in [false, true] {
        let body = json!({"tables": ["stock", "carts"], "confirm": confirm});
        let run = call(&client, Method::POST, &format!("{REPAIR}/run"), "ops", body).await;
        let problem = run.problem(404, "repair_not_found");
        assert_eq!(problem["detail"], "repair carts: there is no such table");
    }
    let body = json!({"tables": [], "confirm": true});
    call(&client, Method::POST, &format!("{REPAIR}/run"), "ops", body).await.invalid_field("tables");
}

#[tokio::test]
async fn an_engine_without_nodes_says_so() {
    let client = client();
    for path in
        ["/v1/operations/nodes", REPAIR, "/v1/operations/repair/stock", "/v1/operations/repair/windows"]
    {
        let problem = client.get(path).await.problem(503, "store_unavailable");
        assert!(problem["detail"].as_str().unwrap().contains("neither nodes"), "{problem}");
    }
    client
        .post("/v1/operations/repair/pause", json!({"confirm": true}))
        .await
        .problem(503, "store_unavailable");
}
