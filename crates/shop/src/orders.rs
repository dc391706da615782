//! Orders: placing them from listed lines or from the user's cart, their statuses, and their lists.

use mw_domain::stock::combine;
use mw_domain::{Demand, GeoZone, Money, Order, OrderEvent, OrderId, OrderStatus, Period, UserId};
use mw_store::orders::{Basket, PlaceOrder, SetStatus};
use mw_store::{Done, Page, PageRequest, Result};

use crate::{KeyedRequest, Shop};

/// An order that a caller wants to place, without its lines.
#[derive(Debug, Clone)]
pub struct OrderDraft {
    pub user_id: UserId,
    pub geo_zone: GeoZone,
    pub expected_total: Option<Money>,
    pub delivery_address: Option<String>,
    pub payment_method: Option<String>,
}

impl Shop {
    /// Orders the lines; a product that several lines name is one demand.
    pub async fn place_order(
        &self,
        draft: OrderDraft,
        lines: Vec<Demand>,
        request: KeyedRequest,
    ) -> Result<Done<Order>> {
        let lines = combine(lines)?;
        self.place(draft, Basket::Lines(lines), request).await
    }

    /// Orders exactly what the user's cart holds.
    pub async fn checkout(
        &self,
        draft: OrderDraft,
        expected_version: Option<u64>,
        request: KeyedRequest,
    ) -> Result<Done<Order>> {
        let basket = Basket::Cart { expected_version, lifetime: self.settings.carts };
        self.place(draft, basket, request).await
    }

    async fn place(&self, draft: OrderDraft, basket: Basket, request: KeyedRequest) -> Result<Done<Order>> {
        let now = self.now();
        let command = PlaceOrder {
            order_id: self.ids.order(),
            user_id: draft.user_id,
            geo_zone: draft.geo_zone,
            basket,
            expected_total: draft.expected_total,
            delivery_address: draft.delivery_address,
            payment_method: draft.payment_method,
            pay_by: now.plus_millis(self.settings.payment_window_ms),
            now,
            identity: Some(request.identity(now)),
        };
        self.store.place_order(command).await
    }

    pub async fn order(&self, order_id: OrderId) -> Result<Option<Order>> {
        self.store.order(order_id).await
    }

    /// Newest first; `None` where there is no such order.
    pub async fn order_events(&self, order_id: OrderId) -> Result<Option<Vec<OrderEvent>>> {
        self.store.order_events(order_id).await
    }

    /// Moves any order to a status.
    pub async fn set_order_status(
        &self,
        order_id: OrderId,
        to: OrderStatus,
        note: Option<String>,
        expected_version: Option<u64>,
        request: Option<KeyedRequest>,
    ) -> Result<Done<Order>> {
        self.set_status(order_id, None, to, note, expected_version, request).await
    }

    /// Cancels an order of this user; another user's order is `OrderNotFound`.
    pub async fn cancel_order(
        &self,
        user_id: UserId,
        order_id: OrderId,
        note: Option<String>,
        expected_version: Option<u64>,
        request: Option<KeyedRequest>,
    ) -> Result<Done<Order>> {
        let to = OrderStatus::Cancelled;
        self.set_status(order_id, Some(user_id), to, note, expected_version, request).await
    }

    async fn set_status(
        &self,
        order_id: OrderId,
        of_user: Option<UserId>,
        to: OrderStatus,
        note: Option<String>,
        expected_version: Option<u64>,
        request: Option<KeyedRequest>,
    ) -> Result<Done<Order>> {
        let now = self.now();
        let identity = request.map(|request| request.identity(now));
        let command = SetStatus { order_id, of_user, to, note, expected_version, now, identity };
        self.store.set_status(command).await
    }

    /// The user's orders of a period, newest first.
    pub async fn user_orders(
        &self,
        user_id: &UserId,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>> {
        self.store.user_orders(user_id, period, page).await
    }

    /// All orders of a period, of one zone or of all, newest first.
    pub async fn orders(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>> {
        self.store.orders(geo_zone, period, page).await
    }
}
