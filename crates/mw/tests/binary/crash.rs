//! Kills the real binary under load, repeatedly, and checks every guarantee after each restart: acknowledged writes exist,
//! unacknowledged ones exist completely or not at all, keys replay, and every unit is accounted for.
//!
//! Several clients run concurrently. Each has its own users and records the responses; all share the stock.

mod check;
mod crash_client;
mod expected;
mod feed;
mod op;

use std::path::Path;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tempfile::TempDir;

use crate::client::Call;
use crate::process::{Server, mw, run};
use crash_client::CrashClient;

const CLIENTS: u64 = 4;
const KILLS: u32 = 4;
const KILLS_LONG: u32 = 50;

const PRODUCTS: usize = 12;
const ZONES: [&str; 2] = ["east", "west"];
/// Of every product in every zone.
const UNITS: i64 = 400;

fn product(at: usize) -> String {
    format!("product-{at:02}")
}

/// In hundredths.
fn price_minor(product_id: &str) -> i64 {
    let at: i64 = product_id.rsplit('-').next().unwrap().parse().unwrap();
    10_000 + at * 1_050
}

#[test]
fn every_guarantee_survives_kill_9() {
    let kills = if std::env::var_os("MW_TEST_LONG").is_some() { KILLS_LONG } else { KILLS };
    kill_under_load(kills, |_| {});
}

/// Proves that the test above detects a lost write.
#[test]
fn a_lost_acknowledged_write_is_detected() {
    let loss = || kill_under_load(1, lose_half_of_the_journal);
    assert!(std::panic::catch_unwind(loss).is_err(), "half of the writes are lost and the check passed");
}

fn lose_half_of_the_journal(data: &Path) {
    let journals = std::fs::read_dir(data.join("db")).unwrap().map(|entry| entry.unwrap().path());
    let journal = journals.filter(|path| path.extension().is_some_and(|it| it == "jnl")).max().unwrap();
    let bytes = std::fs::read(&journal).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    std::fs::write(&journal, &bytes[..used / 2]).unwrap();
}

fn kill_under_load(kills: u32, after_kill: impl Fn(&Path)) {
    let seed = std::env::var("MW_SEED").ok().map_or_else(rand::random, |seed| seed.parse().unwrap());
    eprintln!("seed {seed}: repeat with MW_SEED={seed}");
    let folder = TempDir::new().unwrap();
    let data = folder.path();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut clients: Vec<CrashClient> = (0..CLIENTS).map(|id| CrashClient::new(id, rng.random())).collect();

    let server = start(data, &mut rng);
    stock_up(&server);
    server.kill();
    for kill in 1..=kills {
        let server = start(data, &mut rng);
        check::all(&server, &mut clients, &mut rng, check::Depth::Sample);
        let delay = Duration::from_millis(rng.random_range(30..400));
        load_until_killed(server, &mut clients, delay);
        let calls: u64 = clients.iter().map(|crash_client| crash_client.calls).sum();
        eprintln!("kill {kill} of {kills} after {delay:?}, {calls} calls so far");
        after_kill(data);
        if rng.random_bool(0.3) {
            audit(data);
        }
    }
    let server = start(data, &mut rng);
    check::all(&server, &mut clients, &mut rng, check::Depth::Everything);
    assert_eq!(server.stop().code, Some(0));
    audit(data);
}

/// Sometimes an earlier start is killed during its recovery.
fn start(data: &Path, rng: &mut StdRng) -> Server {
    if rng.random_bool(0.3) {
        let mut command = mw(&["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()]);
        let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(rng.random_range(0..60)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // Small memtables are flushed during the load, large ones stay in the journal.
    let memtable = if rng.random_bool(0.5) { "1MiB" } else { "8MiB" };
    Server::start(data, &["--set", &format!("store.embedded.memtable={memtable}")])
}

fn stock_up(server: &Server) {
    let mut client = server.client();
    for at in 0..PRODUCTS {
        let id = product(at);
        let minor = price_minor(&id);
        let price = json!({"amount": format!("{}.{:02}", minor / 100, minor % 100), "currency": "RUB"});
        let body = json!({"name": format!("Product {at}"), "category": "things", "price": price});
        client.done(&Call::new("PUT", format!("/v1/products/{id}")).json(body));
        for zone in ZONES {
            let path = format!("/v1/products/{id}/stock/{zone}");
            client.done(&Call::new("PUT", path).json(json!({"on_hand": UNITS})));
        }
    }
}

fn load_until_killed(server: Server, clients: &mut [CrashClient], delay: Duration) {
    let address = server.address;
    std::thread::scope(|scope| {
        for crash_client in clients.iter_mut() {
            scope.spawn(move || crash_client.run_until_disconnected(address));
        }
        std::thread::sleep(delay);
        server.kill();
    });
}

fn audit(data: &Path) {
    let audit = run(&["stock", "audit", "--data", data.to_str().unwrap()]);
    assert_eq!(audit.code, Some(0), "{audit:?}");
}
