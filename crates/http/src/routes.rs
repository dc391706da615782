//! The handlers, one file a noun: from a request to one call of the shop, and from its result to a response.

pub(crate) mod backup;
pub(crate) mod carts;
pub(crate) mod changes;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod operations;
pub(crate) mod orders;
pub(crate) mod partitions;
pub(crate) mod products;
pub(crate) mod repair;
pub(crate) mod reports;
pub(crate) mod reservations;
pub(crate) mod sessions;
pub(crate) mod stock;
