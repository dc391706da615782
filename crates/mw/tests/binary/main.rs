//! The real binary: its commands and exit codes, signals, disk errors and kills.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, also in the functions that tests share"
)]

mod audit;
mod backup;
mod bench;
mod cassandra;
mod client;
mod config;
mod crash;
mod damage;
mod dashboards;
mod disk;
mod export;
mod mongodb;
mod mounts;
mod partitions;
mod process;
mod repair;
mod serve;
mod takeover;
