//! The whole visible state of a store: every read of the contract with its result, as text.

use std::fmt::Debug;

use mw_domain::{Money, Period, Timestamp};

use super::step::{describe, timeless};
use super::world::World;
use crate::contract::fixtures::walk;
use crate::products::CategoryQuery;
use crate::{Freshness, Result, Store};

type Observations = Vec<(String, String)>;

/// Reads every name of the world, lists in pages of `limit`.
pub(super) async fn everything(
    store: &dyn Store,
    world: &World,
    now: Timestamp,
    limit: usize,
) -> Observations {
    let mut observations = Vec::new();
    let mut observer = Observer { store, world, now, limit, observations: &mut observations };
    observer.carts().await;
    observer.sessions().await;
    observer.products().await;
    observer.stock().await;
    observer.reservations().await;
    observer.orders().await;
    observer.audit().await;
    observations
}

struct Observer<'a> {
    store: &'a dyn Store,
    world: &'a World,
    now: Timestamp,
    limit: usize,
    observations: &'a mut Observations,
}

impl Observer<'_> {
    fn note<T: Debug>(&mut self, subject: String, result: Result<T>) {
        self.observations.push((subject, describe(result)));
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
            // The engine chooses their order.
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
            self.note(format!("product {id}"), store.product(id, Freshness::Latest).await);
        }
        let categories = walk(limit, async |request| store.categories(request).await).await;
        self.note("categories".to_owned(), categories);
        for query in self.queries() {
            let listed =
                walk(limit, async |request| store.category(&query, Freshness::Latest, now, request).await);
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
            let zones = store.product_stock(id, Freshness::Latest, now).await;
            let zones = zones.map(|zones| zones.into_iter().map(timeless).collect::<Vec<_>>());
            self.note(format!("stock of {id}"), zones);
            for zone in &self.world.zones {
                let stock = store.zone_stock(id, zone, Freshness::Latest, now).await;
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
                let orders = walk(limit, async |request| store.user_orders(id, period, request).await).await;
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

    /// The number of movements is not compared: an engine may compact its ledger.
    async fn audit(&mut self) {
        let audit = self.store.audit(&|_| ()).await;
        self.note("audit".to_owned(), audit.map(|audit| (audit.levels, audit.drifts)));
    }
}
