//! The change feed on a cluster: several processes, processes that die before the row of a change, rows that are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_domain::carts::CartLifetime;
use mw_domain::{CartId, CartStatus, OrderId, OrderStatus, Owner, ProductId, SessionId};
use mw_store::carts::{Abandon, SetLine};
use mw_store::changes::{ChangeEvent, Changed, FeedSettings, FeedStart, ReadChanges, Topic, Topics};
use mw_store::orders::SetStatus;
use mw_store::{Carts, Changes, Orders, Position, Refusal, Result};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Options, StatementFault, StatementKind, Table};
use mw_testkit::cassandra::{Lease, StatementScript};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::fixtures::{NOW, TIMEOUT, eventually, exclusive, full_name, import_stock, order};

const USER: &str = "u";
/// The promise is two seconds, and ten after a process died; test machines are slow at times.
const LAG_MAX: Duration = Duration::from_secs(10);
const CART_LIFETIME: CartLifetime = CartLifetime { user_ms: 2_592_000_000, guest_ms: 86_400_000 };
const RECOVERED: Duration = Duration::from_secs(20);

fn orders_from(start: FeedStart) -> ReadChanges {
    ReadChanges { start, topics: Topics::NONE.with(Topic::Orders), limit: 100, now: NOW }
}

/// The rest of the feed, and the position after it.
pub(crate) async fn rest(store: &CassandraStore, start: FeedStart) -> Result<(Vec<ChangeEvent>, Position)> {
    let mut request = orders_from(start);
    let mut changes = Vec::new();
    loop {
        let page = store.changes(request.clone()).await?;
        let is_end = page.items.is_empty() && request.start == FeedStart::After(page.next.clone());
        changes.extend(page.items);
        if is_end {
            return Ok((changes, page.next));
        }
        request.start = FeedStart::After(page.next);
    }
}

/// The orders in the change feed, from its oldest change on.
pub(crate) async fn orders_in_the_feed(store: &CassandraStore) -> BTreeSet<OrderId> {
    let (changes, _) = rest(store, FeedStart::Oldest).await.unwrap();
    let created = |change: ChangeEvent| match change.changed {
        Changed::OrderCreated(order) => Some(order.order_id),
        _ => None,
    };
    changes.into_iter().filter_map(created).collect()
}

fn paying(order_id: OrderId) -> SetStatus {
    SetStatus {
        order_id,
        of_user: None,
        to: OrderStatus::Paid,
        note: None,
        expected_version: None,
        now: NOW.plus_seconds(1),
        identity: None,
    }
}

/// Each order is placed by one process and paid by the other, at once, while a reader of either follows the feed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_by_two_processes_reach_both_readers_in_order() {
    const ORDERS: usize = 120;
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let stores = [lease.open().await, lease.open().await];
    import_stock(&stores[0], "plenty", 10_000).await;
    let start = stores[0].changes(orders_from(FeedStart::Now)).await.unwrap().next;
    let mut buyers = JoinSet::new();
    for number in 0..ORDERS {
        let [placing, paying_at] = [number % 2, (number + 1) % 2].map(|index| Arc::clone(&stores[index]));
        buyers.spawn(async move {
            let order_id = placing.place_order(order(USER, &["plenty"])).await.unwrap().value.order_id;
            paying_at.set_status(paying(order_id)).await.unwrap();
        });
    }
    let mut steps: BTreeMap<OrderId, Vec<u64>> = BTreeMap::new();
    let (mut position, started) = (start.clone(), Instant::now());
    // The processes take turns with the same cursor.
    for reader in stores.iter().cycle() {
        let page = reader.changes(orders_from(FeedStart::After(position))).await.unwrap();
        for change in page.items {
            let (Changed::OrderCreated(order) | Changed::OrderStatus(order)) = change.changed else {
                unreachable!("another topic")
            };
            steps.entry(order.order_id).or_default().push(order.version);
        }
        position = page.next;
        if steps.values().filter(|versions| versions.contains(&2)).count() == ORDERS {
            break;
        }
        assert!(started.elapsed() < TIMEOUT, "{} of {ORDERS} orders", steps.len());
    }
    buyers.join_all().await;
    for (order_id, versions) in steps {
        let mut sorted = versions.clone();
        sorted.sort_unstable();
        assert_eq!(versions, sorted, "{order_id}");
        assert!(versions.contains(&1), "{order_id}: {versions:?}");
    }
    // A process that starts later reads from the same cursor.
    let late = lease.open().await;
    let (changes, _) = rest(&late, FeedStart::After(start)).await.unwrap();
    let ids: BTreeSet<String> = changes.into_iter().map(|change| change.id).collect();
    assert_eq!(ids.len(), 2 * ORDERS);
}

/// The row of the placement waits; its process dies then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_process_died_before_its_row_is_in_the_feed() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let survivor = lease.open().await;
    import_stock(&survivor, "plenty", 10).await;
    let script = StatementScript::default();
    let options = Options { faults: Some(Arc::new(script.clone())), ..lease.options().clone() };
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let dying = runtime.spawn(CassandraStore::open(options)).await.unwrap().unwrap();
    let paused = script.pause(Table::Changes, StatementKind::Write, 0);
    let command = order(USER, &["plenty"]);
    let order_id = command.order_id;
    let placing = runtime.spawn(async move { dying.place_order(command).await });
    tokio::time::timeout(TIMEOUT, paused.reached()).await.unwrap();
    assert!(!placing.is_finished(), "acknowledged before its row is in the feed");
    assert!(survivor.order(order_id).await.unwrap().is_some());
    assert_eq!(orders_in_the_feed(&survivor).await, BTreeSet::new());
    // The payment names the step before it, whose row is missing.
    survivor.set_status(paying(order_id)).await.unwrap();
    runtime.shutdown_background();
    eventually("the steps are in the feed", LAG_MAX, async || {
        let (changes, _) = rest(&survivor, FeedStart::Oldest).await.unwrap();
        let versions: Vec<u64> = changes.iter().map(|change| change.version).collect();
        versions.starts_with(&[1, 2]).then_some(())
    })
    .await;
    let session = connect(lease.options()).await.unwrap();
    eventually("recovery has reported the order", RECOVERED, async || {
        let text = format!("SELECT DISTINCT lane, block FROM {}", full_name(lease.options(), Table::Changes));
        let intents = format!("SELECT count(*) FROM {}", full_name(lease.options(), Table::Intents));
        let count = session.query_unpaged(intents, ()).await.unwrap().into_rows_result().unwrap();
        let lanes = session.query_unpaged(text, ()).await.unwrap().into_rows_result().unwrap();
        assert_eq!(lanes.rows_num(), 1, "the dead process wrote no row");
        (count.first_row::<(i64,)>().unwrap().0 == 0).then_some(())
    })
    .await;
    let late = lease.open().await;
    assert_eq!(orders_in_the_feed(&late).await, BTreeSet::from([order_id]));
    drop(paused);
}

/// The row of the closed cart waits, and another process opens the guest's next cart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cart_closed_by_a_process_that_died_is_in_the_feed_before_the_next_one() {
    let _exclusive = exclusive().await;
    let mut lease = Lease::empty().await;
    lease.set_feed(FeedSettings { topics: Topics::NONE.with(Topic::Carts), ..FeedSettings::default() });
    let survivor = lease.open().await;
    let owner = Owner::Session(SessionId::parse("g").unwrap());
    let first = survivor.set_line(line(&owner, 1)).await.unwrap();
    let script = StatementScript::default();
    let options = Options { faults: Some(Arc::new(script.clone())), ..lease.options().clone() };
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let dying = runtime.spawn(CassandraStore::open(options)).await.unwrap().unwrap();
    let paused = script.pause(Table::Changes, StatementKind::Write, 0);
    let command = Abandon {
        owner: owner.clone(),
        expected_version: None,
        lifetime: CART_LIFETIME,
        now: NOW.plus_seconds(1),
        identity: None,
    };
    let abandoning = runtime.spawn(async move { dying.abandon(command).await });
    tokio::time::timeout(TIMEOUT, paused.reached()).await.unwrap();
    assert!(!abandoning.is_finished(), "acknowledged before its row is in the feed");
    runtime.shutdown_background();
    let second = survivor.set_line(line(&owner, 2)).await.unwrap();
    assert_ne!(first.cart_id, second.cart_id);
    let topics = Topics::NONE.with(Topic::Carts);
    let states = eventually("the second cart is in the feed", LAG_MAX, async || {
        let request = ReadChanges { start: FeedStart::Oldest, topics, limit: 100, now: NOW };
        let changes = survivor.changes(request).await.unwrap().items;
        let state = |change: ChangeEvent| match change.changed {
            Changed::Cart(cart) | Changed::CartClosed(cart) => (cart.cart_id, cart.status),
            _ => unreachable!("another topic"),
        };
        let states: Vec<_> = changes.into_iter().map(state).collect();
        states.contains(&(second.cart_id, CartStatus::Active)).then_some(states)
    })
    .await;
    // The row of the first line names a cart that is closed and followed by another.
    let expected = [(first.cart_id, CartStatus::Abandoned), (second.cart_id, CartStatus::Active)];
    assert_eq!(states, expected);
    drop(paused);
}

fn line(owner: &Owner, quantity: u32) -> SetLine {
    SetLine {
        owner: owner.clone(),
        product_id: ProductId::parse("phone").unwrap(),
        quantity,
        new_cart_id: CartId::new(Uuid::now_v7()),
        expected_version: None,
        lifetime: CART_LIFETIME,
        now: NOW.plus_seconds(i64::from(quantity)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_whose_result_is_lost_is_written_again_without_a_gap() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let script = StatementScript::default();
    let store = lease.open_with(&script).await;
    import_stock(&store, "plenty", 100).await;
    let mut placed = BTreeSet::new();
    for fault in [StatementFault::NotSent, StatementFault::RequestLost, StatementFault::ResultLost] {
        script.fail(Table::Changes, StatementKind::Write, (0, 2), fault);
        for _ in 0..3 {
            placed.insert(store.place_order(order(USER, &["plenty"])).await.unwrap().value.order_id);
        }
    }
    let found = eventually("all orders are in the feed", LAG_MAX, async || {
        let found = orders_in_the_feed(&store).await;
        (found.len() >= placed.len()).then_some(found)
    })
    .await;
    assert_eq!(found, placed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_has_expired_when_rows_after_it_are_gone() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let feed = FeedSettings { retention_ms: 1_000, ..FeedSettings::default() };
    let store = CassandraStore::open(Options { feed, ..lease.options().clone() }).await.unwrap();
    import_stock(&store, "plenty", 100).await;
    store.place_order(order(USER, &["plenty"])).await.unwrap();
    let (changes, end) = eventually("the order is in the feed", LAG_MAX, async || {
        let read = rest(&store, FeedStart::Oldest).await.unwrap();
        (!read.0.is_empty()).then_some(read)
    })
    .await;
    let first = changes[0].position.clone();
    assert_eq!(rest(&store, FeedStart::After(first.clone())).await.unwrap().0, []);
    store.place_order(order(USER, &["plenty"])).await.unwrap();
    // The rows are recorded within a second; then they go, as their TTL would have it.
    let session = connect(lease.options()).await.unwrap();
    eventually("the lane is recorded", LAG_MAX, async || {
        let text = format!("SELECT next FROM {}", full_name(lease.options(), Table::ChangeLanes));
        let rows = session.query_unpaged(text, ()).await.unwrap().into_rows_result().unwrap();
        (rows.first_row::<(i64,)>().unwrap().0 >= 3).then_some(())
    })
    .await;
    session
        .query_unpaged(format!("TRUNCATE {}", full_name(lease.options(), Table::Changes)), ())
        .await
        .unwrap();
    for position in [first, end] {
        let expired = rest(&store, FeedStart::After(position)).await.unwrap_err();
        assert_eq!(expired.refusal(), Some(&Refusal::CursorExpired));
    }
    let (changes, end) = rest(&store, FeedStart::Oldest).await.unwrap();
    assert_eq!(changes, [], "nothing is kept");
    store.place_order(order(USER, &["plenty"])).await.unwrap();
    eventually("what comes later is found", LAG_MAX, async || {
        let (changes, _) = rest(&store, FeedStart::After(end.clone())).await.unwrap();
        (changes.len() == 1).then_some(())
    })
    .await;
}
