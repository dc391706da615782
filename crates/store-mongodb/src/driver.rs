//! How statements reach the servers: connecting, transactions, where reads go, and what a failure means.

pub(crate) mod certainty;
pub mod connect;
pub(crate) mod reads;
mod start_error;
mod statements;
pub(crate) mod transaction;
