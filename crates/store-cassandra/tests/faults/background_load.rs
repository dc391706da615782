//! Load during a fault: clients that send requests while nodes fail, and remember what was acknowledged.

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

use crate::changes::orders_in_the_feed;
use crate::fixtures::{NOW, TIMEOUT, cart_lines, eventually, hold, listed, order, set_line, stock_level};

/// A request that takes longer has failed, whatever its result.
const LATENCY_MAX: Duration = Duration::from_secs(15);
/// Each has a cart of its own, so that the lost node is a replica of some.
const CLIENTS: usize = 16;
/// Lines of a cart.
const LINES: usize = 8;

/// A product that sells out, and one that does not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TestProducts {
    pub(crate) hit: &'static str,
    pub(crate) plenty: &'static str,
}

/// What was acknowledged to one client.
#[derive(Debug, Default)]
struct Client {
    user_name: String,
    cart: BTreeMap<String, u32>,
    orders: Vec<OrderId>,
    holds: Vec<ReservationId>,
    hits: u64,
    failures: Vec<String>,
    slowest: Duration,
}

pub(crate) struct BackgroundLoad {
    clients: JoinSet<Client>,
    rounds: Arc<Vec<AtomicUsize>>,
    is_over: Arc<AtomicBool>,
    products: TestProducts,
}

impl BackgroundLoad {
    pub(crate) fn start(store: &Arc<CassandraStore>, name: &str, products: TestProducts) -> Self {
        let rounds: Arc<Vec<AtomicUsize>> = Arc::new((0..CLIENTS).map(|_| AtomicUsize::new(0)).collect());
        let is_over = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (store, rounds, is_over) = (Arc::clone(store), Arc::clone(&rounds), Arc::clone(&is_over));
            let mut client = Client { user_name: format!("{name}-{number}"), ..Client::default() };
            clients.spawn(async move {
                for round in 0.. {
                    client.run_round(&store, products, round).await;
                    if let Some(count) = rounds.get(number) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                client
            });
        }
        Self { clients, rounds, is_over, products }
    }

    /// Waits until every client has finished `more` further rounds.
    pub(crate) async fn continue_for(&self, more: usize) {
        let count = || self.rounds.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = count();
        let is_enough = || count().iter().zip(&before).all(|(now, then)| *now >= then + more);
        eventually("every client goes on", TIMEOUT, async || is_enough().then_some(())).await;
    }

    /// Stops all clients. Every request succeeded in time.
    pub(crate) async fn stop(self) -> Acknowledged {
        self.is_over.store(true, Ordering::Relaxed);
        let clients = self.clients.join_all().await;
        let failures: Vec<&String> = clients.iter().flat_map(|client| &client.failures).collect();
        let slowest = clients.iter().map(|client| client.slowest).max().unwrap_or_default();
        let orders: usize = clients.iter().map(|client| client.orders.len()).sum();
        eprintln!("{orders} orders, the slowest request took {slowest:?}");
        assert!(failures.is_empty(), "{failures:#?}");
        assert!(orders > 0);
        Acknowledged { clients, products: self.products }
    }
}

/// Everything that was acknowledged to the clients.
pub(crate) struct Acknowledged {
    clients: Vec<Client>,
    products: TestProducts,
}

impl Acknowledged {
    /// All of it is stored and in the change feed, and nothing else is reserved.
    pub(crate) async fn check(&self, store: &CassandraStore) {
        eventually("every order is in the feed", TIMEOUT, async || {
            let found = orders_in_the_feed(store).await;
            self.clients.iter().flat_map(|client| &client.orders).all(|id| found.contains(id)).then_some(())
        })
        .await;
        for client in &self.clients {
            let cart: BTreeMap<String, u32> =
                cart_lines(store, &client.user_name).await.unwrap().into_iter().collect();
            assert_eq!(cart, client.cart, "{}", client.user_name);
            let list = listed(store, Some(&user_id(&client.user_name))).await.unwrap();
            assert_eq!(list, client.orders.iter().copied().collect(), "{}", client.user_name);
            for id in &client.orders {
                assert!(store.order(*id).await.unwrap().is_some(), "{id}");
                assert_eq!(
                    store.order_events(*id).await.unwrap().map(|events| events.len()),
                    Some(1),
                    "{id}"
                );
            }
            for id in &client.holds {
                assert!(store.reservation(*id, NOW).await.unwrap().is_some(), "{id}");
            }
        }
        let (on_hand, reserved) = stock_level(store, self.products.hit).await.unwrap();
        assert_eq!(reserved, self.clients.iter().map(|client| client.hits).sum::<u64>());
        assert!(reserved <= on_hand);
    }
}

impl Client {
    async fn run_round(&mut self, store: &CassandraStore, products: TestProducts, round: usize) {
        let (name, quantity) = (format!("line-{}", round % LINES), u32::try_from(round % 90 + 1).unwrap());
        let user_name = self.user_name.clone();
        if self.timed("set a line", set_line(store, user(&user_name), &name, quantity)).await.is_some() {
            self.cart.insert(name, quantity);
        }
        if let Some(cart) = self.timed("read the cart", cart_lines(store, &user_name)).await
            && cart.into_iter().collect::<BTreeMap<_, _>>() != self.cart
        {
            self.failures.push(format!("{user_name} does not read its own line of round {round}"));
        }
        let plenty = product_id(products.plenty);
        for freshness in [Freshness::Latest, Freshness::StaleOk] {
            let product = store.product(&plenty, freshness);
            if self.timed("read a product", product).await.is_some_and(|product| product.is_none()) {
                self.failures.push("the product is missing".to_owned());
            }
        }
        for (basket, hits) in [(vec![products.plenty], 0), (vec![products.plenty, products.hit], 1)] {
            if let Some(done) = self.timed("order", store.place_order(order(&user_name, &basket))).await {
                self.orders.push(done.value.order_id);
                self.hits += hits;
            }
        }
        if let Some(done) = self.timed("reserve", store.reserve(hold(products.hit))).await {
            self.holds.push(done.value.reservation_id);
            self.hits += 1;
        }
    }

    /// `None` where it was not done, which is a failure unless the product is sold out.
    async fn timed<T: Debug>(&mut self, what: &str, request: impl Future<Output = Result<T>>) -> Option<T> {
        let started = Instant::now();
        let result = request.await;
        let took = started.elapsed();
        self.slowest = self.slowest.max(took);
        if took > LATENCY_MAX {
            self.failures.push(format!("{what}: took {took:?}"));
        }
        match result {
            Ok(value) => Some(value),
            Err(error) if matches!(error.refusal(), Some(Refusal::OutOfStock(_))) => None,
            Err(error) => {
                self.failures.push(format!("{what}: {error:?} after {took:?}"));
                None
            }
        }
    }
}
