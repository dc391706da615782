//! What a year leaves behind: ledgers, carts and expired rows are removed at a bounded cost.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use fjall::Slice;
use mw_domain::carts::CartLifetime;
use mw_domain::stock::{Cause, Delta};
use mw_domain::{
    CartId, Currency, Demand, GeoZone, IdempotencyKey, Level, Movement, OrderId, OrderStatus, Owner, Period,
    ProductId, Reservation, ReservationId, ReservationStatus, UserId, ZoneStock,
};
use mw_store::carts::{Abandon, Carts, SetLine};
use mw_store::export::{Checkpoint, Record};
use mw_store::orders::{Basket, Orders as _, PlaceOrder, SetStatus};
use mw_store::products::Products as _;
use mw_store::stock::{Reserve, SetOnHand, Stock as _};
use mw_store::{ExportImport as _, Fingerprint, PageRequest, RequestIdentity};
use mw_testkit::builders::product;
use uuid::Uuid;

use super::*;
use crate::Options;
use crate::reader::RowVisitor;

const DAY: i64 = 86_400;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000).plus_seconds(seconds)
}

fn open(folder: &Path) -> EmbeddedStore {
    let options = Options { min_free_bytes: 0, ..Options::new(folder, Currency::parse("RUB").unwrap()) };
    EmbeddedStore::open(options).unwrap()
}

/// Counts the rows that a read touches.
struct CountingReader<'a> {
    inner: &'a dyn Reader,
    rows: Cell<usize>,
}

impl Reader for CountingReader<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Slice>> {
        self.rows.set(self.rows.get() + 1);
        self.inner.get(table, key)
    }

    fn scan(&self, table: Table, range: &KeyRange, reverse: bool, visit: RowVisitor<'_>) -> Result<()> {
        self.inner.scan(table, range, reverse, &mut |key, value| {
            self.rows.set(self.rows.get() + 1);
            visit(key, value)
        })
    }
}

fn zone() -> GeoZone {
    GeoZone::parse("z").unwrap()
}

async fn stocked(store: &EmbeddedStore) -> ProductId {
    let product = product("p").made_at(at(0)).build();
    let product_id = product.product_id.clone();
    store.put_product(product).await.unwrap();
    let set = SetOnHand {
        product_id: product_id.clone(),
        geo_zone: zone(),
        on_hand: 1_000_000,
        expected_on_hand: None,
        op: Uuid::from_u128(1),
        now: at(0),
    };
    store.set_on_hand(set).await.unwrap();
    product_id
}

/// Ids rise with time, as those of the shop do.
fn id(number: u128) -> ReservationId {
    ReservationId::new(Uuid::from_u128(number))
}

async fn reserve(store: &EmbeddedStore, number: u128, seconds: i64) -> ReservationId {
    let command = Reserve {
        reservation_id: id(number),
        geo_zone: zone(),
        lines: vec![Demand { product_id: ProductId::parse("p").unwrap(), quantity: 1 }],
        expires_at: at(seconds + 900),
        now: at(seconds),
        identity: Some(RequestIdentity {
            key: IdempotencyKey::restore(&format!("key-{number:020}")).unwrap(),
            fingerprint: Fingerprint([7; 32]),
            keep_until: at(seconds + 2 * DAY),
        }),
    };
    store.reserve(command).await.unwrap();
    id(number)
}

/// Purges until nothing is left to remove.
async fn purge(store: &EmbeddedStore, now: Timestamp) {
    // A pass that removes nothing may be one slice of several.
    for _ in 0..4 {
        while store.purge_expired(now, 500).await.unwrap() > 0 {}
    }
}

fn rows(store: &EmbeddedStore, table: Table) -> usize {
    let mut rows = 0;
    let whole = KeyRange::prefix(Vec::new());
    store
        .snapshot()
        .scan(table, &whole, false, &mut |_, _| {
            rows += 1;
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    rows
}

#[tokio::test]
async fn readiness_sees_a_writer_that_hangs_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(folder.path()));
    assert_eq!(store.ready().await, Ok(Readiness::default()));
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let hanging = Arc::clone(&store);
    let hung = tokio::spawn(async move {
        hanging
            .write(move |_| {
                wait.recv().unwrap();
                Ok(())
            })
            .await
    });
    let deadline = Instant::now() + Duration::from_mins(1);
    let refused = loop {
        if let Err(error) = store.ready().await {
            break error;
        }
        assert!(Instant::now() < deadline, "it is ready while no write ends");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(
        matches!(&refused, StoreError::NotServing(reason) if reason.starts_with("writes have waited for")),
        "{refused:?}"
    );
    release.send(()).unwrap();
    assert_eq!(hung.await.unwrap(), Ok(()));
    while store.ready().await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn every_series_of_the_engine_is_collected_and_moves() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let product_id = stocked(&store).await;
    for number in 0..10 {
        reserve(&store, number + 10, 1).await;
    }
    for _ in 0..3 {
        store.zone_stock(&product_id, &zone(), mw_store::Freshness::Latest, at(2)).await.unwrap();
    }
    let registry = prometheus::Registry::new();
    for collector in store.collectors() {
        registry.register(collector).unwrap();
    }
    let text = || prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    let value = |name: &str| -> f64 {
        let text = text();
        let line =
            text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    for counted in [
        "mw_embedded_commit_duration_seconds_count",
        "mw_embedded_fsync_duration_seconds_count",
        "mw_embedded_batch_commands_sum",
        "mw_embedded_cache_requests_total{cache=\"stock\",result=\"hit\"}",
        "mw_embedded_journals",
        "mw_embedded_memtable_bytes",
        "mw_embedded_stored_bytes",
        "mw_embedded_free_bytes",
        "mw_embedded_timer_overdue_seconds",
    ] {
        // The holds of this test ended long ago by the clock of the machine, or will; both are figures.
        assert!(value(counted) > 0.0 || counted.contains("overdue"), "{counted}: {}", text());
    }
    assert!(value("mw_embedded_batch_commands_sum") >= 12.0);
    for idle in ["mw_embedded_queue_commands", "mw_embedded_last_backup_timestamp_seconds"] {
        assert!(value(idle) <= 0.0, "{idle}: {}", text());
    }
    for name in
        ["level0_tables", "compactions_total", "compactions_running", "writer_busy_seconds", "journals"]
    {
        value(&format!("mw_embedded_{name}"));
    }
    let before = value("mw_embedded_cache_requests_total{cache=\"stock\",result=\"hit\"}");
    store.zone_stock(&product_id, &zone(), mw_store::Freshness::Latest, at(2)).await.unwrap();
    assert!(value("mw_embedded_cache_requests_total{cache=\"stock\",result=\"hit\"}") > before);
}

#[tokio::test]
async fn settled_movements_are_compacted_and_the_audit_stays_exact() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    stocked(&store).await;
    for number in 0..300 {
        let seconds = 10 + i64::try_from(number).unwrap();
        let reservation = reserve(&store, number + 10, seconds).await;
        match number % 3 {
            0 => drop(store.confirm(reservation, at(seconds + 1), None).await.unwrap()),
            1 => store.release(reservation, at(seconds + 1)).await.unwrap(),
            _ => {}
        }
    }
    assert_eq!(rows(&store, Table::Ledger), 1 + 300 + 200);
    purge(&store, at(6 * DAY)).await;
    assert_eq!(rows(&store, Table::Ledger), 501, "a movement stays for a week");

    let late = at(8 * DAY);
    purge(&store, late).await;
    assert_eq!(rows(&store, Table::Ledger), 1 + 100, "the sum, and the movements of open holds");
    let audit = store.audit(&|_| ()).await.unwrap();
    assert_eq!((audit.levels, audit.drifts), (1, Vec::new()));

    while store.expire_reservations(late, 500).await.unwrap() > 0 {}
    purge(&store, at(16 * DAY)).await;
    assert_eq!(rows(&store, Table::Ledger), 1);
    let audit = store.audit(&|_| ()).await.unwrap();
    assert_eq!((audit.levels, audit.movements, audit.drifts), (1, 1, Vec::new()));
}

#[tokio::test]
async fn an_abandoned_cart_is_found_by_its_id_however_many_its_owner_has() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let owner = Owner::User(UserId::parse("u").unwrap());
    let lifetime = CartLifetime { user_ms: DAY * 1_000, guest_ms: DAY * 1_000 };
    let carts = 200;
    for number in 0..carts {
        let line = SetLine {
            owner: owner.clone(),
            product_id: ProductId::parse("p").unwrap(),
            quantity: 1,
            new_cart_id: CartId::new(Uuid::from_u128(number)),
            expected_version: None,
            lifetime,
            now: at(0),
        };
        store.set_line(line).await.unwrap();
        let abandon =
            Abandon { owner: owner.clone(), expected_version: None, lifetime, now: at(1), identity: None };
        store.abandon(abandon).await.unwrap();
    }
    let snapshot = store.snapshot();
    let reader = CountingReader { inner: &snapshot, rows: Cell::new(0) };
    let mut plan = Plan::default();
    Passes::default().plan_carts(&reader, at(2 * DAY), 1_000, 1_000, &mut plan).unwrap();
    assert_eq!(plan.carts.len(), 200);
    assert!(reader.rows.get() <= 2 * 200, "{} rows read", reader.rows.get());

    let idle = store.idle_carts(at(10), at(10), PageRequest::first(50)).await.unwrap();
    assert_eq!(idle.items.len(), 50);
    purge(&store, at(2 * DAY)).await;
    assert_eq!(rows(&store, Table::CartActivity), 0);
}

/// Bytes of a table on disk once compaction is at rest.
fn disk_bytes(store: &EmbeddedStore, table: Table) -> u64 {
    store.tables.get(table).disk_space()
}

fn flush(store: &EmbeddedStore) {
    for table in [Table::Reservations, Table::IdempotencyKeys] {
        store.tables.get(table).rotate_memtable_and_wait().unwrap();
    }
}

#[tokio::test]
async fn disk_use_under_a_steady_load_is_flat_over_sixty_days() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    stocked(&store).await;
    let (per_day, mut early_bytes) = (20, 0);
    for day in 0..60_i64 {
        for number in 0..per_day {
            let unique = u128::try_from(day * per_day + number).unwrap() + 10;
            reserve(&store, unique, day * DAY + number).await;
        }
        let midnight = at((day + 1) * DAY);
        store.expire_reservations(midnight, 500).await.unwrap();
        purge(&store, midnight).await;
        flush(&store);
        if day == 10 {
            early_bytes = disk_bytes(&store, Table::IdempotencyKeys);
        }
    }
    // Reservations are kept for thirty days, keys for two.
    assert!(rows(&store, Table::Reservations) <= 32 * 20, "{}", rows(&store, Table::Reservations));
    assert!(rows(&store, Table::IdempotencyKeys) <= 4 * 20, "{}", rows(&store, Table::IdempotencyKeys));
    // Compaction runs on threads of its own: wait until it has caught up.
    let deadline = Instant::now() + Duration::from_mins(1);
    while disk_bytes(&store, Table::IdempotencyKeys) > 3 * early_bytes {
        let used = disk_bytes(&store, Table::IdempotencyKeys);
        assert!(Instant::now() < deadline, "{used} bytes, {early_bytes} on day 10");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A stock level of a million units with so many open holds of one unit, all of which end at the same moment.
fn held_stock(holds: u32, ends_at: Timestamp) -> Vec<Record> {
    let product = product("p").made_at(at(0)).build();
    let movement = |op, cause, delta| Movement { at: at(0), op, cause, delta, note: None };
    let mut ledger =
        vec![movement(Uuid::from_u128(1), Cause::Set, Delta { on_hand: 1_000_000, reserved: 0 })];
    let mut records = Vec::new();
    for number in 0..holds {
        let reservation_id = id(u128::from(number) + 10);
        ledger.push(movement(reservation_id.uuid(), Cause::Hold, Cause::Hold.delta(1)));
        records.push(Record::Reservation(Reservation {
            reservation_id,
            geo_zone: zone(),
            lines: vec![Demand { product_id: product.product_id.clone(), quantity: 1 }],
            status: ReservationStatus::Held,
            created_at: at(0),
            expires_at: ends_at,
        }));
    }
    let stock = ZoneStock {
        product_id: product.product_id.clone(),
        geo_zone: zone(),
        level: Level { on_hand: 1_000_000, reserved: u64::from(holds) },
        updated_at: at(0),
    };
    records.extend([Record::Stock { stock, ledger }, Record::Product(product)]);
    records
}

#[tokio::test]
async fn holds_that_end_together_are_not_paid_for_by_one_read_or_one_command() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let product_id = ProductId::parse("p").unwrap();
    let checkpoint = Checkpoint { import: "holds".into(), done: 1 };
    store.import(held_stock(3_000, at(900)), checkpoint).await.unwrap();
    let late = at(10_000);
    let zone = zone();
    let zone_stock = || store.zone_stock(&product_id, &zone, mw_store::Freshness::Latest, late);
    assert_eq!(zone_stock().await.unwrap().unwrap().level.reserved, 0, "no reader counts an ended hold");
    assert_eq!(rows(&store, Table::HoldTimers), 3_000);

    // Units are there: nothing needs to be expired.
    let command = |number, quantity| Reserve {
        reservation_id: id(number),
        geo_zone: zone.clone(),
        lines: vec![Demand { product_id: product_id.clone(), quantity }],
        expires_at: late.plus_seconds(60),
        now: late,
        identity: None,
    };
    store.reserve(command(100_000, 10_000)).await.unwrap();
    assert_eq!(rows(&store, Table::HoldTimers), 3_001);
    assert_eq!(zone_stock().await.unwrap().unwrap().level.reserved, 10_000);

    // Only units of ended holds are left: a command expires the holds that it needs and no more.
    let set = SetOnHand {
        product_id: product_id.clone(),
        geo_zone: zone.clone(),
        on_hand: 13_000,
        expected_on_hand: Some(1_000_000),
        op: Uuid::from_u128(2),
        now: late,
    };
    let level = store.set_on_hand(set.clone()).await.unwrap().level;
    assert_eq!((level.on_hand, level.reserved), (13_000, 10_000), "a reply does not count ended holds");
    store.reserve(command(100_001, 5)).await.unwrap();
    assert_eq!(rows(&store, Table::HoldTimers), 3_002 - 5);
    assert_eq!(zone_stock().await.unwrap().unwrap().level.reserved, 10_005);

    // More than a command may expire is refused until maintenance has done it.
    let refused = store.reserve(command(100_002, 2_500)).await;
    assert_eq!(refused.map(drop), Err(StoreError::Overloaded));
    assert_eq!(rows(&store, Table::HoldTimers), 3_002 - 5 - EXPIRED_BY_A_COMMAND);
    while store.expire_reservations(late, 500).await.unwrap() > 0 {}
    store.reserve(command(100_002, 2_500)).await.unwrap();
    let short = store.reserve(command(100_003, 1_000)).await;
    assert!(matches!(short, Err(StoreError::Refused(_))), "{short:?}");
    assert_eq!(zone_stock().await.unwrap().unwrap().level.reserved, 12_505);
    assert_eq!(store.audit(&|_| ()).await.unwrap().drifts, []);
}

const EXPIRED_BY_A_COMMAND: usize = 1_000;

#[tokio::test]
async fn a_report_of_a_part_of_a_day_reads_sums_of_hours() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let product_id = stocked(&store).await;
    let noon = at(0).date().midnight().plus_seconds(12 * 3_600);
    for number in 0..100_u32 {
        let now = noon.plus_seconds(i64::from(number));
        let order = PlaceOrder {
            order_id: OrderId::new(Uuid::from_u128(u128::from(number) + 1)),
            user_id: UserId::parse("u").unwrap(),
            geo_zone: zone(),
            basket: Basket::Lines(vec![Demand { product_id: product_id.clone(), quantity: 2 }]),
            expected_total: None,
            delivery_address: None,
            payment_method: None,
            pay_by: now.plus_seconds(900),
            now,
            identity: None,
        };
        let order_id = store.place_order(order).await.unwrap().value.order_id;
        let to = OrderStatus::Paid;
        let pay = SetStatus {
            order_id,
            of_user: None,
            to,
            note: None,
            expected_version: None,
            now,
            identity: None,
        };
        store.set_status(pay).await.unwrap();
    }
    let snapshot = store.snapshot();
    let reader = CountingReader { inner: &snapshot, rows: Cell::new(0) };
    let period = Period { from: noon.minus_seconds(1_800), to: noon.plus_seconds(3 * 3_600 + 1_800) };
    let report = crate::sales::report(&reader, store.hourly_from, None, period).unwrap();
    let [sales] = report.as_slice() else { panic!("{report:?}") };
    assert_eq!((sales.orders, sales.units), (100, 200));
    assert!(reader.rows.get() <= 4, "{} rows read", reader.rows.get());

    let part = Period { from: noon.plus_seconds(10), to: noon.plus_seconds(3_600 + 50) };
    let report = store.sales(Some(&zone()), part).await.unwrap();
    assert_eq!(
        report.iter().map(|sales| sales.orders).sum::<u64>(),
        90,
        "orders of an hour asked for in part"
    );
}

#[tokio::test]
async fn one_unreadable_row_is_one_error_and_not_the_end_of_all_sales() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let product_id = stocked(&store).await;
    for number in 0..10 {
        reserve(&store, number + 10, 0).await;
    }
    let damaged = [VERSION_OF_NO_RELEASE; 40];
    store.tables.get(Table::Reservations).insert(id(12).as_bytes().as_slice(), damaged.as_slice()).unwrap();
    store.tables.get(Table::IdempotencyKeys).insert("key-damaged", damaged.as_slice()).unwrap();
    let movement = keys::movement(&product_id, &zone(), at(1), &Uuid::from_u128(99), Cause::Hold);
    store.tables.get(Table::Ledger).insert(movement, damaged.as_slice()).unwrap();
    assert!(store.reservation(id(12), at(1)).await.is_err(), "its own reader gets the error");

    let late = at(10_000);
    assert_eq!(store.expire_reservations(late, 500).await, Ok(10));
    assert_eq!(store.expire_reservations(late, 500).await, Ok(0));
    let set = SetOnHand {
        product_id: product_id.clone(),
        geo_zone: zone(),
        on_hand: 5,
        expected_on_hand: None,
        op: Uuid::from_u128(2),
        now: late,
    };
    let level = store.set_on_hand(set).await.unwrap().level;
    assert_eq!((level.on_hand, level.reserved), (5, 1), "the units of the damaged hold stay reserved");
    let command = Reserve {
        reservation_id: id(100),
        geo_zone: zone(),
        lines: vec![Demand { product_id, quantity: 4 }],
        expires_at: late.plus_seconds(60),
        now: late,
        identity: None,
    };
    store.reserve(command).await.unwrap();
    purge(&store, at(60 * DAY)).await;
    assert_eq!(rows(&store, Table::Reservations), 2, "the damaged row and the open hold");
    assert_eq!(rows(&store, Table::IdempotencyKeys), 1);
    drop(store);
    let store = open(folder.path());
    assert_eq!(store.expire_reservations(at(60 * DAY), 500).await, Ok(1), "it opens and goes on");
}

const VERSION_OF_NO_RELEASE: u8 = 0xEE;
