//! Forwarding on a real cluster: several processes sell one product, and their commands are decided by one of them. Each
//! process has a runtime of its own, so that it can be paused or killed as a whole.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step fails the test")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use mw_domain::{Level, ReservationId, Timestamp};
use mw_store::products::ImportProduct;
use mw_store::stock::Reserve;
use mw_store::{Freshness, Products, Stock};
use mw_store_cassandra::{CassandraStore, ForwardingCounts};
use mw_testkit::FakeClock;
use mw_testkit::builders::{demand, product, product_id, zone};
use mw_testkit::cassandra::Lease;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use uuid::Uuid;

const NOW: Timestamp = FakeClock::START;
const ZONE: &str = "msk";
const PROCESSES: usize = 3;
const BUYERS: usize = 6;
const UNITS: u64 = 1_000_000;
/// For how long the processes are observed to find the owner.
const OBSERVED: Duration = Duration::from_secs(1);
/// Bounds every wait. What is awaited takes seconds; test machines are slow at times.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Polls until `poll` holds.
fn eventually(what: &str, mut poll: impl FnMut() -> bool) {
    let started = Instant::now();
    while !poll() {
        assert!(started.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// What the buyers of one process have done.
#[derive(Debug, Default)]
struct Sales {
    stop: AtomicBool,
    sold: AtomicU64,
    failures: Mutex<Vec<String>>,
}

struct Process {
    runtime: Runtime,
    store: Arc<CassandraStore>,
    sales: Arc<Sales>,
    buyers: Vec<JoinHandle<()>>,
}

impl Process {
    fn start(lease: &Lease) -> Self {
        let runtime = runtime();
        let store = runtime.block_on(lease.open());
        Self { runtime, store, sales: Arc::default(), buyers: Vec::new() }
    }

    /// Lets buyers reserve one unit after another.
    fn sell(&mut self) {
        self.sales.stop.store(false, Ordering::Relaxed);
        for _ in 0..BUYERS {
            let (store, sales) = (Arc::clone(&self.store), Arc::clone(&self.sales));
            self.buyers.push(self.runtime.spawn(async move {
                while !sales.stop.load(Ordering::Relaxed) {
                    match store.reserve(one_unit()).await {
                        Ok(_) => drop(sales.sold.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => sales.failures.lock().unwrap().push(error.to_string()),
                    }
                }
            }));
        }
    }

    /// Waits for the buyers to finish what they have begun.
    fn stop_selling(&mut self) {
        self.sales.stop.store(true, Ordering::Relaxed);
        for buyer in self.buyers.drain(..) {
            self.runtime.block_on(buyer).unwrap();
        }
        assert_eq!(*self.sales.failures.lock().unwrap(), Vec::<String>::new());
    }

    fn counts(&self) -> ForwardingCounts {
        self.store.forwarding_counts()
    }

    fn sold(&self) -> u64 {
        self.sales.sold.load(Ordering::Relaxed)
    }

    /// Stops every task of the process until the returned sender is dropped.
    fn pause(&self) -> mpsc::Sender<()> {
        let (resume, paused) = mpsc::channel::<()>();
        let (stopped, is_stopped) = mpsc::channel();
        self.runtime.spawn(async move {
            stopped.send(()).unwrap();
            assert!(paused.recv().is_err());
        });
        is_stopped.recv().unwrap();
        resume
    }
}

fn one_unit() -> Reserve {
    Reserve {
        reservation_id: ReservationId::new(Uuid::now_v7()),
        geo_zone: zone(ZONE),
        lines: vec![demand("hit", 1)],
        expires_at: NOW.plus_seconds(900),
        now: NOW,
        identity: None,
    }
}

/// The process that takes the commands of all others at present. Another one may have been before, while the processes did
/// not know all of each other.
fn find_owner(processes: &[Process]) -> Option<usize> {
    let counts = || processes.iter().map(Process::counts).collect::<Vec<_>>();
    let before = counts();
    thread::sleep(OBSERVED);
    let now = counts();
    let grew = |count: fn(&ForwardingCounts) -> u64| -> Vec<bool> {
        before.iter().zip(&now).map(|(before, now)| count(now) > count(before)).collect()
    };
    let (served, forwarded) = (grew(|counts| counts.served), grew(|counts| counts.forwarded));
    let owner = served.iter().position(|served| *served)?;
    let is_owner = |at: usize| at == owner;
    let agree = (0..processes.len())
        .all(|at| served.get(at) == Some(&is_owner(at)) && forwarded.get(at) == Some(&!is_owner(at)));
    agree.then_some(owner)
}

/// Processes that sell one product, until the keeper of one decides for all.
struct Shop {
    main: Runtime,
    owner: Option<Process>,
    others: Vec<Process>,
    _lease: Lease,
}

impl Shop {
    fn open() -> Self {
        let main = runtime();
        let lease = main.block_on(Lease::empty());
        let mut processes: Vec<Process> = (0..PROCESSES).map(|_| Process::start(&lease)).collect();
        main.block_on(async {
            let (product, op) = (product("hit").build(), Uuid::now_v7());
            let stock = vec![(zone(ZONE), UNITS)];
            let import = ImportProduct { product, stock, op, now: NOW, identity: None };
            processes.first().unwrap().store.import_product(import).await.unwrap();
        });
        for process in &mut processes {
            process.sell();
        }
        let mut owner = None;
        eventually("one process decides for all others", || {
            owner = find_owner(&processes);
            owner.is_some()
        });
        let owner = owner.map(|owner| processes.swap_remove(owner));
        Self { main, owner, others: processes, _lease: lease }
    }

    /// Waits until the processes that are not the owner have sold more.
    fn sell_more(&self, units: u64) {
        let enough: Vec<u64> = self.others.iter().map(|process| process.sold() + units).collect();
        eventually("every process sells", || {
            self.others.iter().zip(&enough).all(|(process, enough)| process.sold() >= *enough)
        });
    }

    /// Every acknowledged reservation holds one unit, and no other operation does. `sold` is what the owner sold.
    fn stop_and_check(&mut self, mut sold: u64) {
        for process in &mut self.others {
            process.stop_selling();
            sold += process.sold();
        }
        let observer = self.others.first().unwrap();
        let exact = Level { on_hand: UNITS, reserved: sold };
        let (name, zone) = (product_id("hit"), zone(ZONE));
        eventually("the stock is exact", || {
            let read = observer.store.zone_stock(&name, &zone, Freshness::Latest, NOW);
            let level = self.main.block_on(read).unwrap().unwrap().level;
            let drifts = self.main.block_on(observer.store.audit(&|_| {})).unwrap().drifts;
            println!("{level:?}, expected {exact:?}; {drifts:?}");
            level == exact && drifts.is_empty()
        });
    }
}

#[test]
fn processes_that_sell_one_product_let_one_of_them_decide() {
    let mut shop = Shop::open();
    shop.sell_more(100);
    let mut owner = shop.owner.take().unwrap();
    owner.stop_selling();
    shop.stop_and_check(owner.sold());
    owner.runtime.block_on(owner.store.close());
}

#[test]
fn commands_of_a_killed_owner_are_decided_once() {
    let mut shop = Shop::open();
    let mut owner = shop.owner.take().unwrap();
    owner.stop_selling();
    let sold = owner.sold();
    owner.runtime.shutdown_background();
    shop.sell_more(100);
    shop.stop_and_check(sold);
}

#[test]
fn commands_of_a_paused_owner_are_decided_once() {
    let mut shop = Shop::open();
    let mut owner = shop.owner.take().unwrap();
    owner.stop_selling();
    eventually("commands are in flight when the owner is paused", || {
        let resume = owner.pause();
        shop.sell_more(50);
        // The owner finds the commands that it had not decided, and that were resolved without it.
        drop(resume);
        shop.sell_more(50);
        shop.others.iter().any(|process| process.counts().unanswered > 0)
    });
    shop.stop_and_check(owner.sold());
}
