//! The binary on a real cluster: its schema, its policy, serving, and migration between the engines.

use std::fs;
use std::process::Command;

use mw_testkit::cassandra::shared;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::deserialize::row::DeserializeRow;
use scylla::response::query_result::QueryResult;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::client::{Call, Client};
use crate::export::{body, export, populate};
use crate::process::{Ended, Server, mw, run};

/// A setting that an operator may change.
const POLICY: &str = "store.cassandra.policy.stock.gc_grace=3d";

/// A keyspace of this test on the shared cluster.
pub(crate) struct Shop {
    keyspace: String,
    points: String,
}

impl Shop {
    pub(crate) fn new(name: &str) -> Self {
        let points: Vec<String> =
            shared().contact_points.iter().map(|point| format!("\"{point}\"")).collect();
        Self { keyspace: format!("mw_{name}_{}", std::process::id()), points: points.join(", ") }
    }

    pub(crate) fn command(&self, arguments: &[&str], sets: &[&str]) -> Command {
        let mut command = mw(arguments);
        let points = format!("store.cassandra.contact_points=[{}]", self.points);
        let keyspace = format!("store.cassandra.keyspace={}", self.keyspace);
        command.args(["--store", "cassandra", "--set", &points, "--set", &keyspace]);
        for set in sets {
            command.args(["--set", set]);
        }
        command
    }

    pub(crate) fn run(&self, arguments: &[&str], sets: &[&str]) -> Ended {
        crate::process::ended(self.command(arguments, sets).output().unwrap())
    }

    pub(crate) fn serve(&self, sets: &[&str]) -> Result<Server, Ended> {
        Server::spawn(self.command(&["serve", "--listen", "127.0.0.1:0"], sets))
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let tables = Tables::of(self);
        for class in ["", "_carts", "_catalog", "_history"] {
            tables.run(&format!("DROP KEYSPACE IF EXISTS {{}}{class}"));
        }
    }
}

/// Direct access to the tables of a shop.
pub(crate) struct Tables {
    runtime: Runtime,
    session: Session,
    keyspace: String,
}

impl Tables {
    pub(crate) fn of(shop: &Shop) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let builder = SessionBuilder::new().known_nodes_addr(shared().contact_points);
        let session = runtime.block_on(builder.build()).unwrap();
        Self { runtime, session, keyspace: shop.keyspace.clone() }
    }

    /// `{}` stands for the keyspace.
    fn run(&self, statement: &str) -> QueryResult {
        let statement = statement.replace("{}", &self.keyspace);
        self.runtime.block_on(self.session.query_unpaged(statement, ())).unwrap()
    }

    pub(crate) fn rows<R: for<'f, 'm> DeserializeRow<'f, 'm>>(&self, statement: &str) -> Vec<R> {
        let rows = self.run(statement).into_rows_result().unwrap();
        rows.rows::<R>().unwrap().collect::<Result<_, _>>().unwrap()
    }
}

/// The products that [`populate`] sells.
pub(crate) fn stock_up(client: &mut Client) {
    for product in ["phone-a01-0-1", "phone-a01-0-2", "phone-a01-0-3"] {
        let price = json!({"amount": "9990.00", "currency": "RUB"});
        let body = json!({"name": product, "category": "phones", "price": price});
        client.done(&Call::new("PUT", format!("/v1/products/{product}")).json(body));
        for zone in ["moscow", "spb", "kazan"] {
            let path = format!("/v1/products/{product}/stock/{zone}");
            client.done(&Call::new("PUT", path).json(json!({"on_hand": 10})));
        }
    }
}

#[test]
fn a_shop_runs_on_a_cluster_and_migrates_to_one_machine() {
    let shop = Shop::new("life");
    let refused = shop.serve(&[]).err().unwrap();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let wanted = format!(
        "mw: open the store on Cassandra: the cluster has no schema of this shop (keyspace {}): run `mw schema apply`",
        shop.keyspace
    );
    assert!(refused.stderr.contains(&wanted), "{refused:?}");

    let applied = shop.run(&["schema", "apply"], &[]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert!(
        applied.stdout.starts_with(&format!("the schema of {} is up to date: ", shop.keyspace)),
        "{applied:?}"
    );
    assert!(applied.stderr.contains("CREATE TABLE IF NOT EXISTS "), "{applied:?}");
    let same = shop.run(&["schema", "drift"], &[]);
    assert_eq!((same.code, same.stdout.ends_with(": no drift\n")), (Some(0), true), "{same:?}");

    let drift = shop.run(&["schema", "drift"], &[POLICY]);
    assert_eq!(drift.code, Some(1), "{drift:?}");
    let line = format!("  table {}.stock: gc_grace_seconds is 172800, should be 259200\n", shop.keyspace);
    assert!(drift.stdout.ends_with(&format!(": 1 difference\n{line}")), "{drift:?}");
    let altered = shop.run(&["schema", "apply"], &[POLICY]);
    assert!(altered.stdout.ends_with("is up to date: 1 statement run\n"), "{altered:?}");

    serves(&shop);
    moves(&shop);
}

fn serves(shop: &Shop) {
    // The schema exists, so applying it again changes nothing.
    let command = shop.command(&["serve", "--apply-schema", "--listen", "127.0.0.1:0"], &[POLICY]);
    let server = Server::spawn(command).unwrap_or_else(|ended| panic!("{ended:?}"));
    let named = format!("data centre dc1, keyspace {})", shop.keyspace);
    assert!(server.greeting.contains(" (Cassandra cluster ") && server.greeting.ends_with(&named));
    let mut client = server.client();
    assert_eq!(client.get("/readyz").status, 200);
    stock_up(&mut client);
    populate(&mut client);
    let stopped = server.stop();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");

    let audit = shop.run(&["stock", "audit"], &[]);
    assert_eq!(audit.code, Some(0), "{audit:?}");
    assert!(audit.stdout.starts_with("audited 9 stock levels against "), "{audit:?}");
    let status = shop.run(&["cluster", "status"], &[]);
    assert_eq!(status.stdout, "Data centre dc1 sells.\nReplicas of the stock: dc1.\n", "{status:?}");
    let unknown = shop.run(&["cluster", "sell-from", "dc2"], &[]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("data centre \"dc2\" has no replicas of the stock"), "{unknown:?}");
    let currency = shop.serve(&["shop.currency=EUR"]).err().unwrap();
    assert!(
        currency.stderr.contains("shop.currency: the amounts in the cluster are in RUB, and it is EUR"),
        "{currency:?}"
    );
}

/// Each engine has an order of its own.
pub(crate) fn records(text: &str) -> Vec<&str> {
    let mut records: Vec<&str> = body(text).lines().collect();
    records.sort_unstable();
    records
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
    let again = shop.run(&["import", file.to_str().unwrap()], &[]);
    assert!(again.stderr.contains("the store is not empty"), "{again:?}");
}

#[test]
fn a_failed_start_names_the_setting() {
    let shop = Shop::new("faults");
    let cases = [
        ("store.cassandra.local_dc=moscow", "the cluster has no data centre \"moscow\"; it has dc1"),
        ("store.cassandra.replication.default.dc1=4", "replication factor 4 needs 4 nodes, and dc1 has 3"),
        ("store.cassandra.contact_points=[\"127.0.0.1:1\"]", "none of 127.0.0.1:1 can be reached: "),
        ("store.cassandra.tls.ca=/no/such/ca.pem", "read /no/such/ca.pem: "),
    ];
    for (set, what) in cases {
        let refused = shop.serve(&[set]).err().unwrap();
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let key = set.split('=').next().unwrap().replace(".default.", ".core.");
        let wanted = format!("mw: open the store on Cassandra: {key}: {what}");
        assert!(refused.stderr.contains(&wanted), "{wanted}\n{refused:?}");
    }
}

#[test]
fn an_unsafe_policy_is_refused_with_its_line_before_anything_is_opened() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("mw.toml");
    fs::write(&file, "[store.cassandra.policy.stock]\nread = \"LOCAL_ONE\"\n").unwrap();
    for command in [&["serve"][..], &["policy"], &["schema", "plan"], &["config"]] {
        let refused = run(&[command, &["--config", file.to_str().unwrap()]].concat());
        assert_eq!(refused.code, Some(2), "{refused:?}");
        let wanted = "mw.toml:2: store.cassandra.policy.stock.read: a read at LOCAL_ONE may miss a write acknowledged at";
        assert!(refused.stderr.contains(wanted), "{refused:?}");
    }
}

#[test]
fn the_plan_and_the_policy_need_no_cluster() {
    let plan = run(&["schema", "plan", "--set", "store.cassandra.replication.core={dc1 = 3, dc2 = 3}"]);
    assert_eq!(plan.code, Some(0), "{plan:?}");
    assert!(plan.stdout.contains("'dc1': 3, 'dc2': 3};"), "{plan:?}");
    assert!(plan.stdout.contains("CREATE TABLE IF NOT EXISTS mobile_world.stock ("), "{plan:?}");
    let policy = run(&["policy", "--json"]);
    let policy: Value = serde_json::from_str(&policy.stdout).unwrap();
    assert_eq!(policy["local_dc"], "dc1");
    let text = run(&["policy"]).stdout;
    assert!(text.contains("\nStaleness of responses.\n"), "{text}");
}
