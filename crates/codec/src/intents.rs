//! Stored intents: a process writes one before the first step of an operation, so that another process can finish the
//! operation after a crash. One file per kind.

pub mod close_reservation;
pub mod import;
pub mod login;
pub mod merge;
pub mod order;
pub mod product;
pub mod reserve;
pub mod status;
