//! Products on a real cluster: bucket plans of categories, concurrent writers in two processes, the product cache.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in the functions that tests share")]

use std::sync::Arc;
use std::time::Duration;

use mw_domain::buckets::Plan;
use mw_domain::{Attributes, Category, Money, Product, ProductId, Timestamp};
use mw_store::partitions::MadeBy;
use mw_store::products::CategoryQuery;
use mw_store::{Freshness, PageRequest, Products};
use mw_store_cassandra::policy::MAX_STALENESS;
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

fn product(name: &str, category: &str, minor: i64) -> Product {
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
        let page = store.category(&query, Freshness::Latest, at(0), request.clone()).await.unwrap();
        let price_and_id = |product: &Product| (product.price.as_minor(), product.product_id.to_string());
        found.extend(page.items.into_iter().map(|item| price_and_id(&item.product)));
        if page.next.is_none() {
            return found;
        }
        request.after = page.next;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_category_with_changing_bucket_counts_is_listed_by_price() {
    let (store, _lease) = fresh().await;
    let mut expected = Vec::new();
    for (round, buckets) in [1, 4, 64, 2].into_iter().enumerate() {
        let now = at(i64::try_from(round).unwrap() * 1_000);
        let plan = Plan { starts_at: now.plus_seconds(100), buckets };
        store.set_plan(Table::ProductsByCategory, "divided", plan, MadeBy::Operator, now).await.unwrap();
        for number in 0..PRODUCTS {
            let minor = i64::try_from(number * 1_700 + round * 13).unwrap();
            let name = format!("p-{round}-{number}");
            let product = Product { updated_at: now.plus_seconds(200), ..product(&name, "divided", minor) };
            store.put_product(product).await.unwrap();
            expected.push((minor, name));
        }
    }
    expected.sort();
    assert_eq!(listed(&store, "divided", false).await, expected);
    expected.reverse();
    assert_eq!(listed(&store, "divided", true).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_product_that_two_processes_change_is_listed_once() {
    let lease = Lease::empty().await;
    let stores = [lease.open().await, lease.open().await];
    let mut changes = tokio::task::JoinSet::new();
    for number in 0..CHANGES {
        let store = Arc::clone(&stores[number % 2]);
        let minor = i64::try_from(number * 3_001).unwrap();
        changes.spawn(async move { store.put_product(product("contended", "race", minor)).await.unwrap() });
    }
    let done = changes.join_all().await;
    assert_eq!(done.iter().filter(|put| put.created).count(), 1);
    let latest = stores[0].product(&product_id("contended"), Freshness::Latest).await.unwrap().unwrap();
    let expected = [(latest.price.as_minor(), "contended".to_owned())];
    for store in &stores {
        assert_eq!(listed(store, "race", false).await, expected);
    }
}

/// The price of a product by a stale read.
async fn stale_price(store: &CassandraStore, name: &str) -> Option<i64> {
    let product = store.product(&product_id(name), Freshness::StaleOk).await.unwrap();
    product.map(|product| product.price.as_minor())
}

/// Waits for the price: a stale read may lag by the maximum staleness.
async fn await_stale_price(store: &CassandraStore, name: &str, expected: Option<i64>) {
    let reached = async {
        while stale_price(store, name).await != expected {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(MAX_STALENESS, reached).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cached_product_is_served_until_its_ttl_and_own_changes_at_once() {
    let lease = Lease::empty().await;
    let mut options = Options { product_cache_ttl: MAX_STALENESS, ..lease.options().clone() };
    options.policy.set(Table::ProductById.name(), "write", "LOCAL_QUORUM").unwrap();
    let open = async |options: &Options| CassandraStore::open(options.clone()).await.unwrap();
    let (writer, other_process) = (open(&options).await, open(&options).await);
    let reader = open(&Options { product_cache_ttl: Duration::ZERO, ..options.clone() }).await;
    options.policy.set(Table::ProductById.name(), "stale_read", "LOCAL_QUORUM").unwrap();
    let exact = open(&options).await;

    writer.put_product(product("cached", "cache", 100)).await.unwrap();
    assert_eq!(stale_price(&writer, "cached").await, Some(100));
    await_stale_price(&other_process, "cached", Some(100)).await;
    await_stale_price(&reader, "cached", Some(100)).await;
    assert_eq!(stale_price(&exact, "cached").await, Some(100));

    writer.put_product(product("cached", "cache", 200)).await.unwrap();
    assert_eq!(stale_price(&writer, "cached").await, Some(200));
    assert_eq!(stale_price(&other_process, "cached").await, Some(100));
    let fresh = other_process.product(&product_id("cached"), Freshness::Latest).await.unwrap().unwrap();
    assert_eq!(fresh.price.as_minor(), 200);
    assert_eq!(stale_price(&exact, "cached").await, Some(200));
    await_stale_price(&reader, "cached", Some(200)).await;

    writer.delete_product(&product_id("cached"), Timestamp::EPOCH).await.unwrap();
    assert_eq!(stale_price(&writer, "cached").await, None);
    assert_eq!(stale_price(&other_process, "cached").await, Some(100));
    assert_eq!(other_process.product(&product_id("cached"), Freshness::Latest).await.unwrap(), None);
}
