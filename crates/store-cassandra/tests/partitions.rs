//! Adaptive bucketing on a real cluster: several processes count, one merges and makes plans, and lists stay complete and in order.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed step fails the test")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use mw_domain::{OrderId, Period, Timestamp};
use mw_operate::partitions::judgement::Limits;
use mw_operate::partitions::{Adapt, PartitionCounters, Steward, StewardSettings};
use mw_store::orders::{Basket, PlaceOrder};
use mw_store::partitions::{
    BucketPlan, MadeBy, PartitionReports, PartitionState, PartitionStats, PartitionStore,
};
use mw_store::stock::SetOnHand;
use mw_store::{Orders, PageRequest, Products, Stock};
use mw_store_cassandra::CassandraStore;
use mw_testkit::builders::{demand, product, product_id, time, user_id, zone};
use mw_testkit::cassandra::Lease;
use prometheus::Registry;
use tokio::task::JoinSet;
use uuid::Uuid;

const WHOLESALER: &str = "wholesaler";
const TABLE: &str = "orders_by_customer";
/// A window of the statistics, by the time of the test.
const WINDOW: Duration = Duration::from_mins(1);
/// Small, so that some hundred orders are a wide partition.
const WIDE_BYTES: u64 = 1 << 20;
/// An order with this address is a row of more than a kilobyte.
const ADDRESS_BYTES: usize = 1_000;
/// For recovery to finish the orders of a killed process.
const RECOVERY: Duration = Duration::from_mins(1);

/// A shop on the shared cluster, and the time that its commands carry.
struct Lab {
    lease: Lease,
    now_ms: Arc<AtomicI64>,
}

/// A process of the shop: its store, and its part in the statistics.
struct Process {
    store: Arc<CassandraStore>,
    steward: Steward,
}

impl Lab {
    async fn new() -> Self {
        let now_ms = Arc::new(AtomicI64::new(time("2026-11-02T10:00:00Z").as_millis()));
        Self { lease: Lease::empty().await, now_ms }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now_ms.load(Ordering::SeqCst))
    }

    fn advance(&self, seconds: i64) {
        self.now_ms.fetch_add(seconds * 1_000, Ordering::SeqCst);
    }

    async fn start(&self, adapt: Adapt) -> Process {
        let counters = Arc::new(PartitionCounters::default());
        let mut options = self.lease.options().clone();
        options.partitions = PartitionReports::to(Arc::clone(&counters) as _);
        let store = CassandraStore::open(options).await.unwrap();
        let settings = StewardSettings { limits: Limits { window: WINDOW, wide_bytes: WIDE_BYTES }, adapt };
        let partitions = Arc::clone(&store) as Arc<dyn PartitionStore>;
        let now_ms = Arc::clone(&self.now_ms);
        let now = Arc::new(move || Timestamp::from_millis(now_ms.load(Ordering::SeqCst)));
        let steward = Steward::new(counters, partitions, settings, now, &Registry::new()).unwrap();
        Process { store, steward }
    }

    /// Every process publishes the present window, the first merges it, and the next window begins.
    async fn end_window(&self, processes: &[Process]) {
        let window = processes[0].steward.window_at(self.now());
        for process in processes {
            process.steward.publish(window, false).await.unwrap();
        }
        processes[0].steward.merge(window).await.unwrap();
        self.advance(60);
    }
}

async fn stock_up(store: &CassandraStore, now: Timestamp) {
    store.put_product(product("p").made_at(now).build()).await.unwrap();
    let (product_id, geo_zone) = (product_id("p"), zone("msk"));
    let (on_hand, op) = (1_000_000, Uuid::now_v7());
    let command = SetOnHand { product_id, geo_zone, on_hand, expected_on_hand: None, op, now };
    store.set_on_hand(command).await.unwrap();
}

fn order(now: Timestamp) -> PlaceOrder {
    PlaceOrder {
        order_id: OrderId::new(Uuid::now_v7()),
        user_id: user_id(WHOLESALER),
        geo_zone: zone("msk"),
        basket: Basket::Lines(vec![demand("p", 1)]),
        expected_total: None,
        delivery_address: Some("x".repeat(ADDRESS_BYTES)),
        payment_method: None,
        pay_by: now.plus_seconds(1_800),
        now,
        identity: None,
    }
}

/// Places orders at these times, dealt to the processes in turn; returns those that were acknowledged.
async fn place(stores: &[Arc<CassandraStore>], times: impl Iterator<Item = Timestamp>) -> BTreeSet<OrderId> {
    let mut placing = JoinSet::new();
    let mut acknowledged = BTreeSet::new();
    for (at, store) in times.zip(stores.iter().cycle()) {
        let store = Arc::clone(store);
        placing.spawn(async move { store.place_order(order(at)).await.map(|done| done.value.order_id) });
        if placing.len() >= 24 {
            acknowledged.insert(placing.join_next().await.unwrap().unwrap().unwrap());
        }
    }
    while let Some(placed) = placing.join_next().await {
        acknowledged.insert(placed.unwrap().unwrap());
    }
    acknowledged
}

/// Every order of the wholesaler, as its list gives them out in small pages.
async fn listed(store: &CassandraStore) -> Vec<(Timestamp, OrderId)> {
    let period = Period { from: Timestamp::EPOCH, to: time("2027-01-01") };
    let (mut found, mut request) = (Vec::new(), PageRequest::first(17));
    loop {
        let page = store.user_orders(&user_id(WHOLESALER), period, request.clone()).await.unwrap();
        found.extend(page.items.iter().map(|order| (order.created_at, order.order_id)));
        match page.next {
            Some(next) => request.after = Some(next),
            None => return found,
        }
    }
}

/// The list has every acknowledged order, none twice, newest first.
async fn assert_complete(store: &CassandraStore, acknowledged: &BTreeSet<OrderId>, when: &str) {
    let found = listed(store).await;
    let ids: BTreeSet<OrderId> = found.iter().map(|(_, id)| *id).collect();
    assert_eq!(ids.len(), found.len(), "{when}: an order is listed twice");
    let missing = acknowledged.difference(&ids).count();
    assert_eq!(missing, 0, "{when}: acknowledged orders are missing");
    assert!(found.is_sorted_by(|a, b| a >= b), "{when}: the list is out of order");
}

async fn own_plans(store: &CassandraStore) -> Vec<BucketPlan> {
    let plans = store.bucket_plans().await.unwrap();
    plans.into_iter().filter(|plan| plan.table == TABLE && plan.key == WHOLESALER).collect()
}

async fn own_stats(store: &CassandraStore) -> Vec<PartitionStats> {
    let stats = store.partition_stats(Some(TABLE)).await.unwrap();
    stats.into_iter().filter(|stats| stats.key == WHOLESALER).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wholesaler_gets_a_plan_and_no_order_is_lost_or_doubled_while_it_starts_and_ends() {
    let lab = Lab::new().await;
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(lab.start(Adapt::Auto).await);
    }
    let stores: Vec<Arc<CassandraStore>> =
        processes.iter().map(|process| Arc::clone(&process.store)).collect();
    stock_up(&stores[0], lab.now()).await;
    let start = lab.now();
    let mut acknowledged = place(&stores, (0..270).map(|number| start.plus_millis(number * 200))).await;
    assert_complete(&stores[1], &acknowledged, "before the plan").await;

    lab.end_window(&processes).await;
    let stats = own_stats(&stores[2]).await;
    assert_eq!(stats.len(), 1, "{stats:?}");
    // All three processes counted: each alone saw a third.
    assert!(
        stats[0].bytes > 270 * ADDRESS_BYTES as u64 && stats[0].state == PartitionState::Wide,
        "{stats:?}"
    );
    assert_eq!((stats[0].bucket.as_str(), stats[0].rows > 200), ("2026-11", true), "{stats:?}");
    for store in &stores {
        let plans = own_plans(store).await;
        assert_eq!(plans.len(), 1, "{plans:?}");
        assert_eq!((plans[0].made_by, plans[0].buckets), (MadeBy::Auto, 31), "{plans:?}");
    }
    let starts_at = own_plans(&stores[0]).await[0].from;
    assert!(starts_at >= start.plus_seconds(60), "{starts_at}");

    // Orders before and after the start of the plan, while one of the processes is killed.
    let times = move |from: i64, to: i64| (from..to).map(move |number| starts_at.plus_millis(number * 250));
    let (survivors, doomed) = (stores[..2].to_vec(), stores[2..].to_vec());
    let killed = tokio::spawn(async move { place(&doomed, times(-200, 200)).await });
    let (abort, before) = (killed.abort_handle(), place(&survivors, times(-150, 0)).await);
    acknowledged.extend(before);
    assert_complete(&survivors[0], &acknowledged, "while the plan starts").await;
    abort.abort();
    drop(killed);
    // Its store is dropped without deregistering: the others take it for failed and finish its orders.
    processes.truncate(2);
    drop(stores);
    acknowledged.extend(place(&survivors, times(0, 150)).await);
    assert_complete(&survivors[1], &acknowledged, "after the start").await;
    await_stable(&survivors[0]).await;
    assert_complete(&survivors[0], &acknowledged, "after recovery").await;

    // What was counted until now belongs to this window; a quiet day after it ends the plan.
    lab.end_window(&processes).await;
    lab.advance(25 * 3_600);
    lab.end_window(&processes).await;
    let plans = own_plans(&survivors[1]).await;
    assert_eq!(plans.iter().map(|plan| plan.buckets).collect::<Vec<_>>(), [31, 1], "{plans:?}");
    let ends_at = plans[1].from;
    let times = (-40..40).map(|number| ends_at.plus_millis(number * 500));
    acknowledged.extend(place(&survivors, times).await);
    assert_complete(&survivors[1], &acknowledged, "after the plan has ended").await;
}

/// Waits until recovery adds no more orders to the list.
async fn await_stable(store: &CassandraStore) {
    let started = Instant::now();
    let mut last = listed(store).await.len();
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_secs(8) {
        assert!(started.elapsed() < RECOVERY, "recovery goes on adding orders");
        tokio::time::sleep(Duration::from_millis(500)).await;
        let count = listed(store).await.len();
        if count != last {
            (last, since) = (count, Instant::now());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn advised_plans_are_not_made_and_off_judges_only() {
    for adapt in [Adapt::Advise, Adapt::Off] {
        let lab = Lab::new().await;
        let processes = [lab.start(adapt).await];
        let stores = [Arc::clone(&processes[0].store)];
        stock_up(&stores[0], lab.now()).await;
        let start = lab.now();
        place(&stores, (0..150).map(|number| start.plus_millis(number * 300))).await;
        lab.end_window(&processes).await;
        let stats = own_stats(&stores[0]).await;
        assert_eq!(stats[0].state, PartitionState::Wide, "{stats:?}");
        assert!(own_plans(&stores[0]).await.is_empty(), "{adapt:?}");
    }
}
