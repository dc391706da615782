//! Shoppers who go on while something happens to the cluster, and remember what they were told.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mw_domain::{OrderId, ReservationId};
use mw_store::{Freshness, Orders, Products, Refusal, Result, Stock};
use mw_store_cassandra::CassandraStore;
use mw_testkit::builders::{product_id, user, user_id};
use tokio::task::JoinSet;

use crate::given::{NOW, PATIENCE, eventually, hold, lines, listed, order, set_line, units};

/// A request that takes longer has failed, whatever it answers.
const BUDGET: Duration = Duration::from_secs(15);
/// As many carts: some of them are kept by the node that is lost.
const SHOPPERS: usize = 16;
/// Lines of a cart.
const LINES: usize = 8;

/// A product that runs out, and one that does not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Goods {
    pub(crate) hit: &'static str,
    pub(crate) plenty: &'static str,
}

/// What one shopper was told.
#[derive(Debug, Default)]
struct Told {
    customer: String,
    cart: BTreeMap<String, u32>,
    orders: Vec<OrderId>,
    holds: Vec<ReservationId>,
    hits: u64,
    failures: Vec<String>,
    slowest: Duration,
}

pub(crate) struct Traffic {
    shoppers: JoinSet<Told>,
    rounds: Arc<Vec<AtomicUsize>>,
    is_over: Arc<AtomicBool>,
    goods: Goods,
}

impl Traffic {
    pub(crate) fn begin(store: &Arc<CassandraStore>, name: &str, goods: Goods) -> Self {
        let rounds: Arc<Vec<AtomicUsize>> = Arc::new((0..SHOPPERS).map(|_| AtomicUsize::new(0)).collect());
        let is_over = Arc::new(AtomicBool::new(false));
        let mut shoppers = JoinSet::new();
        for number in 0..SHOPPERS {
            let (store, rounds, is_over) = (Arc::clone(store), Arc::clone(&rounds), Arc::clone(&is_over));
            let mut told = Told { customer: format!("{name}-{number}"), ..Told::default() };
            shoppers.spawn(async move {
                for round in 0.. {
                    told.shop(&store, goods, round).await;
                    if let Some(count) = rounds.get(number) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                told
            });
        }
        Self { shoppers, rounds, is_over, goods }
    }

    /// Until every shopper has been around so many times more.
    pub(crate) async fn go_on(&self, more: usize) {
        let count = || self.rounds.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = count();
        let is_enough = || count().iter().zip(&before).all(|(now, then)| *now >= then + more);
        eventually("the shoppers go on", PATIENCE, async || is_enough().then_some(())).await;
    }

    /// Everybody comes to an end; everything that anybody asked for was done in time.
    pub(crate) async fn end(self) -> Memory {
        self.is_over.store(true, Ordering::Relaxed);
        let told = self.shoppers.join_all().await;
        let failures: Vec<&String> = told.iter().flat_map(|told| &told.failures).collect();
        let slowest = told.iter().map(|told| told.slowest).max().unwrap_or_default();
        let orders: usize = told.iter().map(|told| told.orders.len()).sum();
        eprintln!("{orders} orders, the slowest request took {slowest:?}");
        assert!(failures.is_empty(), "{failures:#?}");
        assert!(orders > 0);
        Memory { told, goods: self.goods }
    }
}

/// What shoppers were told when everything went well.
pub(crate) struct Memory {
    told: Vec<Told>,
    goods: Goods,
}

impl Memory {
    /// All of it is there, and nothing else was promised.
    pub(crate) async fn check(&self, store: &CassandraStore) {
        for told in &self.told {
            let cart: BTreeMap<String, u32> =
                lines(store, &told.customer).await.unwrap().into_iter().collect();
            assert_eq!(cart, told.cart, "{}", told.customer);
            let list = listed(store, Some(&user_id(&told.customer))).await.unwrap();
            assert_eq!(list, told.orders.iter().copied().collect(), "{}", told.customer);
            for id in &told.orders {
                assert!(store.order(*id).await.unwrap().is_some(), "{id}");
                assert_eq!(
                    store.order_events(*id).await.unwrap().map(|events| events.len()),
                    Some(1),
                    "{id}"
                );
            }
            for id in &told.holds {
                assert!(store.reservation(*id, NOW).await.unwrap().is_some(), "{id}");
            }
        }
        let (on_hand, reserved) = units(store, self.goods.hit).await.unwrap();
        assert_eq!(reserved, self.told.iter().map(|told| told.hits).sum::<u64>());
        assert!(reserved <= on_hand);
    }
}

impl Told {
    async fn shop(&mut self, store: &CassandraStore, goods: Goods, round: usize) {
        let (name, quantity) = (format!("line-{}", round % LINES), u32::try_from(round % 90 + 1).unwrap());
        let customer = self.customer.clone();
        if self.timed("set a line", set_line(store, user(&customer), &name, quantity)).await.is_some() {
            self.cart.insert(name, quantity);
        }
        if let Some(cart) = self.timed("read the cart", lines(store, &customer)).await
            && cart.into_iter().collect::<BTreeMap<_, _>>() != self.cart
        {
            self.failures.push(format!("{customer} does not see their own line of round {round}"));
        }
        let plenty = product_id(goods.plenty);
        for freshness in [Freshness::Full, Freshness::Showcase] {
            let card = store.product(&plenty, freshness);
            if self.timed("read a card", card).await.is_some_and(|card| card.is_none()) {
                self.failures.push("the card is gone".to_owned());
            }
        }
        for (basket, hits) in [(vec![goods.plenty], 0), (vec![goods.plenty, goods.hit], 1)] {
            if let Some(done) = self.timed("order", store.place_order(order(&customer, &basket))).await {
                self.orders.push(done.value.order_id);
                self.hits += hits;
            }
        }
        if let Some(done) = self.timed("reserve", store.reserve(hold(goods.hit))).await {
            self.holds.push(done.value.reservation_id);
            self.hits += 1;
        }
    }

    /// `None` where it was not done: a failure, unless the hit was sold out.
    async fn timed<T: Debug>(&mut self, what: &str, request: impl Future<Output = Result<T>>) -> Option<T> {
        let started = Instant::now();
        let answer = request.await;
        let took = started.elapsed();
        self.slowest = self.slowest.max(took);
        if took > BUDGET {
            self.failures.push(format!("{what}: took {took:?}"));
        }
        match answer {
            Ok(value) => Some(value),
            Err(error) if matches!(error.refusal(), Some(Refusal::OutOfStock(_))) => None,
            Err(error) => {
                self.failures.push(format!("{what}: {error:?} after {took:?}"));
                None
            }
        }
    }
}
