//! Many processes that sell one product, against one process with as many buyers.
//!
//! Each process is one of the operating system: this program, started again with the arguments of [`Seller`]. It opens a
//! store, waits for the others, sells, and prints what it sold and how long each sale took.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mw_store_cassandra::CassandraStore;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::Mutex;

use super::{Buy, MEASURED, RAMP_UP, Reservation, Shop, options};

/// The first argument of a process that sells.
pub(super) const SELLER: &str = "seller";
const PROCESSES: usize = 12;
const BUYERS_EACH: usize = 16;
/// Runs of each case, one after the other, since the machine is not equally fast all the time.
const ROUNDS: usize = 2;

/// The latencies of sales: how many took so many milliseconds.
type Latencies = BTreeMap<u64, u64>;

/// What processes sold in the measured time.
#[derive(Debug, Default)]
struct Sold {
    failed: u64,
    forwarded: u64,
    unanswered: u64,
    latencies: Latencies,
}

impl Sold {
    fn add(&mut self, other: &Self) {
        self.failed += other.failed;
        self.forwarded += other.forwarded;
        self.unanswered += other.unanswered;
        for (ms, count) in &other.latencies {
            *self.latencies.entry(*ms).or_default() += count;
        }
    }

    fn count(&self) -> u64 {
        self.latencies.values().sum()
    }

    fn rate(&self) -> f64 {
        f64::from(u32::try_from(self.count()).unwrap()) / MEASURED.as_secs_f64()
    }

    /// The latency that `per_mille` of the sales did not exceed.
    fn quantile(&self, per_mille: u64) -> u64 {
        let mut rest = self.count() * per_mille / 1_000;
        for (ms, count) in &self.latencies {
            if *count >= rest {
                return *ms;
            }
            rest -= count;
        }
        0
    }

    fn write(&self) -> String {
        let latencies: Vec<String> =
            self.latencies.iter().map(|(ms, count)| format!("{ms}:{count}")).collect();
        format!("{} {} {} {}", self.failed, self.forwarded, self.unanswered, latencies.join(" "))
    }

    fn read(line: &str) -> Self {
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        let mut number = || words.next().unwrap().parse().unwrap();
        let (failed, forwarded, unanswered) = (number(), number(), number());
        let latency = |word: &str| {
            let (ms, count) = word.split_once(':').unwrap();
            (ms.parse().unwrap(), count.parse().unwrap())
        };
        Self { failed, forwarded, unanswered, latencies: words.map(latency).collect() }
    }
}

/// The process that sells: `seller <keyspace> <buyers> <is_forwarding>`.
pub(super) async fn sell(mut arguments: impl Iterator<Item = String>) {
    let mut options = options();
    options.keyspace = arguments.next().unwrap();
    let buyers: usize = arguments.next().unwrap().parse().unwrap();
    if arguments.next().unwrap() == "false" {
        options.internal.listen = None;
    }
    let store = CassandraStore::open(options).await.unwrap();
    println!("ready");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    lines.next_line().await.unwrap();
    let sold = sell_for_a_while(&store, buyers).await;
    println!("{}", sold.write());
    lines.next_line().await.unwrap();
    store.close().await;
}

async fn sell_for_a_while(store: &Arc<CassandraStore>, buyers: usize) -> Sold {
    let case = Arc::new(Reservation(Arc::clone(store)));
    let (stop, is_measured) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let sold = Arc::new(Mutex::new(Sold::default()));
    let buyers: Vec<_> = (0..buyers)
        .map(|buyer| {
            let (case, sold) = (Arc::clone(&case), Arc::clone(&sold));
            let (stop, is_measured) = (Arc::clone(&stop), Arc::clone(&is_measured));
            tokio::spawn(async move {
                let (mut failed, mut latencies) = (0, Latencies::new());
                while !stop.load(Ordering::Relaxed) {
                    let started = Instant::now();
                    let bought = case.buy(buyer).await;
                    let took = u64::try_from(started.elapsed().as_millis()).unwrap();
                    match bought {
                        Ok(()) if is_measured.load(Ordering::Relaxed) => {
                            *latencies.entry(took).or_default() += 1;
                        }
                        Ok(()) => {}
                        // Failures count at any time.
                        Err(_) => failed += 1,
                    }
                }
                sold.lock().await.add(&Sold { failed, latencies, ..Sold::default() });
            })
        })
        .collect();
    tokio::time::sleep(RAMP_UP).await;
    is_measured.store(true, Ordering::Relaxed);
    tokio::time::sleep(MEASURED).await;
    is_measured.store(false, Ordering::Relaxed);
    stop.store(true, Ordering::Relaxed);
    for buyer in buyers {
        buyer.await.unwrap();
    }
    let counts = store.forwarding_counts();
    let mut sold = std::mem::take(&mut *sold.lock().await);
    (sold.forwarded, sold.unanswered) = (counts.forwarded, counts.unanswered);
    sold
}

struct Seller {
    child: Child,
    output: tokio::io::Lines<BufReader<ChildStdout>>,
}

impl Seller {
    async fn start(keyspace: &str, buyers: usize, is_forwarding: bool) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([SELLER, keyspace, &buyers.to_string(), &is_forwarding.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seller = Self { child, output };
        assert_eq!(seller.line().await, "ready");
        seller
    }

    async fn line(&mut self) -> String {
        self.output.next_line().await.unwrap().unwrap()
    }

    async fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"go\n").await.unwrap();
    }
}

/// Sells with processes of their own, on empty tables; prints the result.
async fn run(processes: usize, buyers: usize, is_forwarding: bool) -> f64 {
    let keyspace = Shop::open("processes").await.leave().await;
    let mut sellers = Vec::new();
    for _ in 0..processes {
        sellers.push(Seller::start(&keyspace, buyers, is_forwarding).await);
    }
    // Every process knows the others after its next heartbeats.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for seller in &mut sellers {
        seller.go().await;
    }
    let mut sold = Sold::default();
    for seller in &mut sellers {
        sold.add(&Sold::read(&seller.line().await));
    }
    for seller in &mut sellers {
        seller.go().await;
        seller.child.wait().await.unwrap();
    }
    let forwarding = if is_forwarding { "" } else { ", not forwarding" };
    let title = format!("{processes} processes, {buyers} buyers each{forwarding}");
    let rate = sold.rate();
    println!(
        "{title:<52} {rate:>9.1}/s   failed {}   p50 {} ms   p99 {} ms   max {} ms   forwarded {}, unanswered {}",
        sold.failed,
        sold.quantile(500),
        sold.quantile(990),
        sold.quantile(1_000),
        sold.forwarded,
        sold.unanswered,
    );
    let shop = Shop::join("processes").await;
    shop.audit().await;
    shop.close().await;
    rate
}

/// Compares the two, in turn.
pub(super) async fn compare() {
    let buyers = PROCESSES * BUYERS_EACH;
    let (mut alone, mut together) = (0.0, 0.0);
    run(1, buyers, true).await;
    for _ in 0..ROUNDS {
        alone += run(1, buyers, true).await;
        together += run(PROCESSES, BUYERS_EACH, true).await;
    }
    let contended = run(PROCESSES, BUYERS_EACH, false).await;
    println!("{PROCESSES} processes sell {:.2} of what one with as many buyers sells", together / alone);
    let rounds = f64::from(u32::try_from(ROUNDS).unwrap());
    println!("  without forwarding {:.2}", contended * rounds / alone);
}
