//! The handlers, one file a noun: take what the request says, ask the shop, show what it answers.

pub(crate) mod carts;
pub(crate) mod import;
pub(crate) mod operations;
pub(crate) mod orders;
pub(crate) mod products;
pub(crate) mod reports;
pub(crate) mod reservations;
pub(crate) mod sessions;
pub(crate) mod stock;
