//! What concurrent readers see: stock levels within their bounds, acknowledged changes, and no part of a commit.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use mw_domain::carts::CartLifetime;
use mw_domain::products::ProductPatch;
use mw_domain::{
    CartId, Currency, Demand, GeoZone, MergeMode, Money, Owner, ProductId, ReservationId, SessionId,
    Timestamp, UserId,
};
use mw_store::carts::{Carts, Merge, SetLine};
use mw_store::products::{CategoryQuery, ImportProduct, Products};
use mw_store::stock::{Reserve, SetOnHand, Stock};
use mw_store::{Freshness, Maintenance, PageRequest, StoreError};
use mw_store_embedded::{EmbeddedStore, Options};
use mw_testkit::builders::product;
use uuid::Uuid;

const LIFETIME: CartLifetime = CartLifetime { user_ms: 1_000_000_000, guest_ms: 1_000_000_000 };

fn open(folder: &std::path::Path) -> Arc<EmbeddedStore> {
    let options = Options { min_free_bytes: 0, ..Options::new(folder, Currency::parse("RUB").unwrap()) };
    Arc::new(EmbeddedStore::open(options).unwrap())
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000 + ms)
}

async fn stock_up(store: &EmbeddedStore, product_id: &ProductId, zone: &GeoZone, on_hand: u64) {
    let product = product(product_id.as_str()).made_at(at(0)).build();
    let stock = vec![(zone.clone(), on_hand)];
    let command = ImportProduct { product, stock, op: Uuid::from_u128(1), now: at(0), identity: None };
    store.import_product(command).await.unwrap();
}

/// A store with one product, in stock in one zone.
async fn open_with(folder: &std::path::Path, on_hand: u64) -> (Arc<EmbeddedStore>, ProductId, GeoZone) {
    let store = open(folder);
    let (product_id, zone) = (ProductId::parse("p").unwrap(), GeoZone::parse("z").unwrap());
    stock_up(&store, &product_id, &zone, on_hand).await;
    (store, product_id, zone)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reserved_never_exceeds_on_hand_for_any_reader() {
    let folder = tempfile::tempdir().unwrap();
    let (store, product_id, zone) = open_with(folder.path(), 50).await;

    let done = Arc::new(AtomicBool::new(false));
    let (reader, stop, id, geo_zone) =
        (Arc::clone(&store), Arc::clone(&done), product_id.clone(), zone.clone());
    let watcher = tokio::spawn(async move {
        let mut reads = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            let now = at(i64::try_from(reads % 3_000).unwrap());
            let stock = reader.zone_stock(&id, &geo_zone, Freshness::Latest, now).await.unwrap().unwrap();
            assert!(stock.level.reserved <= stock.level.on_hand && stock.level.on_hand <= 50, "{stock:?}");
            reads += 1;
            tokio::task::yield_now().await;
        }
        reads
    });

    let mut buyers = tokio::task::JoinSet::new();
    for buyer in 0..8_u128 {
        let (store, product_id, zone) = (Arc::clone(&store), product_id.clone(), zone.clone());
        buyers.spawn(async move {
            for step in 0..60_u128 {
                let reservation_id = ReservationId::new(Uuid::from_u128(buyer << 32 | step));
                let now = at(i64::try_from(step * 40).unwrap());
                let command = Reserve {
                    reservation_id,
                    geo_zone: zone.clone(),
                    lines: vec![Demand {
                        product_id: product_id.clone(),
                        quantity: 1 + u32::try_from(step % 3).unwrap(),
                    }],
                    expires_at: now.plus_seconds(1),
                    now,
                    identity: None,
                };
                if store.reserve(command).await.is_ok() && step % 2 == 0 {
                    store.release(reservation_id, now).await.unwrap();
                }
            }
        });
    }
    buyers.join_all().await;
    done.store(true, Ordering::Relaxed);
    assert!(watcher.await.unwrap() > 0);
    assert_eq!(store.audit(&|_| ()).await.unwrap().drifts, []);
}

/// Changes of one product and of its stock, each acknowledged before the next begins.
const CHANGES: i64 = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_later_reader_sees_an_acknowledged_change() {
    let folder = tempfile::tempdir().unwrap();
    let (store, product_id, zone) = open_with(folder.path(), 0).await;
    let category = store.product(&product_id, Freshness::Latest).await.unwrap().unwrap().category.clone();

    let acknowledged = Arc::new(AtomicI64::new(0));
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (store, acknowledged, product_id, zone) =
            (Arc::clone(&store), Arc::clone(&acknowledged), product_id.clone(), zone.clone());
        let query = CategoryQuery {
            category: category.clone(),
            min_price: None,
            max_price: None,
            descending: false,
            geo_zone: Some(zone.clone()),
            in_stock: false,
        };
        readers.spawn(async move {
            let mut seen = 0;
            while seen < CHANGES {
                let least = seen.max(acknowledged.load(Ordering::Acquire));
                let first = PageRequest { after: None, limit: 10 };
                let page = store.category(&query, Freshness::StaleOk, at(0), first).await.unwrap();
                let [listed] = page.items.as_slice() else { panic!("one product: {page:?}") };
                let units = i64::try_from(listed.available.unwrap()).unwrap();
                assert!(units >= least && units <= CHANGES, "{units} units after {least} were acknowledged");
                if least > 0 {
                    assert!(
                        listed.product.price.as_minor() >= least,
                        "{listed:?} after {least} was acknowledged"
                    );
                }
                let stock =
                    store.zone_stock(&product_id, &zone, Freshness::Latest, at(0)).await.unwrap().unwrap();
                seen = i64::try_from(stock.level.on_hand).unwrap();
                assert!(seen >= units, "{seen} units after {units} were seen");
            }
        });
    }
    for change in 1..=CHANGES {
        let patch = ProductPatch { price: Some(Money::from_minor(change)), ..ProductPatch::default() };
        store.patch_product(&product_id, patch, at(0)).await.unwrap();
        stock_up_to(&store, &product_id, &zone, change).await;
        acknowledged.store(change, Ordering::Release);
    }
    while let Some(read) = readers.join_next().await {
        read.unwrap();
    }
}

async fn stock_up_to(store: &EmbeddedStore, product_id: &ProductId, zone: &GeoZone, units: i64) {
    let command = SetOnHand {
        product_id: product_id.clone(),
        geo_zone: zone.clone(),
        on_hand: units.cast_unsigned(),
        expected_on_hand: None,
        op: Uuid::from_u128(u128::from(units.cast_unsigned())),
        now: at(0),
    };
    store.set_on_hand(command).await.unwrap();
}

const PAIRS: usize = 300;
const LINES: usize = 5;

/// A guest and the user the guest becomes.
fn pair(number: usize) -> (UserId, SessionId) {
    (UserId::parse(&format!("u{number}")).unwrap(), SessionId::parse(&format!("s{number}")).unwrap())
}

async fn fill(store: Arc<EmbeddedStore>, number: usize) {
    for line in 0..LINES {
        let command = SetLine {
            owner: Owner::Session(pair(number).1),
            product_id: ProductId::parse(&format!("p{line}")).unwrap(),
            quantity: 1,
            new_cart_id: CartId::new(Uuid::from_u128(number as u128)),
            expected_version: None,
            lifetime: LIFETIME,
            now: at(0),
        };
        store.set_line(command).await.unwrap();
    }
}

async fn merge(store: Arc<EmbeddedStore>, number: usize) {
    let (user_id, session_id) = pair(number);
    let command = Merge {
        user_id,
        session_id,
        mode: MergeMode::Sum,
        new_cart_id: CartId::new(Uuid::from_u128((PAIRS + number) as u128)),
        expected_version: None,
        lifetime: LIFETIME,
        now: at(1),
        identity: None,
    };
    store.merge(command).await.unwrap();
}

/// Reads all pairs in a loop until every one is merged.
fn watch(store: &EmbeddedStore, runtime: &tokio::runtime::Handle) {
    let lines = |owner: &Owner| {
        let cart = runtime.block_on(store.active_cart(owner, at(1)));
        cart.unwrap().map_or(0, |cart| cart.lines.len())
    };
    let mut waiting: Vec<usize> = (0..PAIRS).collect();
    while !waiting.is_empty() {
        waiting.retain(|number| {
            let (user_id, session_id) = pair(*number);
            // The user's cart first: lines in it must be gone from the guest's cart by the second read.
            let user_lines = lines(&Owner::User(user_id));
            let guest_lines = lines(&Owner::Session(session_id));
            assert!(user_lines == 0 || user_lines == LINES, "a part of the lines: {user_lines}");
            assert!(
                user_lines == 0 || guest_lines == 0,
                "{user_lines} lines of the user, {guest_lines} of the guest"
            );
            user_lines == 0
        });
    }
}

/// Many merges are committed as one batch, so that a reader that can see a part of a commit does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_never_shows_a_line_in_both_carts() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    (0..PAIRS)
        .map(|number| fill(Arc::clone(&store), number))
        .collect::<tokio::task::JoinSet<_>>()
        .join_all()
        .await;
    let (reader, runtime) = (Arc::clone(&store), tokio::runtime::Handle::current());
    let watcher = tokio::task::spawn_blocking(move || watch(&reader, &runtime));
    (0..PAIRS)
        .map(|number| merge(Arc::clone(&store), number))
        .collect::<tokio::task::JoinSet<_>>()
        .join_all()
        .await;
    watcher.await.unwrap();
}

#[tokio::test]
async fn with_too_little_free_space_writes_are_refused_and_reads_continue() {
    let folder = tempfile::tempdir().unwrap();
    let zone = GeoZone::parse("z").unwrap();
    let product_id = ProductId::parse("p").unwrap();
    let store = open(folder.path());
    stock_up(&store, &product_id, &zone, 5).await;
    drop(store);

    let options =
        Options { min_free_bytes: u64::MAX, ..Options::new(folder.path(), Currency::parse("RUB").unwrap()) };
    let store = EmbeddedStore::open(options).unwrap();
    assert!(matches!(
        store.delete_product(&product_id, Timestamp::EPOCH).await,
        Err(StoreError::Unavailable(_))
    ));
    assert!(matches!(store.ready().await, Err(StoreError::NotServing(_))));
    assert!(store.product(&product_id, Freshness::Latest).await.unwrap().is_some());
}

#[tokio::test]
async fn a_closed_store_refuses_writes() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.close();
    let refused = store.delete_product(&ProductId::parse("p").unwrap(), Timestamp::EPOCH).await;
    assert_eq!(refused, Err(StoreError::Unavailable("accept write: the store is closed".into())));
    assert!(matches!(store.ready().await, Err(StoreError::NotServing(_))));
}
