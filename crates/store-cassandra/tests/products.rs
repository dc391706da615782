//! The catalogue on a real cluster: what only several processes and partitions of partitions can get wrong.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in the functions that tests share")]

use std::sync::Arc;
use std::time::Duration;

use mw_codec::Writer;
use mw_domain::bucket::Plan;
use mw_domain::{Attributes, Category, GeoZone, Money, Product, ProductId, Timestamp};
use mw_store::products::{CategoryQuery, ImportProduct};
use mw_store::stock::SetOnHand;
use mw_store::{Freshness, PageRequest, Products, Stock};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Table};
use mw_testkit::cassandra::{Lease, fresh};
use scylla::client::session::Session;
use scylla::serialize::row::SerializeRow;
use uuid::Uuid;

/// Longer than it takes to call a process dead and to finish what it left.
const RECOVERY_MAX: Duration = Duration::from_secs(30);
const PRODUCTS: usize = 12;
const CHANGES: usize = 20;

/// Keyspaces that this test has alone, and a way to write to them behind the store's back.
struct Shop {
    lease: Lease,
    session: Session,
}

impl Shop {
    async fn new() -> Self {
        let lease = Lease::empty().await;
        let session = connect(lease.options()).await.unwrap();
        Self { lease, session }
    }

    /// Runs a statement; `{}` in it stands for the table.
    async fn run(&self, table: Table, statement: &str, values: impl SerializeRow) {
        let name = format!("{}.{}", table.class().keyspace(&self.lease.options().keyspace), table.name());
        self.session.query_unpaged(statement.replace("{}", &name), values).await.unwrap();
    }

    /// A process that died in the middle of things.
    async fn leave(&self, intents: Vec<(&str, Vec<u8>)>) {
        let process = Uuid::new_v4();
        let intent = "INSERT INTO {} (process, slot, op_id, kind, payload) VALUES (?, 0, ?, ?, ?)";
        for (kind, payload) in intents {
            self.run(Table::Intents, intent, (process, Uuid::new_v4(), kind, payload)).await;
        }
        let announce =
            "INSERT INTO {} (part, process, beat, oldest_slot, newest_slot) VALUES (0, ?, 1, 0, 0)";
        self.run(Table::Processes, announce, (process,)).await;
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::EPOCH.plus_seconds(seconds)
}

fn product_id(name: &str) -> ProductId {
    ProductId::parse(name).unwrap()
}

fn zone(name: &str) -> GeoZone {
    GeoZone::parse(name).unwrap()
}

fn card(name: &str, category: &str, minor: i64) -> Product {
    Product {
        product_id: product_id(name),
        name: name.to_owned(),
        category: Category::parse(category).unwrap(),
        price: Money::from_minor(minor),
        description: String::new(),
        attributes: Attributes::default(),
        created_at: at(0),
        updated_at: at(0),
    }
}

async fn listed(store: &CassandraStore, category: &str, descending: bool) -> Vec<(i64, String)> {
    let query = CategoryQuery {
        category: Category::parse(category).unwrap(),
        min_price: None,
        max_price: None,
        descending,
        geo_zone: None,
        in_stock: false,
    };
    let mut found = Vec::new();
    let mut request = PageRequest::first(5);
    loop {
        let page = store.category(&query, Freshness::Full, at(0), request.clone()).await.unwrap();
        let place = |product: &Product| (product.price.as_minor(), product.product_id.to_string());
        found.extend(page.items.into_iter().map(|item| place(&item.product)));
        if page.next.is_none() {
            return found;
        }
        request.after = page.next;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_category_that_is_cut_finer_is_listed_by_price() {
    let (store, _lease) = fresh().await;
    let mut expected = Vec::new();
    for (round, cut) in [1, 4, 64, 2].into_iter().enumerate() {
        let now = at(i64::try_from(round).unwrap() * 1_000);
        let plan = Plan { starts_at: now.plus_seconds(100), cut };
        store.set_plan(Table::ProductsByCategory, "cut", plan, now).await.unwrap();
        for number in 0..PRODUCTS {
            let minor = i64::try_from(number * 1_700 + round * 13).unwrap();
            let name = format!("cut-{round}-{number}");
            let product = Product { updated_at: now.plus_seconds(200), ..card(&name, "cut", minor) };
            store.put_product(product).await.unwrap();
            expected.push((minor, name));
        }
    }
    expected.sort();
    assert_eq!(listed(&store, "cut", false).await, expected);
    expected.reverse();
    assert_eq!(listed(&store, "cut", true).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_that_two_processes_change_stands_in_one_place() {
    let lease = Lease::empty().await;
    let stores = [lease.open().await, lease.open().await];
    let mut changes = tokio::task::JoinSet::new();
    for number in 0..CHANGES {
        let store = Arc::clone(&stores[number % 2]);
        let minor = i64::try_from(number * 3_001).unwrap();
        changes.spawn(async move { store.put_product(card("fought", "race", minor)).await.unwrap() });
    }
    let done = changes.join_all().await;
    assert_eq!(done.iter().filter(|put| put.created).count(), 1);
    let stands = stores[0].product(&product_id("fought"), Freshness::Full).await.unwrap().unwrap();
    let expected = [(stands.price.as_minor(), "fought".to_owned())];
    for store in &stores {
        assert_eq!(listed(store, "race", false).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_process_left_is_finished() {
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    // A card that was changed and not listed, an import with one zone done, and one of which nothing was done.
    store.put_product(card("moved", "left", 100)).await.unwrap();
    let moved = "UPDATE {} SET price = 50000, band = 192, rev = 2 WHERE product_id = 'moved'";
    shop.run(Table::ProductById, moved, ()).await;
    shop.run(Table::CategoryBands, "INSERT INTO {} (category, band) VALUES ('left', 192)", ()).await;
    let mut change = Writer::new(64);
    change.text("moved");
    change.byte(1);
    change.text("left");
    change.signed(0);
    change.signed(100);

    store.put_product(card("half", "left", 200)).await.unwrap();
    let op = Uuid::new_v4();
    let half = ImportProduct {
        product: card("half", "left", 300),
        stock: vec![(zone("north"), 3), (zone("south"), 5)],
        op,
        now: at(1),
        once: None,
    };
    let set = SetOnHand {
        product_id: product_id("half"),
        geo_zone: zone("north"),
        on_hand: 3,
        expected_on_hand: None,
        op,
        now: at(1),
    };
    store.set_on_hand(set).await.unwrap();
    let never = ImportProduct { product: card("never", "left", 400), op: Uuid::new_v4(), ..half.clone() };
    // What nobody can read keeps nothing else waiting.
    let nonsense = vec![0xff; 3];
    shop.leave(vec![("product", nonsense.clone())]).await;
    shop.leave(vec![
        ("import", nonsense),
        ("product", change.done()),
        ("import", payload(&never)),
        ("import", payload(&half)),
    ])
    .await;

    let expected = [(300, "half".to_owned()), (50_000, "moved".to_owned())];
    let finished = async {
        while listed(&store, "left", false).await != expected {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(RECOVERY_MAX, finished).await.unwrap();
    let south = store.zone_stock(&product_id("half"), &zone("south"), Freshness::Full, at(2)).await.unwrap();
    assert_eq!(south.unwrap().level.on_hand, 5);
    assert_eq!(store.product(&product_id("never"), Freshness::Full).await.unwrap(), None);
}

fn payload(import: &ImportProduct) -> Vec<u8> {
    let mut writer = Writer::new(128);
    mw_codec::products::write(&mut writer, &import.product);
    writer.unsigned(import.stock.len() as u64);
    for (zone, on_hand) in &import.stock {
        writer.text(zone.as_str());
        writer.unsigned(*on_hand);
    }
    writer.bytes(import.op.as_bytes());
    writer.time(import.now);
    writer.byte(0);
    writer.done()
}
