//! The API as a client meets it: through the router, on the engine that `engine.rs` chooses; what concerns connections
//! goes through real sockets.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, also in the functions that tests share"
)]

mod auth;
mod backup;
mod carts;
mod changes;
mod client;
mod cluster;
mod codes;
mod concurrency;
mod docs;
mod engine;
mod import;
mod limits;
mod operations;
mod orders;
mod products;
mod reports;
mod reservations;
mod sessions;
mod sockets;
mod stock;
mod storage;
mod tls;
mod wire;
