//! The rules of the shop as plain values and pure functions: no IO, no clock, no async.
//!
//! Every boundary (JSON, stored bytes, CQL rows, BSON) converts straight to and from these types, so a rule that
//! must hold everywhere is written here once.

pub mod attributes;
pub mod bucket;
pub mod cart;
pub mod ids;
pub mod limits;
pub mod money;
pub mod order;
pub mod product;
pub mod session;
pub mod stock;
pub mod time;

pub use attributes::Attributes;
pub use cart::{Cart, CartChange, CartLine, CartStatus, MergeChange, MergeMode, Owner};
pub use ids::{
    CartId, Category, GeoZone, IdempotencyKey, InvalidId, OrderId, ProductId, ReservationId, SessionId,
    UserId,
};
pub use money::{Currency, Money};
pub use order::{EventKind, Order, OrderEvent, OrderLine, OrderStatus};
pub use product::Product;
pub use session::Session;
pub use stock::{Demand, Level, Movement, Reservation, ReservationStatus, Shortage, ZoneStock};
pub use time::{Date, Period, Timestamp};
