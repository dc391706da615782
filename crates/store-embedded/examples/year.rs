//! A shop with a year of history: what cleaning, reports, export and backup, all at once, do to other requests.
//!
//! `cargo run --release -p mw-store-embedded --example year -- DIRECTORY [ORDERS] [SECONDS]` fills a new store in the directory: so
//! many orders (1 000 000) over 365 days, a tenth as many abandoned carts of 100 owners, and as many movements of one product. It
//! then measures reads and durable writes for so many seconds (20), in turns alone, beside each kind of background work, and beside
//! all of them; at the pace of a service, and without a pause. At the end it restores the backup. It prints one table.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "an example that prints its result, or why it has none"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mw_domain::carts::{CartLifetime, CartLine};
use mw_domain::orders::{EventKind, OrderLine};
use mw_domain::stock::{Cause, Delta, Movement};
use mw_domain::{
    Cart, CartId, CartStatus, Currency, GeoZone, Level, Money, Order, OrderEvent, OrderId, OrderStatus,
    Owner, Period, ProductId, Timestamp, UserId, ZoneStock,
};
use mw_store::backup::BackupState;
use mw_store::carts::SetLine;
use mw_store::export::{Checkpoint, Record};
use mw_store::{Carts, ExportImport, Freshness, Maintenance, Orders, PageRequest, Products, Stock};
use mw_store_embedded::{EmbeddedStore, Options, restore};
use mw_testkit::builders::product;
use uuid::Uuid;

const DAY_MS: i64 = 86_400_000;
const YEAR_MS: i64 = 365 * DAY_MS;
const END_MS: i64 = 1_790_000_000_000;
const OWNERS: u64 = 100;
const CLIENTS: u64 = 8;
/// Rounds of the service before its next look at what has expired.
const CLEANING_ROUNDS: u64 = 20;
const IMPORT_RECORDS: u64 = 1_000;
const LIFETIME: CartLifetime = CartLifetime { user_ms: 30 * DAY_MS, guest_ms: DAY_MS };

fn now() -> Timestamp {
    Timestamp::from_millis(END_MS)
}

fn zone() -> GeoZone {
    GeoZone::parse("north").unwrap()
}

fn hit() -> ProductId {
    ProductId::parse("hit").unwrap()
}

/// The moment of the `number`th of `count` things that are spread over the year.
fn moment(number: u64, count: u64) -> Timestamp {
    let share = i128::from(YEAR_MS) * i128::from(number) / i128::from(count);
    Timestamp::from_millis(END_MS - YEAR_MS + i64::try_from(share).unwrap())
}

fn order(number: u64, count: u64) -> Record {
    let at = moment(number, count);
    let line = OrderLine {
        product_id: hit(),
        name: "Hit".to_owned(),
        price: Money::from_minor(19_990),
        quantity: 1,
    };
    let order = Order {
        order_id: OrderId::new(Uuid::from_u128(u128::from(number) + 1)),
        user_id: UserId::parse(&format!("user-{}", number % 50_000)).unwrap(),
        status: OrderStatus::Paid,
        geo_zone: zone(),
        total: line.price,
        lines: vec![line],
        delivery_address: Some("Lenina 1".to_owned()),
        payment_method: Some("card".to_owned()),
        created_at: at,
        updated_at: at,
        version: 2,
        pay_by: at,
    };
    let event = |kind, from, to| OrderEvent { at, kind, from, to, note: None };
    let events = vec![
        event(EventKind::Created, None, OrderStatus::Created),
        event(EventKind::Status, Some(OrderStatus::Created), OrderStatus::Paid),
    ];
    Record::Order { order, events }
}

fn abandoned_cart(number: u64, count: u64) -> Record {
    let at = moment(number, count);
    Record::Cart(Cart {
        cart_id: CartId::new(Uuid::from_u128(u128::from(number) + 1)),
        owner: Owner::User(UserId::parse(&format!("owner-{}", number % OWNERS)).unwrap()),
        status: CartStatus::Abandoned,
        version: number + 1,
        lines: vec![CartLine { product_id: hit(), quantity: 1, updated_at: at }],
        created_at: at,
        updated_at: at,
        expires_at: at.plus_millis(30 * DAY_MS),
        merged_into: None,
        order_id: None,
    })
}

/// A part of the ledger of the product that every order has.
fn ledger(from: u64, to: u64, count: u64) -> Vec<Movement> {
    let movement = |number: u64| Movement {
        at: moment(number, count),
        op: Uuid::from_u128(u128::from(number) + 1),
        cause: Cause::Adjust,
        delta: Delta { on_hand: 1, reserved: 0 },
        note: None,
    };
    (from..to).map(movement).collect()
}

async fn import(store: &EmbeddedStore, records: Vec<Record>) {
    store.import(records, Checkpoint { import: "year".to_owned(), done: 1 }).await.unwrap();
}

async fn fill(store: &EmbeddedStore, orders: u64) {
    let stock = ZoneStock {
        product_id: hit(),
        geo_zone: zone(),
        level: Level { on_hand: orders, reserved: 0 },
        updated_at: now(),
    };
    let product = product("hit").made_at(moment(0, 1)).build();
    import(store, vec![Record::Product(product), Record::Stock { stock, ledger: Vec::new() }]).await;
    for from in (0..orders).step_by(usize::try_from(IMPORT_RECORDS).unwrap()) {
        let to = (from + IMPORT_RECORDS).min(orders);
        let mut records: Vec<Record> = (from..to).map(|number| order(number, orders)).collect();
        records.extend((from / 10..to / 10).map(|number| abandoned_cart(number, orders / 10)));
        records.push(Record::Ledger {
            product_id: hit(),
            geo_zone: zone(),
            ledger: ledger(from, to, orders),
        });
        import(store, records).await;
    }
}

/// Latencies of one kind of request, in microseconds.
#[derive(Default)]
struct Latencies(Vec<u64>);

impl Latencies {
    fn line(&mut self, seconds: f64) -> String {
        self.0.sort_unstable();
        let at =
            |share: usize| self.0.get((self.0.len().max(1) - 1) * share / 1_000).copied().unwrap_or_default();
        let count = f64::from(u32::try_from(self.0.len()).unwrap_or(u32::MAX));
        let ms = |micros: u64| f64::from(u32::try_from(micros).unwrap_or(u32::MAX)) / 1_000.0;
        format!("{:>10.0} {:>9.2} {:>9.2} {:>9.2}", count / seconds, ms(at(500)), ms(at(990)), ms(at(1_000)))
    }
}

/// Sends requests until the time is over: cart lines, which are durable, and reads of cart, product and stock.
async fn clients(store: &Arc<EmbeddedStore>, length: Duration) -> (Latencies, Latencies) {
    let until = Instant::now() + length;
    let mut running = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let store = Arc::clone(store);
        running.spawn(async move {
            let (mut writes, mut reads) = (Vec::new(), Vec::new());
            let mut number = client;
            while Instant::now() < until {
                number += CLIENTS;
                let owner = Owner::User(UserId::parse(&format!("client-{}", number % 5_000)).unwrap());
                let began = Instant::now();
                let line = SetLine {
                    owner: owner.clone(),
                    product_id: hit(),
                    quantity: 2,
                    new_cart_id: CartId::new(Uuid::new_v4()),
                    expected_version: None,
                    lifetime: LIFETIME,
                    now: now(),
                };
                store.set_line(line).await.unwrap();
                writes.push(micros(began));
                let began = Instant::now();
                store.active_cart(&owner, now()).await.unwrap();
                store.product(&hit(), Freshness::Latest).await.unwrap();
                store.zone_stock(&hit(), &zone(), Freshness::Latest, now()).await.unwrap();
                reads.push(micros(began));
            }
            (writes, reads)
        });
    }
    let mut all = (Latencies::default(), Latencies::default());
    for (writes, reads) in running.join_all().await {
        all.0.0.extend(writes);
        all.1.0.extend(reads);
    }
    all
}

fn micros(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// How often each kind of background work ended.
#[derive(Default)]
struct WorkCounts {
    is_over: AtomicBool,
    removed: AtomicU64,
    reports: AtomicU64,
    exports: AtomicU64,
    backups: AtomicU64,
}

/// A kind of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Cleaning,
    Reports,
    Export,
    Backup,
}

const ALL_WORK: [Work; 4] = [Work::Cleaning, Work::Reports, Work::Export, Work::Backup];

/// What is measured in turns: its name, and the work beside it.
const TURNS: [(&str, &[Work], Schedule); 8] = [
    ("alone", &[], Schedule::Service),
    ("beside all, paced", &ALL_WORK, Schedule::Service),
    ("alone", &[], Schedule::Service),
    ("beside cleaning", &[Work::Cleaning], Schedule::Restless),
    ("beside reports", &[Work::Reports], Schedule::Restless),
    ("beside an export", &[Work::Export], Schedule::Restless),
    ("beside a backup", &[Work::Backup], Schedule::Restless),
    ("beside all", &ALL_WORK, Schedule::Restless),
];

/// How often work is done again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Schedule {
    /// Cleaning as the service does it, a report a second, one export after another, a backup every five seconds.
    Service,
    /// Everything without a pause.
    Restless,
}

impl Work {
    /// The pause after it has been done so many times.
    fn pause(self, schedule: Schedule, times: u64) -> Duration {
        match self {
            Self::Cleaning if schedule == Schedule::Service && times.is_multiple_of(CLEANING_ROUNDS) => {
                Duration::from_secs(10)
            }
            Self::Reports if schedule == Schedule::Service => Duration::from_secs(1),
            Self::Backup if schedule == Schedule::Service => Duration::from_secs(5),
            _ => Duration::ZERO,
        }
    }
}

/// Does one kind of work again and again until the counts say that it is over.
async fn background(
    (work, schedule): (Work, Schedule),
    store: Arc<EmbeddedStore>,
    counts: Arc<WorkCounts>,
    backups: PathBuf,
) {
    let is_over = || counts.is_over.load(Ordering::Relaxed);
    let mut times = 0;
    while !is_over() {
        match work {
            Work::Cleaning => {
                let removed = store.purge_expired(now(), 500).await.unwrap();
                counts.removed.fetch_add(removed as u64, Ordering::Relaxed);
            }
            Work::Reports => {
                // Hours in part at both ends.
                let period = Period {
                    from: now().plus_millis(-91 * DAY_MS - 1_234_567),
                    to: now().plus_millis(-1_234_567),
                };
                store.sales(None, period).await.unwrap();
                store.idle_carts(now(), now(), PageRequest::first(100)).await.unwrap();
                counts.reports.fetch_add(1, Ordering::Relaxed);
            }
            Work::Export => {
                let export = store.export().await.unwrap();
                let mut request = PageRequest::first(500);
                while let Some(next) = export.page(request).await.unwrap().next {
                    if is_over() {
                        return;
                    }
                    request = PageRequest { limit: 500, after: Some(next) };
                }
                counts.exports.fetch_add(1, Ordering::Relaxed);
            }
            Work::Backup => {
                back_up(&store, &backups).await;
                counts.backups.fetch_add(1, Ordering::Relaxed);
            }
        }
        times += 1;
        let resume_at = Instant::now() + work.pause(schedule, times);
        while !is_over() && Instant::now() < resume_at {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Measures requests beside some kinds of work, and prints two lines.
async fn turn(
    store: &Arc<EmbeddedStore>,
    (name, works, schedule): (&str, &[Work], Schedule),
    length: Duration,
    backups: &Path,
) {
    let counts = Arc::new(WorkCounts::default());
    let mut running = tokio::task::JoinSet::new();
    for work in works {
        running.spawn(background(
            (*work, schedule),
            Arc::clone(store),
            Arc::clone(&counts),
            backups.to_owned(),
        ));
    }
    let (mut writes, mut reads) = clients(store, length).await;
    counts.is_over.store(true, Ordering::Relaxed);
    running.join_all().await;
    let total = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let done = if works.is_empty() {
        String::new()
    } else {
        format!(
            "   {} rows removed, {} reports, {} exports, {} backups",
            total(&counts.removed),
            total(&counts.reports),
            total(&counts.exports),
            total(&counts.backups)
        )
    };
    let seconds = length.as_secs_f64();
    println!("{:<30} {}{done}", format!("cart line, {name}"), writes.line(seconds));
    println!("{:<30} {}", format!("three reads, {name}"), reads.line(seconds));
}

async fn back_up(store: &EmbeddedStore, to: &Path) {
    store.start_backup(to.to_owned(), 2).await.unwrap();
    while matches!(store.backup_status().await.unwrap().unwrap().state, BackupState::Running(_)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn run(folder: &Path, orders: u64, length: Duration) {
    let (data, backups) = (folder.join("data"), folder.join("backups"));
    let options = Options { min_free_bytes: 0, ..Options::new(&data, Currency::parse("RUB").unwrap()) };
    let store = Arc::new(EmbeddedStore::open(options).unwrap());
    let began = Instant::now();
    fill(&store, orders).await;
    println!("filled with {orders} orders in {:.0} s", began.elapsed().as_secs_f64());
    println!("{:<30} {:>10} {:>9} {:>9} {:>9}", "", "a second", "p50 ms", "p99 ms", "worst ms");
    for measured in TURNS {
        turn(&store, measured, length, &backups).await;
    }
    turn(&store, TURNS[0], length, &backups).await;
    let began = Instant::now();
    back_up(&store, &backups).await;
    println!("a backup takes {:.2} s", began.elapsed().as_secs_f64());
    let (bytes, began) = (AtomicU64::new(0), Instant::now());
    let progress = |done| bytes.store(done, Ordering::Relaxed);
    restore(&backups, &folder.join("restored"), None, None, &progress).unwrap();
    let mib = bytes.load(Ordering::Relaxed) >> 20;
    println!("a restore of {mib} MiB takes {:.2} s", began.elapsed().as_secs_f64());
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().unwrap_or_else(|| "year".to_owned()));
    let orders = arguments.next().map_or(1_000_000, |text| text.parse().unwrap());
    let seconds = arguments.next().map_or(20, |text| text.parse().unwrap());
    let folder = std::path::absolute(folder).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(run(&folder, orders, Duration::from_secs(seconds)));
}
