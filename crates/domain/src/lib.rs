//! The rules of the shop as plain values and pure functions: no IO, no clock, no async.
//!
//! Every boundary (JSON, stored bytes, CQL rows, BSON) converts straight to and from these types, so a rule of
//! every engine is written here once.

pub mod attributes;
pub mod buckets;
pub mod carts;
pub mod ids;
pub mod lanes;
pub mod limits;
pub mod money;
pub mod orders;
pub mod products;
pub mod sessions;
pub mod stock;
pub mod time;

pub use attributes::Attributes;
pub use carts::{Cart, CartChange, CartLine, CartStatus, MergeChange, MergeMode, Owner};
pub use ids::{
    CartId, Category, GeoZone, IdempotencyKey, InvalidId, OrderId, ProductId, ReservationId, SessionId,
    UserId,
};
pub use money::{Currency, Money};
pub use orders::{EventKind, Order, OrderEvent, OrderLine, OrderStatus};
pub use products::Product;
pub use sessions::Session;
pub use stock::{Demand, Level, Movement, Reservation, ReservationStatus, Shortage, ZoneStock};
pub use time::{Date, Period, Timestamp};
