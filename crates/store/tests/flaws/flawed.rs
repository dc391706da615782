//! A store that is right but for one flaw: each is a mistake that an engine could make.

use async_trait::async_trait;
use mw_domain::product::ProductPatch;
use mw_domain::{
    Cart, CartChange, Category, GeoZone, Order, OrderEvent, OrderId, Owner, Period, Product, ProductId,
    Reservation, ReservationId, Session, SessionId, Timestamp, UserId, ZoneStock,
};
use mw_store::carts::{Abandon, Merge, Merged, RemoveLine, SetLine};
use mw_store::model::Model;
use mw_store::orders::{PlaceOrder, Sales, SetStatus};
use mw_store::products::{Card, CategoryQuery, ImportProduct, Imported, Listed, Put};
use mw_store::records::{Checkpoint, Export, Record};
use mw_store::sessions::{CreateSession, LoggedIn, Login, TouchSession};
use mw_store::stock::{Adjust, Audit, Reserve, SetOnHand};
use mw_store::{
    Carts, Done, Freshness, Once, Orders, Page, PageRequest, Products, Records, Result, Sessions, Stock,
    Upkeep,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// None: what must pass.
    None,
    /// A merge forgets the last line it moved.
    MergeLosesLine,
    /// A cart is read for a second more than it lives.
    CartExpiresLate,
    /// A placed order does not remember its key.
    OrderForgetsKey,
    /// A refused hold keeps the units of its first line.
    RefusedHoldKeepsUnits,
    /// A category read backwards has equal prices in the order of their ids.
    EqualPricesNotReversed,
    /// A cancelled order keeps its units.
    CancelKeepsUnits,
    /// The first item of a later page is lost.
    PageLosesItem,
}

pub(crate) struct Flawed {
    inner: Model,
    flaw: Flaw,
}

impl Flawed {
    pub(crate) fn new(flaw: Flaw) -> Self {
        Self { inner: Model::new(), flaw }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }
}

#[async_trait]
impl Carts for Flawed {
    async fn active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
        let late = i64::from(self.has(Flaw::CartExpiresLate));
        self.inner.active_cart(owner, now.minus_seconds(late)).await
    }

    async fn set_line(&self, command: SetLine) -> Result<Cart> {
        self.inner.set_line(command).await
    }

    async fn remove_line(&self, command: RemoveLine) -> Result<Option<Cart>> {
        self.inner.remove_line(command).await
    }

    async fn abandon(&self, command: Abandon) -> Result<Done<Cart>> {
        self.inner.abandon(command).await
    }

    async fn merge(&self, command: Merge) -> Result<Done<Merged>> {
        let (user_id, lifetime, now) = (command.user_id.clone(), command.lifetime, command.now);
        let done = self.inner.merge(command).await?;
        if let (true, Some(lost)) = (self.has(Flaw::MergeLosesLine), done.value.changes.last()) {
            let removal = RemoveLine {
                owner: Owner::User(user_id),
                product_id: lost.product_id.clone(),
                expected_version: None,
                lifetime,
                now,
            };
            self.inner.remove_line(removal).await?;
        }
        Ok(done)
    }

    async fn carts(&self, owner: &Owner, now: Timestamp, page: PageRequest) -> Result<Page<Cart>> {
        self.inner.carts(owner, now, page).await
    }

    async fn cart_changes(
        &self,
        owner: &Owner,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<CartChange>> {
        self.inner.cart_changes(owner, now, page).await
    }

    async fn idle_carts(
        &self,
        idle_since: Timestamp,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Cart>> {
        self.inner.idle_carts(idle_since, now, page).await
    }
}

#[async_trait]
impl Sessions for Flawed {
    async fn create_session(&self, command: CreateSession) -> Result<Done<Session>> {
        self.inner.create_session(command).await
    }

    async fn session(&self, session_id: &SessionId, now: Timestamp) -> Result<Option<Session>> {
        self.inner.session(session_id, now).await
    }

    async fn touch_session(&self, command: TouchSession) -> Result<Session> {
        self.inner.touch_session(command).await
    }

    async fn login(&self, command: Login) -> Result<Done<LoggedIn>> {
        self.inner.login(command).await
    }

    async fn delete_session(&self, session_id: &SessionId, now: Timestamp) -> Result<()> {
        self.inner.delete_session(session_id, now).await
    }

    async fn user_sessions(
        &self,
        user_id: &UserId,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Session>> {
        self.inner.user_sessions(user_id, now, page).await
    }

    async fn revoke_sessions(&self, user_id: &UserId, now: Timestamp) -> Result<()> {
        self.inner.revoke_sessions(user_id, now).await
    }
}

#[async_trait]
impl Products for Flawed {
    async fn put_product(&self, product: Product) -> Result<Put> {
        self.inner.put_product(product).await
    }

    async fn patch_product(
        &self,
        product_id: &ProductId,
        patch: ProductPatch,
        now: Timestamp,
    ) -> Result<Product> {
        self.inner.patch_product(product_id, patch, now).await
    }

    async fn product(&self, product_id: &ProductId, freshness: Freshness) -> Result<Option<Card>> {
        self.inner.product(product_id, freshness).await
    }

    async fn delete_product(&self, product_id: &ProductId) -> Result<()> {
        self.inner.delete_product(product_id).await
    }

    async fn import_product(&self, command: ImportProduct) -> Result<Done<Imported>> {
        self.inner.import_product(command).await
    }

    async fn category(
        &self,
        query: &CategoryQuery,
        freshness: Freshness,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Listed>> {
        let mut listed = self.inner.category(query, freshness, now, page).await?;
        if query.descending && self.has(Flaw::EqualPricesNotReversed) {
            listed
                .items
                .sort_by_key(|item| (std::cmp::Reverse(item.product.price), item.product.product_id.clone()));
        }
        Ok(listed)
    }

    async fn categories(&self, page: PageRequest) -> Result<Page<Category>> {
        self.inner.categories(page).await
    }
}

#[async_trait]
impl Stock for Flawed {
    async fn zone_stock(
        &self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Option<ZoneStock>> {
        self.inner.zone_stock(product_id, geo_zone, freshness, now).await
    }

    async fn product_stock(
        &self,
        product_id: &ProductId,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Vec<ZoneStock>> {
        self.inner.product_stock(product_id, freshness, now).await
    }

    async fn set_on_hand(&self, command: SetOnHand) -> Result<ZoneStock> {
        self.inner.set_on_hand(command).await
    }

    async fn adjust(&self, command: Adjust) -> Result<Done<ZoneStock>> {
        self.inner.adjust(command).await
    }

    async fn reserve(&self, command: Reserve) -> Result<Done<Reservation>> {
        let first = Reserve { lines: command.lines.iter().take(1).cloned().collect(), ..command.clone() };
        let answer = self.inner.reserve(command).await;
        if answer.is_err() && self.has(Flaw::RefusedHoldKeepsUnits) {
            // Whether this half is there does not matter to who asked for the whole.
            self.inner.reserve(Reserve { once: None, ..first }).await.ok();
        }
        answer
    }

    async fn reservation(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
    ) -> Result<Option<Reservation>> {
        self.inner.reservation(reservation_id, now).await
    }

    async fn confirm(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
        once: Option<Once>,
    ) -> Result<Done<Reservation>> {
        self.inner.confirm(reservation_id, now, once).await
    }

    async fn release(&self, reservation_id: ReservationId, now: Timestamp) -> Result<()> {
        self.inner.release(reservation_id, now).await
    }

    async fn settle_expired(&self, now: Timestamp, limit: usize) -> Result<usize> {
        self.inner.settle_expired(now, limit).await
    }

    async fn audit(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
        self.inner.audit(progress).await
    }
}

impl Flawed {
    /// Holds the units of a cancelled order anew, for longer than any test runs.
    async fn keep_units(&self, order: &Order) -> Result<()> {
        let lines = order
            .lines
            .iter()
            .map(|line| mw_domain::Demand { product_id: line.product_id.clone(), quantity: line.quantity });
        let hold = Reserve {
            reservation_id: ReservationId::new(order.order_id.uuid()),
            geo_zone: order.geo_zone.clone(),
            lines: lines.collect(),
            expires_at: Timestamp::MAX,
            now: order.updated_at,
            once: None,
        };
        self.inner.reserve(hold).await.map(drop)
    }
}

#[async_trait]
impl Orders for Flawed {
    async fn place_order(&self, command: PlaceOrder) -> Result<Done<Order>> {
        let once = if self.has(Flaw::OrderForgetsKey) { None } else { command.once.clone() };
        self.inner.place_order(PlaceOrder { once, ..command }).await
    }

    async fn order(&self, order_id: OrderId) -> Result<Option<Order>> {
        self.inner.order(order_id).await
    }

    async fn order_events(&self, order_id: OrderId) -> Result<Option<Vec<OrderEvent>>> {
        self.inner.order_events(order_id).await
    }

    async fn set_status(&self, command: SetStatus) -> Result<Done<Order>> {
        let before = self.inner.order(command.order_id).await?;
        let done = self.inner.set_status(command).await?;
        let is_cancelled = done.value.status == mw_domain::OrderStatus::Cancelled;
        let was_so = before.is_some_and(|order| order.status == done.value.status);
        if is_cancelled && !was_so && self.has(Flaw::CancelKeepsUnits) {
            self.keep_units(&done.value).await?;
        }
        Ok(done)
    }

    async fn customer_orders(
        &self,
        user_id: &UserId,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>> {
        let is_first = page.after.is_none();
        let mut orders = self.inner.customer_orders(user_id, period, page).await?;
        if self.has(Flaw::PageLosesItem) && !is_first && orders.items.len() > 1 {
            orders.items.remove(0);
        }
        Ok(orders)
    }

    async fn orders(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>> {
        self.inner.orders(geo_zone, period, page).await
    }

    async fn sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>> {
        self.inner.sales(geo_zone, period).await
    }

    async fn cancel_unpaid(&self, now: Timestamp, note: &str, limit: usize) -> Result<usize> {
        self.inner.cancel_unpaid(now, note, limit).await
    }
}

#[async_trait]
impl Records for Flawed {
    async fn export(&self) -> Result<Box<dyn Export>> {
        self.inner.export().await
    }

    async fn import(&self, records: Vec<Record>, checkpoint: Checkpoint) -> Result<()> {
        self.inner.import(records, checkpoint).await
    }

    async fn import_progress(&self, import: &str) -> Result<u64> {
        self.inner.import_progress(import).await
    }

    async fn is_empty(&self) -> Result<bool> {
        self.inner.is_empty().await
    }
}

#[async_trait]
impl Upkeep for Flawed {
    async fn ready(&self) -> Result<()> {
        self.inner.ready().await
    }

    async fn clean(&self, now: Timestamp, limit: usize) -> Result<usize> {
        self.inner.clean(now, limit).await
    }
}
