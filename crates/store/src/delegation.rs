//! Delegation: a store around another one, for tests.
//!
//! [`delegate_store!`](crate::delegate_store) implements every trait of the contract for a type. It is the only list of the
//! contract's methods besides the traits themselves, so a new method is one more entry here. The body of each method calls a
//! macro of the caller, with `self`, the trait, whether the method reads or writes, and the call; what cannot fail is answered
//! by the field `inner`.
//! An arm of that macro that names a method overrides the method.
#![cfg(feature = "contract")]

pub use async_trait::async_trait;

/// The names that the expansion uses.
pub mod names {
    pub use std::sync::Arc;

    pub use mw_domain::products::ProductPatch;
    pub use mw_domain::{
        Cart, CartChange, Category, GeoZone, Order, OrderEvent, OrderId, Owner, Period, Product, ProductId,
        Reservation, ReservationId, Session, SessionId, Timestamp, UserId, ZoneStock,
    };

    pub use crate::carts::{Abandon, Carts, Merge, Merged, RemoveLine, SetLine};
    pub use crate::changes::{Changes, ChangesPage, FeedSettings, ReadChanges};
    pub use crate::export::{Checkpoint, Export, ExportImport, Record};
    pub use crate::orders::{Orders, PlaceOrder, Sales, SetStatus};
    pub use crate::products::{CategoryQuery, ImportProduct, Imported, Listed, Products, Put};
    pub use crate::sessions::{CreateSession, LoggedIn, Login, Sessions, TouchSession};
    pub use crate::stock::{Adjust, Audit, Reserve, SetOnHand, Stock};
    pub use crate::{Done, Freshness, Maintenance, Page, PageRequest, Position, RequestIdentity, Result};
}

/// `delegate_store!(MyStore, call)` implements the contract for `MyStore`; the body of a method is, for example,
/// `call!(self, Carts Read, active_cart(owner, now))`, and its value the method's result.
#[macro_export]
macro_rules! delegate_store {
    ($store:ty, $call:ident) => {
        const _: () = {
            use $crate::delegation::names::*;

            #[$crate::delegation::async_trait]
            impl Carts for $store {
                async fn active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
                    $call!(self, Carts Read, active_cart(owner, now))
                }

                async fn set_line(&self, command: SetLine) -> Result<Cart> {
                    $call!(self, Carts Write, set_line(command))
                }

                async fn remove_line(&self, command: RemoveLine) -> Result<Option<Cart>> {
                    $call!(self, Carts Write, remove_line(command))
                }

                async fn abandon(&self, command: Abandon) -> Result<Done<Cart>> {
                    $call!(self, Carts Write, abandon(command))
                }

                async fn merge(&self, command: Merge) -> Result<Done<Merged>> {
                    $call!(self, Carts Write, merge(command))
                }

                async fn carts(
                    &self,
                    owner: &Owner,
                    now: Timestamp,
                    page: PageRequest,
                ) -> Result<Page<Cart>> {
                    $call!(self, Carts Read, carts(owner, now, page))
                }

                async fn cart_changes(
                    &self,
                    owner: &Owner,
                    now: Timestamp,
                    page: PageRequest,
                ) -> Result<Page<CartChange>> {
                    $call!(self, Carts Read, cart_changes(owner, now, page))
                }

                async fn idle_carts(
                    &self,
                    idle_since: Timestamp,
                    now: Timestamp,
                    page: PageRequest,
                ) -> Result<Page<Cart>> {
                    $call!(self, Carts Read, idle_carts(idle_since, now, page))
                }
            }

            #[$crate::delegation::async_trait]
            impl Sessions for $store {
                async fn create_session(&self, command: CreateSession) -> Result<Done<Session>> {
                    $call!(self, Sessions Write, create_session(command))
                }

                async fn session(&self, session_id: &SessionId, now: Timestamp) -> Result<Option<Session>> {
                    $call!(self, Sessions Read, session(session_id, now))
                }

                async fn touch_session(&self, command: TouchSession) -> Result<Session> {
                    $call!(self, Sessions Write, touch_session(command))
                }

                async fn login(&self, command: Login) -> Result<Done<LoggedIn>> {
                    $call!(self, Sessions Write, login(command))
                }

                async fn delete_session(&self, session_id: &SessionId, now: Timestamp) -> Result<()> {
                    $call!(self, Sessions Write, delete_session(session_id, now))
                }

                async fn user_sessions(
                    &self,
                    user_id: &UserId,
                    now: Timestamp,
                    page: PageRequest,
                ) -> Result<Page<Session>> {
                    $call!(self, Sessions Read, user_sessions(user_id, now, page))
                }

                async fn revoke_sessions(&self, user_id: &UserId, now: Timestamp) -> Result<()> {
                    $call!(self, Sessions Write, revoke_sessions(user_id, now))
                }
            }

            #[$crate::delegation::async_trait]
            impl Products for $store {
                async fn put_product(&self, product: Product) -> Result<Put> {
                    $call!(self, Products Write, put_product(product))
                }

                async fn patch_product(
                    &self,
                    product_id: &ProductId,
                    patch: ProductPatch,
                    now: Timestamp,
                ) -> Result<Product> {
                    $call!(self, Products Write, patch_product(product_id, patch, now))
                }

                async fn product(
                    &self,
                    product_id: &ProductId,
                    freshness: Freshness,
                ) -> Result<Option<Arc<Product>>> {
                    $call!(self, Products Read, product(product_id, freshness))
                }

                async fn delete_product(&self, product_id: &ProductId, now: Timestamp) -> Result<()> {
                    $call!(self, Products Write, delete_product(product_id, now))
                }

                async fn import_product(&self, command: ImportProduct) -> Result<Done<Imported>> {
                    $call!(self, Products Write, import_product(command))
                }

                async fn category(
                    &self,
                    query: &CategoryQuery,
                    freshness: Freshness,
                    now: Timestamp,
                    page: PageRequest,
                ) -> Result<Page<Listed>> {
                    $call!(self, Products Read, category(query, freshness, now, page))
                }

                async fn categories(&self, page: PageRequest) -> Result<Page<Category>> {
                    $call!(self, Products Read, categories(page))
                }
            }

            #[$crate::delegation::async_trait]
            impl Stock for $store {
                async fn zone_stock(
                    &self,
                    product_id: &ProductId,
                    geo_zone: &GeoZone,
                    freshness: Freshness,
                    now: Timestamp,
                ) -> Result<Option<ZoneStock>> {
                    $call!(self, Stock Read, zone_stock(product_id, geo_zone, freshness, now))
                }

                async fn product_stock(
                    &self,
                    product_id: &ProductId,
                    freshness: Freshness,
                    now: Timestamp,
                ) -> Result<Vec<ZoneStock>> {
                    $call!(self, Stock Read, product_stock(product_id, freshness, now))
                }

                async fn set_on_hand(&self, command: SetOnHand) -> Result<ZoneStock> {
                    $call!(self, Stock Write, set_on_hand(command))
                }

                async fn adjust(&self, command: Adjust) -> Result<Done<ZoneStock>> {
                    $call!(self, Stock Write, adjust(command))
                }

                async fn reserve(&self, command: Reserve) -> Result<Done<Reservation>> {
                    $call!(self, Stock Write, reserve(command))
                }

                async fn reservation(
                    &self,
                    reservation_id: ReservationId,
                    now: Timestamp,
                ) -> Result<Option<Reservation>> {
                    $call!(self, Stock Read, reservation(reservation_id, now))
                }

                async fn confirm(
                    &self,
                    reservation_id: ReservationId,
                    now: Timestamp,
                    identity: Option<RequestIdentity>,
                ) -> Result<Done<Reservation>> {
                    $call!(self, Stock Write, confirm(reservation_id, now, identity))
                }

                async fn release(&self, reservation_id: ReservationId, now: Timestamp) -> Result<()> {
                    $call!(self, Stock Write, release(reservation_id, now))
                }

                async fn expire_reservations(&self, now: Timestamp, limit: usize) -> Result<usize> {
                    $call!(self, Stock Write, expire_reservations(now, limit))
                }

                async fn audit(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
                    $call!(self, Stock Read, audit(progress))
                }
            }

            #[$crate::delegation::async_trait]
            impl Orders for $store {
                async fn place_order(&self, command: PlaceOrder) -> Result<Done<Order>> {
                    $call!(self, Orders Write, place_order(command))
                }

                async fn order(&self, order_id: OrderId) -> Result<Option<Order>> {
                    $call!(self, Orders Read, order(order_id))
                }

                async fn order_events(&self, order_id: OrderId) -> Result<Option<Vec<OrderEvent>>> {
                    $call!(self, Orders Read, order_events(order_id))
                }

                async fn set_status(&self, command: SetStatus) -> Result<Done<Order>> {
                    $call!(self, Orders Write, set_status(command))
                }

                async fn user_orders(
                    &self,
                    user_id: &UserId,
                    period: Period,
                    page: PageRequest,
                ) -> Result<Page<Order>> {
                    $call!(self, Orders Read, user_orders(user_id, period, page))
                }

                async fn orders(
                    &self,
                    geo_zone: Option<&GeoZone>,
                    period: Period,
                    page: PageRequest,
                ) -> Result<Page<Order>> {
                    $call!(self, Orders Read, orders(geo_zone, period, page))
                }

                async fn sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>> {
                    $call!(self, Orders Read, sales(geo_zone, period))
                }

                async fn cancel_unpaid(&self, now: Timestamp, note: &str, limit: usize) -> Result<usize> {
                    $call!(self, Orders Write, cancel_unpaid(now, note, limit))
                }
            }

            #[$crate::delegation::async_trait]
            impl Changes for $store {
                fn feed(&self) -> FeedSettings {
                    self.inner.feed()
                }

                async fn changes(&self, request: ReadChanges) -> Result<ChangesPage> {
                    $call!(self, Changes Read, changes(request))
                }

                async fn changes_after(&self, position: &Position) -> Result<()> {
                    $call!(self, Changes Read, changes_after(position))
                }
            }

            #[$crate::delegation::async_trait]
            impl ExportImport for $store {
                async fn export(&self) -> Result<Box<dyn Export>> {
                    $call!(self, ExportImport Read, export())
                }

                async fn import(&self, records: Vec<Record>, checkpoint: Checkpoint) -> Result<()> {
                    $call!(self, ExportImport Write, import(records, checkpoint))
                }

                async fn import_progress(&self, import: &str) -> Result<u64> {
                    $call!(self, ExportImport Read, import_progress(import))
                }

                async fn is_empty(&self) -> Result<bool> {
                    $call!(self, ExportImport Read, is_empty())
                }
            }

            #[$crate::delegation::async_trait]
            impl Maintenance for $store {
                async fn ready(&self) -> Result<$crate::Readiness> {
                    $call!(self, Maintenance Read, ready())
                }

                async fn purge_expired(&self, now: Timestamp, limit: usize) -> Result<usize> {
                    $call!(self, Maintenance Write, purge_expired(now, limit))
                }

                async fn start_backup(&self, to: std::path::PathBuf, keep: usize) -> Result<()> {
                    $call!(self, Maintenance Write, start_backup(to, keep))
                }

                async fn backup_status(&self) -> Result<Option<$crate::BackupStatus>> {
                    $call!(self, Maintenance Read, backup_status())
                }
            }
        };
    };
}
