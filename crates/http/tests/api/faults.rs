//! A store that does what it is told to do wrong, and otherwise what the model does.

use std::sync::{Mutex, PoisonError};

use mw_domain::product::ProductPatch;
use mw_domain::{
    Cart, CartChange, Category, GeoZone, Order, OrderEvent, OrderId, Owner, Period, Product, ProductId,
    Reservation, ReservationId, Session, SessionId, Timestamp, UserId, ZoneStock,
};
use mw_store::carts::{Abandon, Merge, Merged, RemoveLine, SetLine};
use mw_store::model::Model;
use mw_store::orders::{PlaceOrder, Sales, SetStatus};
use mw_store::products::{CategoryQuery, ImportProduct, Imported, Listed, Put};
use mw_store::records::{Checkpoint, Export, Record};
use mw_store::sessions::{CreateSession, LoggedIn, Login, TouchSession};
use mw_store::stock::{Adjust, Audit, Reserve, SetOnHand};
use mw_store::{
    Carts, Done, Freshness, Once, Orders, Page, PageRequest, Products, Records, Result, Sessions, Stock,
    StoreError, Upkeep,
};
use tokio::sync::watch;

#[derive(Debug, Clone)]
pub(crate) enum Fault {
    Fail(StoreError),
    Hang,
    /// Waits until it is told to go on.
    Wait(watch::Receiver<bool>),
    Panic,
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    model: Model,
    fault: Mutex<Option<Fault>>,
}

impl Faults {
    /// From now on every call does this.
    pub(crate) fn set(&self, fault: Option<Fault>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    async fn strike(&self) -> Result<()> {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match fault {
            None => Ok(()),
            Some(Fault::Fail(error)) => Err(error),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Wait(mut go_on)) => {
                go_on.wait_for(|go_on| *go_on).await.unwrap();
                Ok(())
            }
            Some(Fault::Panic) => panic!("the store panicked at /secret/path"),
        }
    }
}

macro_rules! delegate {
    ($($contract:ident { $($call:ident($($name:ident: $type:ty),*) -> $answer:ty;)* })*) => {$(
        #[async_trait::async_trait]
        impl $contract for Faults {
            $(async fn $call(&self, $($name: $type),*) -> Result<$answer> {
                self.strike().await?;
                self.model.$call($($name),*).await
            })*
        }
    )*};
}

delegate! {
    Carts {
        active_cart(owner: &Owner, now: Timestamp) -> Option<Cart>;
        set_line(command: SetLine) -> Cart;
        remove_line(command: RemoveLine) -> Option<Cart>;
        abandon(command: Abandon) -> Done<Cart>;
        merge(command: Merge) -> Done<Merged>;
        carts(owner: &Owner, now: Timestamp, page: PageRequest) -> Page<Cart>;
        cart_changes(owner: &Owner, now: Timestamp, page: PageRequest) -> Page<CartChange>;
        idle_carts(idle_since: Timestamp, now: Timestamp, page: PageRequest) -> Page<Cart>;
    }
    Sessions {
        create_session(command: CreateSession) -> Done<Session>;
        session(session_id: &SessionId, now: Timestamp) -> Option<Session>;
        touch_session(command: TouchSession) -> Session;
        login(command: Login) -> Done<LoggedIn>;
        delete_session(session_id: &SessionId, now: Timestamp) -> ();
        user_sessions(user_id: &UserId, now: Timestamp, page: PageRequest) -> Page<Session>;
        revoke_sessions(user_id: &UserId, now: Timestamp) -> ();
    }
    Products {
        put_product(product: Product) -> Put;
        patch_product(product_id: &ProductId, patch: ProductPatch, now: Timestamp) -> Product;
        product(product_id: &ProductId, freshness: Freshness) -> Option<Product>;
        delete_product(product_id: &ProductId) -> ();
        import_product(command: ImportProduct) -> Done<Imported>;
        category(query: &CategoryQuery, freshness: Freshness, now: Timestamp, page: PageRequest) -> Page<Listed>;
        categories(page: PageRequest) -> Page<Category>;
    }
    Stock {
        zone_stock(product_id: &ProductId, geo_zone: &GeoZone, freshness: Freshness, now: Timestamp)
            -> Option<ZoneStock>;
        product_stock(product_id: &ProductId, freshness: Freshness, now: Timestamp) -> Vec<ZoneStock>;
        set_on_hand(command: SetOnHand) -> ZoneStock;
        adjust(command: Adjust) -> Done<ZoneStock>;
        reserve(command: Reserve) -> Done<Reservation>;
        reservation(reservation_id: ReservationId, now: Timestamp) -> Option<Reservation>;
        confirm(reservation_id: ReservationId, now: Timestamp, once: Option<Once>) -> Done<Reservation>;
        release(reservation_id: ReservationId, now: Timestamp) -> ();
        settle_expired(now: Timestamp, limit: usize) -> usize;
        audit(progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Audit;
    }
    Orders {
        place_order(command: PlaceOrder) -> Done<Order>;
        order(order_id: OrderId) -> Option<Order>;
        order_events(order_id: OrderId) -> Option<Vec<OrderEvent>>;
        set_status(command: SetStatus) -> Done<Order>;
        customer_orders(user_id: &UserId, period: Period, page: PageRequest) -> Page<Order>;
        orders(geo_zone: Option<&GeoZone>, period: Period, page: PageRequest) -> Page<Order>;
        sales(geo_zone: Option<&GeoZone>, period: Period) -> Vec<Sales>;
        cancel_unpaid(now: Timestamp, note: &str, limit: usize) -> usize;
    }
    Records {
        export() -> Box<dyn Export>;
        import(records: Vec<Record>, checkpoint: Checkpoint) -> ();
        import_progress(import: &str) -> u64;
        is_empty() -> bool;
    }
    Upkeep {
        ready() -> ();
        clean(now: Timestamp, limit: usize) -> usize;
    }
}
