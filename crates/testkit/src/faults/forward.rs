//! Every call of the contract, handed to the store inside unless a fault befalls it.

use async_trait::async_trait;
use mw_domain::product::ProductPatch;
use mw_domain::{
    Cart, CartChange, Category, GeoZone, Order, OrderEvent, OrderId, Owner, Period, Product, ProductId,
    Reservation, ReservationId, Session, SessionId, Timestamp, UserId, ZoneStock,
};
use mw_store::carts::{Abandon, Merge, Merged, RemoveLine, SetLine};
use mw_store::orders::{PlaceOrder, Sales, SetStatus};
use mw_store::products::{Card, CategoryQuery, ImportProduct, Imported, Listed, Put};
use mw_store::records::{Checkpoint, Export, Record};
use mw_store::sessions::{CreateSession, LoggedIn, Login, TouchSession};
use mw_store::stock::{Adjust, Audit, Reserve, SetOnHand};
use mw_store::{
    Carts, Done, Freshness, Once, Orders, Page, PageRequest, Products, Records, Result, Sessions, Stock,
    Upkeep,
};

use super::{Access, Call, FaultyStore, Noun};

macro_rules! forward {
    ($self:ident, $noun:ident $access:ident, $method:ident($($argument:expr),*)) => {{
        let call = Call { noun: Noun::$noun, access: Access::$access, name: stringify!($method) };
        $self.around(call, $self.inner.$method($($argument),*)).await
    }};
}

#[async_trait]
impl Carts for FaultyStore {
    async fn active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
        forward!(self, Carts Read, active_cart(owner, now))
    }

    async fn set_line(&self, command: SetLine) -> Result<Cart> {
        forward!(self, Carts Write, set_line(command))
    }

    async fn remove_line(&self, command: RemoveLine) -> Result<Option<Cart>> {
        forward!(self, Carts Write, remove_line(command))
    }

    async fn abandon(&self, command: Abandon) -> Result<Done<Cart>> {
        forward!(self, Carts Write, abandon(command))
    }

    async fn merge(&self, command: Merge) -> Result<Done<Merged>> {
        forward!(self, Carts Write, merge(command))
    }

    async fn carts(&self, owner: &Owner, now: Timestamp, page: PageRequest) -> Result<Page<Cart>> {
        forward!(self, Carts Read, carts(owner, now, page))
    }

    async fn cart_changes(
        &self,
        owner: &Owner,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<CartChange>> {
        forward!(self, Carts Read, cart_changes(owner, now, page))
    }

    async fn idle_carts(
        &self,
        idle_since: Timestamp,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Cart>> {
        forward!(self, Carts Read, idle_carts(idle_since, now, page))
    }
}

#[async_trait]
impl Sessions for FaultyStore {
    async fn create_session(&self, command: CreateSession) -> Result<Done<Session>> {
        forward!(self, Sessions Write, create_session(command))
    }

    async fn session(&self, session_id: &SessionId, now: Timestamp) -> Result<Option<Session>> {
        forward!(self, Sessions Read, session(session_id, now))
    }

    async fn touch_session(&self, command: TouchSession) -> Result<Session> {
        forward!(self, Sessions Write, touch_session(command))
    }

    async fn login(&self, command: Login) -> Result<Done<LoggedIn>> {
        forward!(self, Sessions Write, login(command))
    }

    async fn delete_session(&self, session_id: &SessionId, now: Timestamp) -> Result<()> {
        forward!(self, Sessions Write, delete_session(session_id, now))
    }

    async fn user_sessions(
        &self,
        user_id: &UserId,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Session>> {
        forward!(self, Sessions Read, user_sessions(user_id, now, page))
    }

    async fn revoke_sessions(&self, user_id: &UserId, now: Timestamp) -> Result<()> {
        forward!(self, Sessions Write, revoke_sessions(user_id, now))
    }
}

#[async_trait]
impl Products for FaultyStore {
    async fn put_product(&self, product: Product) -> Result<Put> {
        forward!(self, Products Write, put_product(product))
    }

    async fn patch_product(
        &self,
        product_id: &ProductId,
        patch: ProductPatch,
        now: Timestamp,
    ) -> Result<Product> {
        forward!(self, Products Write, patch_product(product_id, patch, now))
    }

    async fn product(&self, product_id: &ProductId, freshness: Freshness) -> Result<Option<Card>> {
        forward!(self, Products Read, product(product_id, freshness))
    }

    async fn delete_product(&self, product_id: &ProductId) -> Result<()> {
        forward!(self, Products Write, delete_product(product_id))
    }

    async fn import_product(&self, command: ImportProduct) -> Result<Done<Imported>> {
        forward!(self, Products Write, import_product(command))
    }

    async fn category(
        &self,
        query: &CategoryQuery,
        freshness: Freshness,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Listed>> {
        forward!(self, Products Read, category(query, freshness, now, page))
    }

    async fn categories(&self, page: PageRequest) -> Result<Page<Category>> {
        forward!(self, Products Read, categories(page))
    }
}

#[async_trait]
impl Stock for FaultyStore {
    async fn zone_stock(
        &self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Option<ZoneStock>> {
        forward!(self, Stock Read, zone_stock(product_id, geo_zone, freshness, now))
    }

    async fn product_stock(
        &self,
        product_id: &ProductId,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Vec<ZoneStock>> {
        forward!(self, Stock Read, product_stock(product_id, freshness, now))
    }

    async fn set_on_hand(&self, command: SetOnHand) -> Result<ZoneStock> {
        forward!(self, Stock Write, set_on_hand(command))
    }

    async fn adjust(&self, command: Adjust) -> Result<Done<ZoneStock>> {
        forward!(self, Stock Write, adjust(command))
    }

    async fn reserve(&self, command: Reserve) -> Result<Done<Reservation>> {
        forward!(self, Stock Write, reserve(command))
    }

    async fn reservation(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
    ) -> Result<Option<Reservation>> {
        forward!(self, Stock Read, reservation(reservation_id, now))
    }

    async fn confirm(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
        once: Option<Once>,
    ) -> Result<Done<Reservation>> {
        forward!(self, Stock Write, confirm(reservation_id, now, once))
    }

    async fn release(&self, reservation_id: ReservationId, now: Timestamp) -> Result<()> {
        forward!(self, Stock Write, release(reservation_id, now))
    }

    async fn settle_expired(&self, now: Timestamp, limit: usize) -> Result<usize> {
        forward!(self, Stock Write, settle_expired(now, limit))
    }

    async fn audit(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
        forward!(self, Stock Read, audit(progress))
    }
}

#[async_trait]
impl Orders for FaultyStore {
    async fn place_order(&self, command: PlaceOrder) -> Result<Done<Order>> {
        forward!(self, Orders Write, place_order(command))
    }

    async fn order(&self, order_id: OrderId) -> Result<Option<Order>> {
        forward!(self, Orders Read, order(order_id))
    }

    async fn order_events(&self, order_id: OrderId) -> Result<Option<Vec<OrderEvent>>> {
        forward!(self, Orders Read, order_events(order_id))
    }

    async fn set_status(&self, command: SetStatus) -> Result<Done<Order>> {
        forward!(self, Orders Write, set_status(command))
    }

    async fn customer_orders(
        &self,
        user_id: &UserId,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>> {
        forward!(self, Orders Read, customer_orders(user_id, period, page))
    }

    async fn orders(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>> {
        forward!(self, Orders Read, orders(geo_zone, period, page))
    }

    async fn sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>> {
        forward!(self, Orders Read, sales(geo_zone, period))
    }

    async fn cancel_unpaid(&self, now: Timestamp, note: &str, limit: usize) -> Result<usize> {
        forward!(self, Orders Write, cancel_unpaid(now, note, limit))
    }
}

#[async_trait]
impl Records for FaultyStore {
    async fn export(&self) -> Result<Box<dyn Export>> {
        forward!(self, Records Read, export())
    }

    async fn import(&self, records: Vec<Record>, checkpoint: Checkpoint) -> Result<()> {
        forward!(self, Records Write, import(records, checkpoint))
    }

    async fn import_progress(&self, import: &str) -> Result<u64> {
        forward!(self, Records Read, import_progress(import))
    }

    async fn is_empty(&self) -> Result<bool> {
        forward!(self, Records Read, is_empty())
    }
}

#[async_trait]
impl Upkeep for FaultyStore {
    async fn ready(&self) -> Result<()> {
        forward!(self, Upkeep Read, ready())
    }

    async fn clean(&self, now: Timestamp, limit: usize) -> Result<usize> {
        forward!(self, Upkeep Write, clean(now, limit))
    }
}
