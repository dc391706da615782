//! The catalogue on a real cluster: what only several processes and partitions of partitions can get wrong.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in the functions that tests share")]

use std::sync::Arc;
use std::time::Duration;

use mw_domain::bucket::Plan;
use mw_domain::{Attributes, Category, Money, Product, ProductId, Timestamp};
use mw_store::products::CategoryQuery;
use mw_store::{Freshness, PageRequest, Products};
use mw_store_cassandra::policy::SHOWCASE_LAG;
use mw_store_cassandra::{CassandraStore, Options, Table};
use mw_testkit::cassandra::{Lease, fresh};

const PRODUCTS: usize = 12;
const CHANGES: usize = 20;

fn at(seconds: i64) -> Timestamp {
    Timestamp::EPOCH.plus_seconds(seconds)
}

fn product_id(name: &str) -> ProductId {
    ProductId::parse(name).unwrap()
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

/// What the showcase shows of a product.
async fn shown(store: &CassandraStore, name: &str) -> Option<i64> {
    let card = store.product(&product_id(name), Freshness::Showcase).await.unwrap();
    card.map(|card| card.price.as_minor())
}

/// Reads of one copy may lag by what they are allowed to.
async fn shows(store: &CassandraStore, name: &str, expected: Option<i64>) {
    let awaited = async {
        while shown(store, name).await != expected {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SHOWCASE_LAG, awaited).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_is_shown_again_for_a_while_and_own_changes_at_once() {
    let lease = Lease::empty().await;
    let mut options = Options { keep_cards: SHOWCASE_LAG, ..lease.options().clone() };
    options.policy.set(Table::ProductById.name(), "write", "LOCAL_QUORUM").unwrap();
    let open = async |options: &Options| CassandraStore::open(options.clone()).await.unwrap();
    let (writer, onlooker) = (open(&options).await, open(&options).await);
    let reader = open(&Options { keep_cards: Duration::ZERO, ..options.clone() }).await;
    options.policy.set(Table::ProductById.name(), "showcase", "LOCAL_QUORUM").unwrap();
    let exact = open(&options).await;

    writer.put_product(card("shown", "window", 100)).await.unwrap();
    assert_eq!(shown(&writer, "shown").await, Some(100));
    shows(&onlooker, "shown", Some(100)).await;
    shows(&reader, "shown", Some(100)).await;
    assert_eq!(shown(&exact, "shown").await, Some(100));

    writer.put_product(card("shown", "window", 200)).await.unwrap();
    assert_eq!(shown(&writer, "shown").await, Some(200));
    assert_eq!(shown(&onlooker, "shown").await, Some(100));
    let fresh = onlooker.product(&product_id("shown"), Freshness::Full).await.unwrap().unwrap();
    assert_eq!(fresh.price.as_minor(), 200);
    assert_eq!(shown(&exact, "shown").await, Some(200));
    shows(&reader, "shown", Some(200)).await;

    writer.delete_product(&product_id("shown")).await.unwrap();
    assert_eq!(shown(&writer, "shown").await, None);
    assert_eq!(shown(&onlooker, "shown").await, Some(100));
    assert_eq!(onlooker.product(&product_id("shown"), Freshness::Full).await.unwrap(), None);
}
