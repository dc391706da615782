//! Lists of orders on a real cluster: the partitions that a page reads, and bucket plans that change.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod partition_reads;

use mw_domain::buckets::Plan;
use mw_domain::{EventKind, Order, OrderEvent, OrderId, OrderLine, OrderStatus, Period, Timestamp};
use mw_store::export::{Checkpoint, ExportImport, Record};
use mw_store::partitions::MadeBy;
use mw_store::{Orders, PageRequest};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Table};
use mw_testkit::builders::{money, product_id, time, user_id, zone};
use mw_testkit::cassandra::{Lease, fresh};
use uuid::Uuid;

use partition_reads::PartitionReads;

const USER: &str = "regular";
const MONTHS: i32 = 36;
const A_MONTH: i64 = 10;
/// The first page of a user's orders.
const LAST: usize = 20;
/// Partitions that the page may read.
const PARTITIONS_MAX: u64 = 4;
/// Speculative execution counts a slow read twice, so the minimum of several reads is what a page needs.
const READS: usize = 3;

/// Two days apart, so that every month has the same number of orders.
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
        // As three processes make ids: the lowest bits are the lane.
        order_id: OrderId::new(Uuid::from_u128(
            0x0190 << 112 | 0x7 << 76 | 0x8 << 60 | u128::try_from((number << 16) | (number % 3)).unwrap(),
        )),
        user_id: user_id(USER),
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

async fn import_orders(store: &CassandraStore, orders: &[Order]) {
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
    import_orders(&store, &orders).await;
    let reads = PartitionReads::of(lease.options()).await;
    let (user, page) = (user_id(USER), PageRequest::first(LAST));

    // After every order of the last month: the page begins early in a month and late in one.
    for so_far in orders.len() - usize::try_from(A_MONTH).unwrap()..orders.len() {
        let newest = &orders[so_far];
        let period = Period { from: Timestamp::EPOCH, to: newest.created_at.plus_millis(1) };
        let mut fewest = u64::MAX;
        for _ in 0..READS {
            let before = reads.count().await;
            let found = store.user_orders(&user, period, page.clone()).await.unwrap();
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

/// The buckets of the user that have orders.
async fn buckets(lease: &Lease) -> Vec<String> {
    let session = connect(lease.options()).await.unwrap();
    let keyspace = Table::Buckets.class().keyspace(&lease.options().keyspace);
    let text = format!("SELECT bucket FROM {keyspace}.buckets WHERE table_name = ? AND key = ?");
    let table = Table::OrdersByCustomer.name();
    let result = session.query_unpaged(text, (table, USER)).await.unwrap().into_rows_result().unwrap();
    result.rows::<(String,)>().unwrap().map(|row| row.unwrap().0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_a_user_are_listed_across_a_change_of_plan() {
    let (store, lease) = fresh().await;
    // From the second month on a month has five buckets, from the third on two, which a later plan repeats.
    let (now, finer, coarser) = (time("2022-12-01"), time("2023-02-08"), time("2023-03-10"));
    for (starts_at, buckets) in [(finer, 5), (coarser, 2), (time("2023-04-06"), 2)] {
        let plan = Plan { starts_at, buckets };
        store.set_plan(Table::OrdersByCustomer, USER, plan, MadeBy::Operator, now).await.unwrap();
    }
    let orders: Vec<Order> = (0..4 * A_MONTH).map(order).collect();
    import_orders(&store, &orders).await;
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

    // The second process reads the plans when it starts.
    let period = Period { from: time("2023-01-02"), to: time("2023-04-18") };
    let expected: Vec<OrderId> = orders[1..39].iter().rev().map(|order| order.order_id).collect();
    for store in [store, lease.open().await] {
        for limit in [3, 7, 100] {
            let mut found = Vec::new();
            let mut request = PageRequest::first(limit);
            loop {
                let page = store.user_orders(&user_id(USER), period, request.clone()).await.unwrap();
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

/// An order every 50 minutes, and every third one at the same millisecond as the one before.
fn order_of_days(number: i64) -> Order {
    let at = time("2023-05-01").plus_seconds((number - i64::from(number % 3 == 2)) * 50 * 60);
    Order { created_at: at, updated_at: at, pay_by: at.plus_seconds(1_800), ..order(number) }
}

async fn listed(store: &CassandraStore, of_zone: bool, period: Period, limit: usize) -> Vec<OrderId> {
    let zone = of_zone.then(|| zone("msk"));
    let mut found = Vec::new();
    let mut request = PageRequest::first(limit);
    loop {
        let page = store.orders(zone.as_ref(), period, request.clone()).await.unwrap();
        found.extend(page.items.iter().map(|order| order.order_id));
        if page.next.is_none() {
            return found;
        }
        request.after = page.next;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_a_day_are_listed_across_a_change_of_plan() {
    let (store, lease) = fresh().await;
    // Minutes, then halves of a day, then a few shards of a whole day, then the same again.
    let now = time("2023-04-01");
    for (starts_at, buckets) in
        [("2023-05-01T08:20:00Z", 64), ("2023-05-01T20:00:00Z", 5), ("2023-05-02T06:00:00Z", 5)]
    {
        let plan = Plan { starts_at: time(starts_at), buckets };
        store.set_plan(Table::OrdersByDay, "", plan, MadeBy::Operator, now).await.unwrap();
    }
    let mut orders: Vec<Order> = (0..45).map(order_of_days).collect();
    import_orders(&store, &orders).await;
    orders.sort_by_key(|order| std::cmp::Reverse((order.created_at, order.order_id)));
    let period = Period { from: time("2023-05-01T01:00:00Z"), to: time("2023-05-02T10:00:00Z") };
    let is_within = |order: &&Order| order.created_at >= period.from && order.created_at < period.to;
    let expected: Vec<OrderId> = orders.iter().filter(is_within).map(|order| order.order_id).collect();
    assert!(expected.len() > 35 && expected.len() < 45);

    // The second process reads the plans when it starts.
    for store in [store, lease.open().await] {
        for (of_zone, limit) in [(true, 100), (false, 100), (false, 7)] {
            let found = listed(&store, of_zone, period, limit).await;
            assert_eq!(found, expected, "zone {of_zone}, {limit} a page");
        }
        let sales = store.sales(None, period).await.unwrap();
        assert_eq!(sales.iter().map(|day| day.orders).sum::<u64>(), expected.len() as u64);
    }
}
