//! Everything a reader can see of a store, as questions and answers.

use std::fmt::Debug;

use mw_domain::{Money, Period, Timestamp};

use super::step::{shown, timeless};
use super::world::World;
use crate::contract::given::walk;
use crate::products::CategoryQuery;
use crate::{Freshness, Result, Store};

type Answers = Vec<(String, String)>;

/// Asks about every name the world has, in pages of `limit`.
pub(super) async fn everything(store: &dyn Store, world: &World, now: Timestamp, limit: usize) -> Answers {
    let mut answers = Vec::new();
    let mut asker = Asker { store, world, now, limit, answers: &mut answers };
    asker.carts().await;
    asker.sessions().await;
    asker.products().await;
    asker.stock().await;
    asker.reservations().await;
    asker.orders().await;
    asker.audit().await;
    answers
}

struct Asker<'a> {
    store: &'a dyn Store,
    world: &'a World,
    now: Timestamp,
    limit: usize,
    answers: &'a mut Answers,
}

impl Asker<'_> {
    fn note<T: Debug>(&mut self, question: String, answer: Result<T>) {
        self.answers.push((question, shown(answer)));
    }

    async fn carts(&mut self) {
        let (store, now, limit) = (self.store, self.now, self.limit);
        for owner in self.world.owners() {
            self.note(format!("active cart of {owner:?}"), store.active_cart(&owner, now).await);
            let carts = walk(limit, async |request| store.carts(&owner, now, request).await).await;
            self.note(format!("carts of {owner:?}"), carts);
            let changes = walk(limit, async |request| store.cart_changes(&owner, now, request).await).await;
            self.note(format!("history of {owner:?}"), changes);
        }
        for idle_for in [0, 3_600] {
            let since = now.minus_seconds(idle_for);
            let idle = walk(limit, async |request| store.idle_carts(since, now, request).await).await;
            // Their order is the engine's.
            let sorted = idle.map(|mut carts| {
                carts.sort_by_key(|cart| cart.cart_id);
                carts
            });
            self.note(format!("carts idle for {idle_for} s"), sorted);
        }
    }

    async fn sessions(&mut self) {
        let (store, now, limit) = (self.store, self.now, self.limit);
        for id in &self.world.sessions {
            self.note(format!("session {id}"), store.session(id, now).await);
        }
        for id in &self.world.users {
            let sessions = walk(limit, async |request| store.user_sessions(id, now, request).await).await;
            self.note(format!("sessions of {id}"), sessions);
        }
    }

    async fn products(&mut self) {
        let (store, now, limit) = (self.store, self.now, self.limit);
        for id in &self.world.products {
            self.note(format!("product {id}"), store.product(id, Freshness::Full).await);
        }
        let categories = walk(limit, async |request| store.categories(request).await).await;
        self.note("categories".to_owned(), categories);
        for query in self.queries() {
            let listed =
                walk(limit, async |request| store.category(&query, Freshness::Full, now, request).await);
            let listed = listed.await;
            self.note(format!("{query:?}"), listed);
        }
    }

    fn queries(&self) -> Vec<CategoryQuery> {
        let mut queries = Vec::new();
        for category in &self.world.categories {
            for descending in [false, true] {
                let whole = CategoryQuery {
                    category: category.clone(),
                    min_price: None,
                    max_price: None,
                    descending,
                    geo_zone: None,
                    in_stock: false,
                };
                let bounded = CategoryQuery {
                    min_price: Some(Money::from_minor(100)),
                    max_price: Some(Money::from_minor(250)),
                    geo_zone: self.world.zones.first().cloned(),
                    ..whole.clone()
                };
                let in_stock = CategoryQuery {
                    geo_zone: self.world.zones.last().cloned(),
                    in_stock: true,
                    ..whole.clone()
                };
                queries.extend([whole, bounded, in_stock]);
            }
        }
        queries
    }

    async fn stock(&mut self) {
        let (store, now) = (self.store, self.now);
        for id in &self.world.products {
            let zones = store.product_stock(id, Freshness::Full, now).await;
            let zones = zones.map(|zones| zones.into_iter().map(timeless).collect::<Vec<_>>());
            self.note(format!("stock of {id}"), zones);
            for zone in &self.world.zones {
                let stock = store.zone_stock(id, zone, Freshness::Full, now).await;
                self.note(format!("stock of {id} in {zone}"), stock.map(|stock| stock.map(timeless)));
            }
        }
    }

    async fn reservations(&mut self) {
        for id in &self.world.reservations {
            self.note(format!("reservation {id}"), self.store.reservation(*id, self.now).await);
        }
    }

    async fn orders(&mut self) {
        let (store, now, limit) = (self.store, self.now, self.limit);
        for id in &self.world.orders {
            self.note(format!("order {id}"), store.order(*id).await);
            self.note(format!("events of {id}"), store.order_events(*id).await);
        }
        let periods = [
            Period::ALL,
            Period::day(now.date()),
            Period { from: now.minus_seconds(36 * 3_600), to: now.minus_seconds(600) },
        ];
        for period in periods {
            for id in &self.world.users {
                let orders =
                    walk(limit, async |request| store.customer_orders(id, period, request).await).await;
                self.note(format!("orders of {id} in {period:?}"), orders);
            }
            let zones = self.world.zones.iter().map(Some).chain([None]);
            for zone in zones {
                let orders = walk(limit, async |request| store.orders(zone, period, request).await).await;
                self.note(format!("orders of {zone:?} in {period:?}"), orders);
                self.note(format!("sales of {zone:?} in {period:?}"), store.sales(zone, period).await);
            }
        }
    }

    /// How many movements the ledger has is the engine's own: it may carry old ones forward as a sum.
    async fn audit(&mut self) {
        let audit = self.store.audit(&|_| ()).await;
        self.note("audit".to_owned(), audit.map(|audit| (audit.figures, audit.drifts)));
    }
}
