//! Lists of orders on a real cluster: what they cost its nodes.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod reads;

use mw_domain::bucket::Plan;
use mw_domain::{EventKind, Order, OrderEvent, OrderId, OrderLine, OrderStatus, Period, Timestamp};
use mw_store::records::{Checkpoint, Record, Records};
use mw_store::{Orders, PageRequest};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Table};
use mw_testkit::builders::{money, product_id, time, user_id, zone};
use mw_testkit::cassandra::{Lease, fresh};
use uuid::Uuid;

use reads::Reads;

const CUSTOMER: &str = "regular";
const MONTHS: i32 = 36;
const A_MONTH: i64 = 10;
/// The page that a shopper sees first.
const LAST: usize = 20;
/// Partitions that it may cost.
const PARTITIONS_MAX: u64 = 4;
/// A read that is slow is sent to a second node, and counts twice: the fewest of so many looks are what a page needs.
const LOOKS: usize = 3;

/// A number of days apart, so that months of every length have as many.
fn created_at(number: i64) -> Timestamp {
    let (months, of_month) = (i32::try_from(number / A_MONTH).unwrap(), number % A_MONTH);
    let month = format!("{}-{:02}-01", 2023 + months / 12, months % 12 + 1);
    time(&month).plus_seconds(of_month * 2 * 86_400 + number)
}

fn order(number: i64) -> Order {
    let at = created_at(number);
    let line =
        OrderLine { product_id: product_id("p"), name: "P".to_owned(), quantity: 1, price: money("990.00") };
    Order {
        order_id: OrderId::new(Uuid::from_u128(u128::try_from(number + 1).unwrap())),
        user_id: user_id(CUSTOMER),
        status: OrderStatus::Delivered,
        geo_zone: zone("msk"),
        total: line.price,
        lines: vec![line],
        delivery_address: None,
        payment_method: None,
        created_at: at,
        updated_at: at,
        version: 1,
        pay_by: at.plus_seconds(1_800),
    }
}

async fn take_in(store: &CassandraStore, orders: &[Order]) {
    let records = orders.iter().map(|order| {
        let (at, to) = (order.created_at, order.status);
        let events = vec![OrderEvent { at, kind: EventKind::Created, from: None, to, note: None }];
        Record::Order { order: order.clone(), events }
    });
    let checkpoint = Checkpoint { import: "orders".to_owned(), done: orders.len() as u64 };
    store.import(records.collect(), checkpoint).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_twenty_orders_of_three_years_are_read_from_four_partitions() {
    let (store, lease) = fresh().await;
    let orders: Vec<Order> = (0..i64::from(MONTHS) * A_MONTH).map(order).collect();
    take_in(&store, &orders).await;
    let reads = Reads::of(lease.options()).await;
    let (customer, page) = (user_id(CUSTOMER), PageRequest::first(LAST));

    // After every order of the last month: the page begins early in a month and late in one.
    for so_far in orders.len() - usize::try_from(A_MONTH).unwrap()..orders.len() {
        let newest = &orders[so_far];
        let period = Period { from: Timestamp::EPOCH, to: newest.created_at.plus_millis(1) };
        let mut fewest = u64::MAX;
        for _ in 0..LOOKS {
            let before = reads.count().await;
            let found = store.customer_orders(&customer, period, page.clone()).await.unwrap();
            fewest = fewest.min(reads.count().await - before);
            let expected: Vec<&Order> = orders[..=so_far].iter().rev().take(LAST).collect();
            assert_eq!(found.items.iter().collect::<Vec<_>>(), expected);
            assert!(found.next.is_some());
        }
        eprintln!("up to {}: {fewest} partitions", newest.created_at);
        assert!(fewest > 1, "the reads of the page are not counted");
        assert!(fewest <= PARTITIONS_MAX, "{fewest} partitions for the last {LAST} orders");
    }
}

/// Which buckets of the customer have orders in them.
async fn buckets(lease: &Lease) -> Vec<String> {
    let session = connect(lease.options()).await.unwrap();
    let keyspace = Table::Buckets.class().keyspace(&lease.options().keyspace);
    let text = format!("SELECT bucket FROM {keyspace}.buckets WHERE table_name = ? AND key = ?");
    let table = Table::OrdersByCustomer.name();
    let result = session.query_unpaged(text, (table, CUSTOMER)).await.unwrap().into_rows_result().unwrap();
    result.rows::<(String,)>().unwrap().map(|row| row.unwrap().0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_a_customer_are_listed_across_a_change_of_plan() {
    let (store, lease) = fresh().await;
    // In the middle of the second month a month is cut into five, and in the third into two, which is said once more later.
    let (now, finer, coarser) = (time("2022-12-01"), time("2023-02-08"), time("2023-03-10"));
    for (starts_at, cut) in [(finer, 5), (coarser, 2), (time("2023-04-06"), 2)] {
        let plan = Plan { starts_at, cut };
        store.set_plan(Table::OrdersByCustomer, CUSTOMER, plan, now).await.unwrap();
    }
    let orders: Vec<Order> = (0..4 * A_MONTH).map(order).collect();
    take_in(&store, &orders).await;
    let expected = [
        "2023-04/1of2",
        "2023-04/0of2@2023-04-06T00:00:00.000Z",
        "2023-04/0of2",
        "2023-03/1of2",
        "2023-03/0of2@2023-03-10T00:00:00.000Z",
        "2023-03/1of5",
        "2023-03/0of5",
        "2023-02/2of5",
        "2023-02/1of5",
        "2023-02",
        "2023-01",
    ];
    assert_eq!(buckets(&lease).await, expected);

    // Another process read the plans when it began.
    let period = Period { from: time("2023-01-02"), to: time("2023-04-18") };
    let expected: Vec<OrderId> = orders[1..39].iter().rev().map(|order| order.order_id).collect();
    for store in [store, lease.open().await] {
        for limit in [3, 7, 100] {
            let mut found = Vec::new();
            let mut request = PageRequest::first(limit);
            loop {
                let page = store.customer_orders(&user_id(CUSTOMER), period, request.clone()).await.unwrap();
                found.extend(page.items.iter().map(|order| order.order_id));
                if page.next.is_none() {
                    break;
                }
                request.after = page.next;
            }
            assert_eq!(found, expected, "{limit} a page");
        }
    }
}
