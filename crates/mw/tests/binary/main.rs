//! The real binary: its commands and exit codes, what it does on signals, on a bad disk, and when it is killed.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, also in the functions that tests share"
)]

mod audit;
mod bench;
mod cassandra;
mod client;
mod config;
mod crash;
mod damage;
mod disk;
mod mounts;
mod partitions;
mod process;
mod serve;
mod takeover;
mod transfer;
