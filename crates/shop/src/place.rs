//! Placing orders: from lines a caller lists, or from what the user's cart holds.

use mw_domain::stock::combine;
use mw_domain::{Demand, GeoZone, Money, Order, UserId};
use mw_store::orders::{Basket, PlaceOrder};
use mw_store::{Done, Once, Result};

use crate::Shop;

/// What a caller says about an order beside its lines.
#[derive(Debug, Clone)]
pub struct Terms {
    pub user_id: UserId,
    pub geo_zone: GeoZone,
    pub expected_total: Option<Money>,
    pub delivery_address: Option<String>,
    pub payment_method: Option<String>,
}

impl Shop {
    pub async fn place_order(&self, terms: Terms, lines: Vec<Demand>, once: Once) -> Result<Done<Order>> {
        let lines = combine(lines)?;
        self.place(terms, Basket::Lines(lines), once).await
    }

    pub async fn checkout(
        &self,
        terms: Terms,
        expected_version: Option<u64>,
        once: Once,
    ) -> Result<Done<Order>> {
        let basket = Basket::Cart { expected_version, lifetime: self.settings.carts };
        self.place(terms, basket, once).await
    }

    async fn place(&self, terms: Terms, basket: Basket, once: Once) -> Result<Done<Order>> {
        let now = self.now();
        let command = PlaceOrder {
            order_id: self.ids.order(),
            user_id: terms.user_id,
            geo_zone: terms.geo_zone,
            basket,
            expected_total: terms.expected_total,
            delivery_address: terms.delivery_address,
            payment_method: terms.payment_method,
            pay_by: now.plus_millis(self.settings.payment_window_ms),
            now,
            once: Some(once),
        };
        self.store.place_order(command).await
    }
}
